"""Checks that hold if the steps are right: against known properties and against the library."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from evenkeel.explain._data import Check
from evenkeel.explain._library import library_output
from evenkeel.explain._words import CHECKS, tell

if TYPE_CHECKING:
    from evenkeel.explain._forward import Rows
    from evenkeel.explain._setup import Setup

__all__ = ["backward_checks", "forward_checks"]

SMALL = 1e-9  # float64 leaves 1e-15 or so; a wrong formula leaves far more
# The library promises 3 of the largest value of a row, and rounding the walk's own result adds up to 1.
ULPS = 4.0
FLOAT64_ULPS = 16.0  # both sides round at every operation, with nothing wider to round from
EPSILONS = 8.0  # of the upstream gradient's rounding and the few operations after it; the worst seen is 4
FINITE = 1e-6


def forward_checks(rows: Rows, steps: dict[str, np.ndarray], y: np.ndarray, group: int) -> list[Check]:
    """Check mean 0, deviation 1 and the library's own result."""
    setup, checks = rows.setup, []
    xhat = steps["normalized"]
    fine = np.isfinite(xhat).all(1) & rows.valid.any(1) & np.isfinite(steps.get("denominator", xhat[:, 0]))
    if setup.norm.family == "moments" and not setup.given and fine.any():
        means = np.where(rows.valid, xhat, 0.0).sum(1) / rows.count
        spread = np.sqrt(np.where(rows.valid, (xhat - means[:, None]) ** 2, 0.0).sum(1) / rows.count)
        expected = steps["std"] / steps["denominator"]
        checks.append(near("mean_zero", means, np.zeros_like(means), fine, group))
        checks.append(near("std_one", spread, expected, fine, group))
    if setup.norm.family == "rms" and fine.any():
        size = np.sqrt(np.square(xhat).sum(1) / rows.count)
        expected = steps["rms"] / steps["denominator"]
        checks.append(near("rms_one", size, expected, fine, group))
    compared = compare(setup, steps, y)
    return checks if compared is None else [*checks, compared]


def near(name: str, value: np.ndarray, expected: np.ndarray, fine: np.ndarray, group: int) -> Check:
    """Compare two numbers of every finite group; the check shows one group."""
    error = float(np.abs(value - expected)[fine].max())
    at = group if fine[group] else int(np.argmax(fine))
    facts = {"error": error, "compared": int(fine.sum()), "tolerance": SMALL}
    return check(name, float(value[at]), float(expected[at]), error <= SMALL, facts)


def check(name: str, value: float, expected: float, passed: bool, facts: dict[str, float]) -> Check:
    """Fill in the words of a check that the page makes too."""
    words = CHECKS[name]
    note = tell(words.note, facts.__getitem__)
    return Check(id=name, title=words.title, value=value, expected=expected, passed=passed, note=note)


def ulps(result: np.ndarray, expected: np.ndarray, setup: Setup) -> np.ndarray:
    """Return distances in ulps of each group's largest value, in the input's dtype."""
    order = setup.layout.order
    info = torch.finfo(setup.tensor.dtype)
    with np.errstate(all="ignore"):
        largest = np.nanmax(np.where(np.isfinite(expected), np.abs(expected), 0.0).reshape(-1)[order], axis=1)
        unit = np.ldexp(info.eps, np.frexp(np.maximum(largest, info.tiny))[1] - 1)
        distance = np.abs(result - expected).reshape(-1)[order] / unit[:, None]
    same = (result == expected) | (np.isnan(result) & np.isnan(expected))
    return np.where(same.reshape(-1)[order], 0.0, np.where(np.isnan(distance), np.inf, distance))


def magnified(setup: Setup, steps: dict[str, np.ndarray]) -> float:
    """Return how much a mean large against the spread magnifies float64's rounding; 1 in other dtypes."""
    if setup.tensor.dtype != torch.float64 or "mean" not in steps or "std" not in steps:
        return 1.0
    with np.errstate(all="ignore"):
        ratio = np.abs(steps["mean"]) / np.maximum(steps["std"], steps["denominator"])
    return 1.0 + float(ratio[np.isfinite(ratio)].max(initial=0.0))


def lost_in_sums(setup: Setup) -> float:
    """Return what Σ from left to right may lose in float64: half an ulp of the result for each element.

    A sum of n equal terms comes near that bound; in narrower dtypes float64's sums are exact enough.
    """
    return setup.layout.order.shape[1] / 2 if setup.tensor.dtype == torch.float64 else 0.0


def comparable(setup: Setup, steps: dict[str, np.ndarray]) -> np.ndarray:
    """Whether each group can be compared: not where finite numbers overflow this walk's plain sums.

    The library scales such numbers down first and has a result.
    """
    if "denominator" not in steps:
        return np.ones(len(setup.layout.order), dtype=bool)
    finite = np.isfinite(setup.x.reshape(-1)[setup.layout.order]).all(1)
    return ~(finite & ~np.isfinite(steps["denominator"]))


def compare(setup: Setup, steps: dict[str, np.ndarray], y: np.ndarray) -> Check | None:
    """Compare the walk's output, rounded once, with the library's function in the input's dtype."""
    with torch.no_grad():
        compared = library_output(setup, setup.tensor)
    within = comparable(setup, steps)
    if compared is None or not within.any():
        return None
    name, output = compared
    rounded = torch.from_numpy(y).to(setup.tensor.dtype).double().numpy()
    distance = ulps(output.double().numpy(), rounded, setup)[within]
    worst, equal = float(distance.max()), int((distance == 0).sum())
    kind = str(setup.tensor.dtype).removeprefix("torch.")
    limit = FLOAT64_ULPS * magnified(setup, steps) if setup.tensor.dtype == torch.float64 else ULPS
    limit += lost_in_sums(setup)
    bits = "equal to the last bit" if worst == 0 else f"{equal:,} of {distance.size:,} elements equal to the last bit"
    return Check(
        id="library",
        title=f"difference from evenkeel's {name}, in ulps",
        value=worst,
        expected=0.0,
        passed=worst <= limit,
        note=f"{bits}; ulps of {kind} at each group's largest value, at most {limit:.3g}",
    )


def gradient_size(setup: Setup, steps: dict[str, np.ndarray]) -> float:
    """Return the largest gradient without the projection, which errors are measured against."""
    with np.errstate(all="ignore"):
        if "denominator" not in steps:
            passing = np.abs(steps["g_hat"] * setup.alpha)
        else:
            passing = np.abs(steps["g_hat"]) / steps["denominator"][:, None] / setup.scale
    return max(float(passing[np.isfinite(passing)].max(initial=0.0)), float(np.finfo(float).tiny))


def backward_checks(
    rows: Rows, steps: dict[str, np.ndarray], dx: np.ndarray, g: np.ndarray, differences: np.ndarray, group: int
) -> list[Check]:
    """Check that the removed directions are gone and that finite differences and autograd agree."""
    checks, size, smooth = gone_checks(rows, steps, group), gradient_size(rows.setup, steps), smooth_groups(rows, steps)
    differences = differences[np.isfinite(differences).all(1)]
    if len(differences) and smooth[group]:
        checks.append(finite_check(differences, size))
    within = smooth & comparable(rows.setup, steps)
    compared = autograd(rows.setup, dx, g, size, within, magnified(rows.setup, steps))
    return checks if compared is None else [*checks, compared]


def gone_checks(rows: Rows, steps: dict[str, np.ndarray], group: int) -> list[Check]:
    """Check that the removed components are 0; along x̂ with ε inside, a known part stays: ε/(v + ε)."""
    if "projected" not in steps or not np.isfinite(steps["projected"]).all():
        return []
    size = np.maximum(np.abs(steps["g_hat"]).max(1), np.finfo(float).tiny)
    one = (steps["projected"].sum(1) / rows.count) / size
    along = (steps["projected"] * steps["normalized"]).sum(1) / rows.count
    removed = (np.square(steps["normalized"]).sum(1) / rows.count) * steps["factor"]
    xhat = (along - steps["mean_g_xhat"] * (1.0 - removed)) / size
    checks = [gone("dx_one", one, group)] if rows.setup.norm.family == "moments" else []
    return [*checks, gone("dx_xhat", xhat, group)]


def gone(name: str, left: np.ndarray, group: int) -> Check:
    """Check that a component, relative to the gradient, is 0 in every group."""
    passed = float(np.abs(left).max()) <= SMALL
    return check(name, float(left[group]), 0.0, passed, {"tolerance": SMALL})


def finite_check(differences: np.ndarray, size: float) -> Check:
    """Compare analytic gradients with numeric ones."""
    analytic, numeric = differences[:, 1], differences[:, 2]
    error = float(np.abs(analytic - numeric).max()) / size
    facts = {"compared": len(differences), "tolerance": FINITE}
    return check("finite_difference", error, 0.0, error <= FINITE, facts)


def smooth_groups(rows: Rows, steps: dict[str, np.ndarray]) -> np.ndarray:
    """Whether each group's function is differentiable there: not at a constant or at shared ends."""
    setup, count = rows.setup, rows.valid.shape[0]
    if setup.norm.family == "minmax":
        at_ends = [((rows.x == steps[end][:, None]) & rows.valid).sum(1) for end in ("minimum", "maximum")]
        return (at_ends[0] == 1) & (at_ends[1] == 1) & (steps["range"] > 0) & np.isfinite(steps["range"])
    spread = steps.get("std", steps.get("rms"))
    corner = setup.eps == 0 or setup.spec.eps_mode != "inside"
    if spread is None or setup.given or not corner:
        return np.ones(count, dtype=bool)
    return spread != 0


def autograd(
    setup: Setup, dx: np.ndarray, g: np.ndarray, size: float, smooth: np.ndarray, magnified: float
) -> Check | None:
    """Compare the walk's gradient with autograd through the library's function."""
    x = setup.tensor.clone().requires_grad_()
    with torch.enable_grad():
        compared = library_output(setup, x)
        if compared is None or not compared[1].requires_grad:  # it does not where the mask leaves nothing
            return None
        name, output = compared
        (gradient,) = torch.autograd.grad(output, x, torch.from_numpy(g).to(output.dtype))
    # The library gets the upstream gradient as its dtype holds it: what that rounding moves is not an error.
    with np.errstate(all="ignore"):
        error = np.abs(gradient.double().numpy() - dx) / size
    same = np.isnan(gradient.double().numpy()) & np.isnan(dx)
    error = np.where(same, 0.0, np.where(np.isnan(error), math.inf, error)).reshape(-1)[setup.layout.order]
    if not smooth.any():
        return None
    worst = float(error[smooth].max())
    limit = (EPSILONS * magnified + lost_in_sums(setup)) * torch.finfo(setup.tensor.dtype).eps
    return Check(
        id="autograd",
        title=f"gradient against autograd through evenkeel's {name}",
        value=worst,
        expected=0.0,
        passed=worst <= limit,
        note=f"largest difference over the largest unprojected gradient, at most {limit:.2g}",
    )
