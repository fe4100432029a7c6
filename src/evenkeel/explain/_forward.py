"""The forward arithmetic, in the order of the definitions in `evenkeel.explain._data`; a row for each group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from evenkeel.explain._setup import Setup

__all__ = ["Rows", "forward", "rows_of", "total"]

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Some groups of a setup, as rows.

    Attributes:
        setup: where the options are.
        x: (groups, members), masked ones 0.
        valid: (groups, members).
        count: (groups,), the valid members, at least 1.
        gamma, beta: (groups, members) or None.
        mean, variance, std: (groups,) or None: given statistics.
    """

    setup: Setup
    x: np.ndarray
    valid: np.ndarray
    count: np.ndarray
    gamma: np.ndarray | None
    beta: np.ndarray | None
    mean: np.ndarray | None
    variance: np.ndarray | None
    std: np.ndarray | None

    def with_x(self, x: np.ndarray) -> Rows:
        """The same rows with other values."""
        return replace(self, x=x)


def rows_of(setup: Setup, group: int | None = None) -> Rows:
    """Return all groups of a setup as rows, or one."""
    pick = slice(None) if group is None else slice(group, group + 1)
    order = setup.layout.order[pick]
    valid = setup.valid.reshape(-1)[order]
    which = setup.layout.parameter_of[order]
    given = {
        name: None if value is None else value[pick]
        for name, value in (("mean", setup.mean), ("variance", setup.variance), ("std", setup.std))
    }
    return Rows(
        setup=setup,
        x=np.where(valid, setup.x.reshape(-1)[order], 0.0),
        valid=valid,
        count=np.maximum(valid.sum(1), 1),
        gamma=None if setup.gamma is None else setup.gamma[which],
        beta=None if setup.beta is None else setup.beta[which],
        **given,
    )


def total(values: np.ndarray) -> np.ndarray:
    """Sum each row from left to right: unlike ``sum``, ``cumsum`` fixes the order."""
    return np.cumsum(values, axis=1)[:, -1]


def forward(rows: Rows) -> dict[str, np.ndarray]:
    """Compute the forward steps by id: (groups,) or (groups, members)."""
    family = rows.setup.norm.family
    # What an overflow or 0/0 gives is part of the explanation.
    with np.errstate(all="ignore"):
        steps = FAMILIES[family](rows)
        return steps | finish(rows, steps["normalized"])


def moments(rows: Rows) -> dict[str, np.ndarray]:
    """Compute mean, variance, deviations and the normalized values."""
    n, keep = rows.count, rows.valid
    empty = ~keep.any(1)
    if rows.mean is not None and rows.variance is not None:
        mean, variance = rows.mean, rows.variance
        centred = np.where(keep, rows.x - mean[:, None], 0.0)
        sample = np.full_like(mean, NAN)
    else:
        first = total(rows.x) / n
        rough = np.where(keep, rows.x - first[:, None], 0.0)
        rest = total(rough) / n
        mean = first + rest
        centred = np.where(keep, rough - rest[:, None], 0.0)
        squares = total(centred * centred)
        variance = np.where(empty, 1.0, squares / n)
        sample = np.where(n > 1, squares / np.maximum(n - 1, 1), NAN)
    steps = {"mean": mean, "centred": centred, "variance": variance, "sample_variance": sample}
    steps |= {"std": np.sqrt(variance), "sample_std": np.sqrt(sample)}
    used = np.where(np.isnan(sample) & ~np.isnan(variance), 0.0, sample) if rows.setup.correction else variance
    return steps | divide(rows, centred, used)


def rms(rows: Rows) -> dict[str, np.ndarray]:
    """Compute the mean square, its root and the normalized values."""
    square = np.where(rows.valid.any(1), total(rows.x * rows.x) / rows.count, 1.0)
    return {"mean_square": square, "rms": np.sqrt(square)} | divide(rows, rows.x, square)


def divide(rows: Rows, numerator: np.ndarray, square: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the denominator, the effect of ε and the quotient."""
    root, eps = np.sqrt(square), rows.setup.eps
    if "eps" not in rows.setup.norm.options:
        denominator = np.where(root == 0, 1.0, root)
        return {"denominator": denominator, "normalized": quotient(rows, numerator, denominator)}
    mode = rows.setup.spec.eps_mode
    if mode == "inside":
        denominator = np.sqrt(square + eps)
    else:
        denominator = root + eps if mode == "outside" else np.maximum(root, eps)
    effect = np.where(denominator == 0, NAN, 100.0 * (1.0 - root / denominator))
    return {
        "denominator": denominator,
        "eps_effect": effect,
        "normalized": quotient(rows, numerator, denominator),
    }


def quotient(rows: Rows, numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide each row by its denominator; masked members are 0."""
    return np.where(rows.valid, numerator / denominator[:, None], 0.0)


def minmax(rows: Rows) -> dict[str, np.ndarray]:
    """Compute minimum, maximum, range and the place of x between them."""
    some = rows.valid.any(1)
    low = np.where(some, np.where(rows.valid, rows.x, np.inf).min(1), 0.0)
    high = np.where(some, np.where(rows.valid, rows.x, -np.inf).max(1), 0.0)
    spread = high - low
    denominator = np.where(spread == 0, 1.0, spread)
    normalized = quotient(rows, rows.x - low[:, None], denominator)
    return {
        "minimum": low,
        "maximum": high,
        "range": spread,
        "denominator": denominator,
        "normalized": normalized,
    }


def image(rows: Rows) -> dict[str, np.ndarray]:
    """Scale colours to [0, 1], then centre and divide by constants."""
    assert rows.mean is not None and rows.std is not None  # noqa: PT018 - the norm's defaults
    unit = rows.x / rows.setup.scale
    centred = unit - rows.mean[:, None]
    denominator = np.where(rows.std == 0, 1.0, rows.std)
    steps = {"unit": unit, "mean": rows.mean, "centred": centred, "std": rows.std, "denominator": denominator}
    return steps | {"normalized": quotient(rows, centred, denominator)}


def dyt(rows: Rows) -> dict[str, np.ndarray]:
    """Compute the tanh of α x."""
    stretched = rows.setup.alpha * rows.x
    return {"stretched": stretched, "normalized": np.tanh(stretched)}


def finish(rows: Rows, normalized: np.ndarray) -> dict[str, np.ndarray]:
    """Scale and shift; masked members are 0."""
    steps, y = {}, normalized
    if rows.setup.norm.family == "minmax":
        low, high = rows.setup.low, rows.setup.high
        if high - low != 1.0:
            y = steps["scaled"] = y * (high - low)
        y = y + low
    if rows.gamma is not None:
        y = steps["scaled"] = y * rows.gamma
    if rows.beta is not None:
        y = y + rows.beta
    return steps | {"output": np.where(rows.valid, y, 0.0)}


FAMILIES = {"moments": moments, "rms": rms, "minmax": minmax, "image": image, "dyt": dyt}
