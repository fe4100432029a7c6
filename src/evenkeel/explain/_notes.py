"""What is special about an input: non-finite values, constant groups, single elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenkeel.explain._words import NOTES, PHRASES, tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenkeel.explain._forward import Rows
    from evenkeel.explain._view import View

__all__ = ["notes"]

NAMED = 4  # so many places are named, the rest are counted


def notes(rows: Rows, steps: dict[str, np.ndarray], view: View) -> Iterator[str]:
    """Yield the notes of one input, most important first."""
    setup = rows.setup
    yield from non_finite(rows, view)
    high, low = (f(rows.x, 1, initial=-s * np.inf, where=rows.valid) for f, s in ((np.max, 1), (np.min, -1)))
    finite = np.isfinite(high) & np.isfinite(low)
    overflow = finite & ~np.isfinite(steps["denominator"]) if "denominator" in steps else np.zeros_like(finite)
    if overflow.any() and not setup.given:
        yield view.tell(NOTES["overflow"], **group_places(overflow))
    constant = finite & ~overflow & (high == low)
    if setup.norm.family in ("moments", "minmax") and not setup.given and constant.any():
        yield describe_constant(rows, steps, constant, view)
    if setup.norm.family == "rms" and (steps["mean_square"] == 0).any():
        yield view.tell(NOTES["zeros"])
    if setup.norm.family == "image" and float(np.nanmax(np.abs(setup.x), initial=0.0)) <= 1.0 < setup.scale:
        yield view.tell(NOTES["scaled_image"])
    empty = ~rows.valid.any(1)
    if empty.any():
        yield view.tell(NOTES["empty"], **group_places(empty))


def places(spots: Sequence[object], count: int) -> str:
    """Name the first places and count the rest."""
    named = ", ".join(map(str, spots[:NAMED]))
    return named + tell(PHRASES["and_more"], {"unnamed": count - NAMED}.__getitem__)


def group_places(which: np.ndarray | np.bool_) -> dict[str, object]:
    """Return the facts that name these groups."""
    index = np.flatnonzero(which).tolist()
    return {"places": places(index, len(index)), "places_count": len(index)}


def non_finite(rows: Rows, view: View) -> Iterator[str]:
    """Tell which elements are NaN or infinite and what they do."""
    setup = rows.setup
    for kind, where in (("NaN", np.isnan(setup.x)), ("inf", np.isinf(setup.x))):
        if where.any():
            hit = int((where & setup.valid).reshape(-1)[setup.layout.order].any(1).sum())
            spots = places(np.argwhere(where)[:NAMED].tolist(), int(where.sum()))
            spared = view.groups - hit
            yield view.tell(NOTES["non_finite"], kind=kind, places=spots, groups_hit=hit, groups_spared=spared)


def describe_constant(rows: Rows, steps: dict[str, np.ndarray], constant: np.ndarray, view: View) -> str:
    """Tell what becomes of groups without spread."""
    several = constant & (rows.valid.sum(1) > 1)
    if not several.any():
        return view.tell(NOTES["single"], all_constant=bool(constant.all()))
    divisor = float(steps["denominator"][int(np.argmax(several))])
    return view.tell(NOTES["constant"], divisor=divisor, **group_places(several))
