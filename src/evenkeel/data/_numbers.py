"""Checks of the numbers that options take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from evenkeel._errors import InvalidArgumentError


def check_number(name: str, value: Any, *, least: float, most: float = math.inf, hint: str = "") -> None:
    """Raise `InvalidArgumentError` unless a value is a number from `least` to `most`; NaN is none."""
    if (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and least <= value <= most
    ):
        return
    expected = f"at least {least:g}" if most == math.inf else f"finite and at least {least:g}"
    if most <= 1:
        expected = f"between {least:g} and {most:g}"
    raise InvalidArgumentError(f"{name} must be {expected}, but got {value!r}{hint and f'; {hint}'}")


def check_integer(name: str, value: Any, *, least: int, most: int | None = None) -> None:
    """Raise `InvalidArgumentError` unless a value is an integer from `least` to `most`."""
    if (
        isinstance(value, int | np.integer)
        and not isinstance(value, bool)
        and least <= value <= (value if most is None else most)
    ):
        return
    expected = f"at least {least}" if most is None else f"between {least} and {most}"
    raise InvalidArgumentError(f"{name} must be {expected}, a whole number, but got {value!r}")


def ends_of(name: str, value: Any) -> tuple[float, float]:
    """The two numbers of an option, as they are; NaN is none."""
    try:
        low, high = value
        if not (math.isnan(low) or math.isnan(high)):
            return low, high
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise InvalidArgumentError(f"{name} must be two numbers, but got {value!r}")
