"""The names that options take, and what is said of a name that is none of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Literal

from evenkeel._errors import InvalidArgumentError, StudyError

NanPolicy = Literal["omit", "raise", "propagate"]
OnMismatch = Literal["raise", "warn", "ignore"]
OnError = Literal["raise", "skip"]
EngineName = Literal["local", "ray"]

# The scalers by the words that `fit(scaler=...)` takes.
SCALERS = {
    "standard": "StandardScaler",
    "minmax": "MinMaxScaler",
    "robust": "RobustScaler",
    "maxabs": "MaxAbsScaler",
}

# In the order of the course. Each is a file of lab/experiments/catalogue, and the constant in it, by this name.
EXPERIMENT_NAMES = (
    "feature-scaling",
    "batchnorm-convergence",
    "batchnorm-noise",
    "covariate-shift",
    "norm-before-activation",
    "padding",
    "recurrent",
    "gradients-at-init",
    "residual-growth",
    "learning-rate",
    "without-norm",
    "centring",
    "bias-terms",
    "cost",
)

NEAREST = 3
FEW = 5


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the three names that are most like this one, as a question lists them.

    Example:
        >>> nearest("pre-lyer", ["llama", "pre-layer", "pre-rms", "post-layer"])
        'pre-layer, pre-rms or post-layer'
    """
    *others, last = difflib.get_close_matches(name, list(known), n=NEAREST, cutoff=0.0) or ["nothing"]
    return f"{', '.join(others)} or {last}" if others else last


def check_experiment(name: str) -> None:
    """Raise `StudyError` unless an experiment has this name."""
    if name not in EXPERIMENT_NAMES:
        raise StudyError(f"no experiment is called {name!r}; did you mean {nearest(name, EXPERIMENT_NAMES)}?")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise `InvalidArgumentError` unless an option has one of its values: a few are listed, of many the nearest."""
    if value in choices:
        return
    if len(choices) <= FEW:
        raise InvalidArgumentError(f"{name}: expected one of {', '.join(choices)}, but got {value!r}")
    raise InvalidArgumentError(f"{name}: there is no {value!r}; did you mean {nearest(str(value), choices)}?")
