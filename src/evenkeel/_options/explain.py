"""The norms that can be explained, the other names that `evenkeel explain` takes, and checks of what it is given."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenkeel._errors import InvalidArgumentError
from evenkeel._options.numbers import check_integer

# Read by Python and by the page's JavaScript; see evenkeel/explain/_words.py.
TABLES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).parents[1].joinpath("explain", "assets", "explain.json").read_text(encoding="utf-8")
)
NORM_KEYS = tuple(TABLES["norms"])
EPS_MODES = tuple(TABLES["choices"]["eps_mode"])
DTYPE_NAMES = ("float64", "float32", "bfloat16", "float16")
FORMATS = ("text", "markdown", "json")
OF_NUMBERS = ("mask", "weight", "bias", "mean", "variance", "std", "feature_range", "upstream")
ONE_NUMBER = ("eps", "weight_offset", "scale", "alpha")


def check_given(norm: str, given: Collection[str]) -> None:
    """Raise `InvalidArgumentError` for options that a norm does not take, or that do not go together."""
    row = TABLES["norms"][norm]
    for name in given:
        if name not in row["options"]:
            takes = ", ".join(row["options"])
            raise InvalidArgumentError(f"explain: {row['name']} has no option {name}; it takes {takes}")
    if row["family"] == "moments" and ("mean" in given) != ("variance" in given):
        raise InvalidArgumentError("explain: mean and variance go together; give both, or none to compute them")


def check_numbers(given: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentError` for a number that an option cannot be."""
    for name in ONE_NUMBER:
        if name in given:
            check_one(name, given[name])
    if "correction" in given:
        check_correction(given["correction"])
    if "groups" in given:
        check_integer("explain: groups", given["groups"], least=1)


def check_one(name: str, value: float) -> float:
    """Return an option of one number, which is finite; a scale is positive, and ε not negative."""
    if not math.isfinite(value) or (name == "scale" and value <= 0):
        kind = "one positive number" if name == "scale" else "one finite number"
        raise InvalidArgumentError(f"explain: {name} must be {kind}, but got {value}")
    if name == "eps" and value < 0:
        raise InvalidArgumentError(f"explain: eps must be at least 0, but got {value}")
    return value


def check_correction(value: Any) -> int:
    """Return 0 for the population deviation, 1 for the sample one."""
    if value not in (0, 1):
        raise InvalidArgumentError(f"explain: correction must be 0 (population) or 1 (sample), but got {value}")
    return int(value)


def check_spread(name: str, least: float) -> None:
    """Raise `InvalidArgumentError` for variances or deviations of which the least is negative."""
    if not least >= 0:
        raise InvalidArgumentError(f"explain: {name} must not be negative, but got {least}")


def check_ends(ends: Sequence[float]) -> tuple[float, float]:
    """Return the two ends of min-max scaling."""
    if len(ends) != 2 or not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
        raise InvalidArgumentError(f"explain: feature_range must be two numbers, low below high, but got {list(ends)}")
    return ends[0], ends[1]
