"""Recognise norms by what they compute, swap them for evenkeel's, prove it, undo it."""

from evenkeel.convert._recognition import Recognition
from evenkeel.convert._recognize import recognize

__all__ = ["Recognition", "recognize"]
