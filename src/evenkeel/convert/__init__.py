"""Recognise norms by what they compute, swap them for evenkeel's, prove it, undo it."""

from evenkeel.convert._certificate import Certificate, Entry
from evenkeel.convert._plan import Plan, plan, swap
from evenkeel.convert._recognition import Recognition
from evenkeel.convert._recognize import recognize
from evenkeel.convert._site import Site

__all__ = ["Certificate", "Entry", "Plan", "Recognition", "Site", "plan", "recognize", "swap"]
