"""Statistics of data, fitted once, merged without loss, and shipped inside the model."""

from evenkeel.data._statistics import Statistics, merge_all

__all__ = ["Statistics", "merge_all"]
