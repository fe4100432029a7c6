"""Recognise norms by what they compute, swap them for evenkeel's, prove it, undo it."""

from evenkeel.convert._certificate import Certificate, Entry
from evenkeel.convert._layers import kernel_repository, serve
from evenkeel.convert._placement import Placement
from evenkeel.convert._plan import Plan, plan, swap, to_rms_norm
from evenkeel.convert._site import Site
from evenkeel.convert._verify import Check
from evenkeel.recognition import Agreement, Layout, Recognition, Roles, recognize

__all__ = [
    "Agreement",
    "Certificate",
    "Check",
    "Entry",
    "Layout",
    "Placement",
    "Plan",
    "Recognition",
    "Roles",
    "Site",
    "kernel_repository",
    "plan",
    "recognize",
    "serve",
    "swap",
    "to_rms_norm",
]
