"""The backward arithmetic: the Jacobian's action step by step, and finite differences against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenkeel.explain._forward import forward, rows_of, total

if TYPE_CHECKING:
    from evenkeel.explain._forward import Rows
    from evenkeel.explain._setup import Setup

__all__ = ["backward", "finite_difference", "parameter_gradients"]

PROBES = 16  # how many elements finite differences check; each costs two forward passes of its group
LONG, FEW_PROBES = 100_000, 2  # in a group of a million, sixteen would take several seconds
NUDGE = 2.0**-17  # of a denominator: central differences are then right to about 1e-10


def backward(rows: Rows, steps: dict[str, np.ndarray], g: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the backward steps by id from the forward ones and the upstream gradient, (groups, members)."""
    setup = rows.setup
    with np.errstate(all="ignore"):
        g_hat = g * (setup.high - setup.low)
        g_hat = g_hat if rows.gamma is None else g_hat * rows.gamma
        gradients = scaling if setup.given else FAMILIES[setup.norm.family]
        return {"upstream": g, "g_hat": g_hat} | gradients(rows, steps, g_hat)


def scaling(rows: Rows, steps: dict[str, np.ndarray], g_hat: np.ndarray) -> dict[str, np.ndarray]:
    """Divide ĝ by the constant denominator."""
    return {"dx": g_hat / steps["denominator"][:, None] / rows.setup.scale}


def projection(rows: Rows, steps: dict[str, np.ndarray], g_hat: np.ndarray) -> dict[str, np.ndarray]:
    """Remove ĝ's components along 1 (not for RMSNorm) and x̂, and divide the rest by the denominator."""
    n, xhat, centred = rows.count, steps["normalized"], rows.setup.norm.family == "moments"
    length, size = total(g_hat * g_hat), total(xhat * xhat)
    whole = np.where(length == 0, 1.0, length)
    mean, along = total(g_hat) / n, total(g_hat * xhat) / n
    share_one = np.where(length == 0, 0.0, 100.0 * (n * mean * mean) / whole) if centred else np.zeros_like(length)
    share_xhat = 100.0 * ((n * along) * (n * along) / np.where(size == 0, 1.0, size)) / whole
    share_xhat = np.where((length == 0) | (size == 0), 0.0, share_xhat)
    factor = slope_factor(rows, steps)
    left = g_hat - mean[:, None] if centred else g_hat
    projected = np.where(rows.valid, left - xhat * (factor * along)[:, None], 0.0)
    return {
        **({"mean_g": mean, "share_one": share_one} if centred else {}),
        "mean_g_xhat": along,
        "share_xhat": share_xhat,
        "share_kept": (100.0 - share_one) - share_xhat,
        "factor": factor,
        "projected": projected,
        "dx": projected / steps["denominator"][:, None],
    }


def slope_factor(rows: Rows, steps: dict[str, np.ndarray]) -> np.ndarray:
    """Return k of the definition: the share of the component along x̂ that goes, which depends on where ε enters."""
    square = "mean_square" if "mean_square" in steps else "sample_variance" if rows.setup.correction else "variance"
    root, denominator = np.sqrt(steps[square]), steps["denominator"]
    if rows.setup.spec.eps_mode == "outside":
        factor = np.where(root == 0, 0.0, denominator / np.where(root == 0, 1.0, root))
    elif rows.setup.spec.eps_mode == "clamp":
        factor = ((root > 0) & (root >= rows.setup.eps)).astype(np.float64)
    else:
        factor = np.ones_like(root)
    if rows.setup.correction:
        factor = factor * (rows.count / np.maximum(rows.count - 1, 1))
    return factor


def minmax_backward(rows: Rows, steps: dict[str, np.ndarray], g_hat: np.ndarray) -> dict[str, np.ndarray]:
    """Divide ĝ by the range and subtract the gradients of the two ends, which move with the data."""
    xhat, d = steps["normalized"], steps["denominator"]
    at_max = total(g_hat * xhat)
    at_min = total(g_hat * np.where(rows.valid, 1.0 - xhat, 0.0))
    dx = g_hat / d[:, None]
    each = np.arange(len(d))
    where = np.where(rows.valid, rows.x, np.nan)
    highest = np.argmax(where == steps["maximum"][:, None], axis=1)
    lowest = np.argmax(where == steps["minimum"][:, None], axis=1)
    dx[each, highest] -= np.where(steps["range"] == 0, 0.0, at_max / d)
    dx[each, lowest] -= at_min / d
    return {"sum_at_max": at_max, "sum_at_min": at_min, "dx": np.where(rows.valid, dx, 0.0)}


def dyt_backward(rows: Rows, steps: dict[str, np.ndarray], g_hat: np.ndarray) -> dict[str, np.ndarray]:
    """Multiply ĝ by the slope of tanh and by α."""
    slope = 1.0 - steps["normalized"] * steps["normalized"]
    return {"slope": slope, "dx": (g_hat * slope) * rows.setup.alpha}


FAMILIES = {"moments": projection, "rms": projection, "minmax": minmax_backward, "dyt": dyt_backward}


def parameter_gradients(setup: Setup, flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sum dalpha, dweight and dbias from the flat steps in row-major order."""
    gradients = {}
    if "alpha" in setup.norm.options:
        moved = flat["g_hat"] * flat["slope"] * setup.x.reshape(-1)
        gradients["dalpha"] = np.cumsum(moved)[-1:]
    count = max(1, int(np.prod(setup.layout.parameter_shape)))
    for name, values in (("weight", flat["upstream"] * flat["normalized"]), ("bias", flat["upstream"])):
        if name in setup.norm.options:
            # bincount adds one element after the other
            sums = np.bincount(setup.layout.parameter_of, weights=values, minlength=count)
            gradients[f"d{name}"] = sums.reshape(setup.layout.parameter_shape)
    return gradients


def finite_difference(setup: Setup, group: int, dx: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return rows [flat index, dx, numeric] for up to `PROBES` valid members of one group."""
    rows = rows_of(setup, group)
    members = np.flatnonzero(rows.valid[0])
    order = setup.layout.order[group]
    upstream = g.reshape(-1)[order]
    steps = forward(rows)
    denominator = steps["denominator"][0] if "denominator" in steps else 1.0
    nudge = denominator * setup.scale * NUDGE
    count = min(PROBES if len(members) <= LONG else FEW_PROBES, len(members))
    table = []
    with np.errstate(all="ignore"):
        for member in (members[i * len(members) // count] for i in range(count)):
            above, below = rows.x.copy(), rows.x.copy()
            above[0, member] += nudge
            below[0, member] -= nudge
            change = forward(rows.with_x(above))["output"] - forward(rows.with_x(below))["output"]
            slope = total(upstream * change)[0] / (above[0, member] - below[0, member])
            table.append([order[member], dx.reshape(-1)[order[member]], slope])
    return np.array(table, dtype=np.float64).reshape(-1, 3)
