"""Every step of any normalization on your own numbers, forward and backward."""

from evenkeel.explain._data import Check, Explanation, Step
from evenkeel.explain._walk import walk

__all__ = ["Check", "Explanation", "Step", "walk"]
