"""What is special about an input, in words: non-finite values, constant groups, single elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenkeel.explain._view import short

if TYPE_CHECKING:
    from evenkeel.explain._forward import Rows

__all__ = ["notes"]

NAMED = 4  # so many places are named, the rest are counted


def notes(rows: Rows, steps: dict[str, np.ndarray]) -> tuple[str, ...]:
    """The notes of one input, most important first."""
    setup = rows.setup
    found = [*non_finite(rows)]
    constant = (rows.x.max(1, initial=-np.inf, where=rows.valid) == rows.x.min(1, initial=np.inf, where=rows.valid)) & (
        rows.valid.any(1)
    )
    if setup.norm.family in ("moments", "minmax") and not setup.given and constant.any():
        found.append(describe_constant(rows, steps, constant))
    if setup.norm.family == "rms" and (steps["mean_square"] == 0).any():
        outcome = "0/0, not a number" if setup.eps == 0 else "0"
        found.append(f"A group holds zeros only: its rms is 0, and with ε = {short(setup.eps)} it becomes {outcome}.")
    if setup.norm.family == "image" and float(np.nanmax(np.abs(setup.x), initial=0.0)) <= 1.0 < setup.scale:
        found.append(
            f"All values lie between -1 and 1: this image seems to be scaled already, and is divided by "
            f"{setup.scale:g} again here; pass scale=1 if so."
        )
    empty = ~rows.valid.any(1)
    if empty.any():
        found.append(
            f"{places(np.flatnonzero(empty), 'group')} without any valid element: mean 0, variance 1, output 0."
        )
    return tuple(found)


def places(index: np.ndarray, kind: str) -> str:
    """Some places by number."""
    named = ", ".join(str(i) for i in index[:NAMED].tolist())
    more = f" and {len(index) - NAMED:,} more" if len(index) > NAMED else ""
    return f"{kind}{'s' * (len(index) > 1)} {named}{more}"


def non_finite(rows: Rows) -> list[str]:
    """Which elements are NaN or infinite and what they do."""
    setup, found = rows.setup, []
    for kind, where in (("NaN", np.isnan(setup.x)), ("inf", np.isinf(setup.x))):
        if not where.any():
            continue
        spots = [f"[{', '.join(map(str, spot))}]" for spot in np.argwhere(where)[:NAMED].tolist()]
        count = int(where.sum())
        more = f" and {count - NAMED:,} more" if count > NAMED else ""
        hit = (where & setup.valid).reshape(-1)[setup.layout.order].any(1)
        if not hit.any():
            effect = "the mask leaves it out, so it has no effect"
        else:
            effect = spoiled(setup.norm.family, kind, int(hit.sum()), len(hit), setup.given)
        found.append(f"{kind} at {', '.join(spots)}{more}: {effect}.")
    return found


def spoiled(family: str, kind: str, hit: int, groups: int, given: bool) -> str:
    """What non-finite elements do to their groups."""
    if family == "dyt" or given:
        return "only these elements are affected, since no statistic is computed from them"
    others = "" if groups == 1 else f"; {groups - hit:,} of {groups:,} groups do not share with it and stay as they are"
    if kind == "NaN":
        return f"every statistic it enters becomes NaN, and with it every element of the group{others}"
    if family == "rms":
        return f"the mean square is infinite: finite elements of the group become 0 and this one inf/inf = NaN{others}"
    return (
        "the mean is infinite and inf - inf is not a number: variance and every element of the group become NaN"
        f"{others}"
        if family == "moments"
        else f"the range is infinite: finite elements become 0 or NaN{others}"
    )


def describe_constant(rows: Rows, steps: dict[str, np.ndarray], constant: np.ndarray) -> str:
    """What becomes of groups without spread."""
    setup = rows.setup
    some = constant & (rows.valid.sum(1) > 1)
    if not some.any():
        return (
            "Each group has a single element, which is its own mean: the normalized value is 0 whatever the input "
            "(torch and evenkeel refuse this for Batch- and InstanceNorm in training)."
            if setup.norm.family == "moments"
            else "Each group has a single element: it is both minimum and maximum, and becomes the low end."
        )
    subject = "The group is constant" if len(some) == 1 else f"{places(np.flatnonzero(some), 'group')}: constant"
    if setup.norm.family == "minmax" or "eps" not in setup.norm.options:
        return f"{subject}: there is no spread to divide by, so it is divided by 1 and becomes the low end or 0."
    denominator = float(steps["denominator"][int(np.argmax(some))])
    if denominator == 0:
        return f"{subject}, and ε is 0: 0/0 is not a number. Any ε above 0 gives 0."
    return (
        f"{subject}: the deviation is 0 and ε = {short(setup.eps)} alone makes the divisor {denominator:.6g}. "
        f"The result is 0, but a difference as small as {denominator:.2g} in one element would already show."
    )
