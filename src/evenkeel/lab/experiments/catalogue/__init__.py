"""Private: the table of experiments."""

from __future__ import annotations

import importlib

from evenkeel._options.names import EXPERIMENT_NAMES
from evenkeel.lab.experiments._experiment import Experiment

__all__ = ["EXPERIMENTS"]


def find(name: str) -> Experiment:
    """Return the experiment of a name: the constant of that name in the file of that name."""
    word = name.replace("-", "_")
    experiment: Experiment = getattr(importlib.import_module(f"{__name__}._{word}"), word.upper())
    return experiment


EXPERIMENTS: dict[str, Experiment] = {name: find(name) for name in EXPERIMENT_NAMES}
