"""Readings along the depth of a model, and of the size of its steps."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading, pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Depth, Measurements, Signal

__all__ = ["exploding_gradients", "growing_stream", "large_updates", "vanishing_gradients"]

FEWEST_BLOCKS = 6
FEWEST_LAYERS = 6


def growing_stream(measured: Measurements) -> Iterator[Reading]:
    """By how much the stream before the norms of like blocks grows from one to the next, in its second half."""
    groups: dict[str, list[Signal]] = {}
    for s in measured.signals:
        if s.shares == "token":
            groups.setdefault(pattern_of(s.site), []).append(s)
    for pattern, some in groups.items():
        sizes = [s.values["rms"] for s in some]
        if len(sizes) < FEWEST_BLOCKS or min(sizes) <= 0 or not all(map(math.isfinite, sizes)):
            continue
        # linear growth slows down to a few percent a block; exponential growth does not
        late = [b / a for a, b in pairwise(sizes)][len(sizes) // 2 - 1 :]
        total = sizes[-1] / sizes[0]
        evidence = {"total": total, "blocks": len(sizes), "last": sizes[-1]}
        yield Reading(site=pattern, value=min(median(late), total ** (1 / (len(sizes) - 1))), evidence=evidence)


def per_layer(measured: Measurements) -> tuple[float, list[Depth]] | None:
    """The factor from one layer's gradient to that of the layer before it: a line through the logarithms."""
    some = [depth for depth in measured.depths if depth.gradient > 0 and math.isfinite(depth.gradient)]
    if len(some) < FEWEST_LAYERS:
        return None
    # without the ends: a head or an embedding has another scale
    logs = [math.log(depth.gradient) for depth in some[1:-1]]
    third = max(1, len(logs) // 3)
    first, last = median(logs[:third]), median(logs[-third:])
    return math.exp((first - last) / max(1, len(logs) - third)), some


def vanishing_gradients(measured: Measurements) -> Iterator[Reading]:
    """The factor by which gradients shrink from a layer to the one before."""
    yield from gradient_reading(measured)


def exploding_gradients(measured: Measurements) -> Iterator[Reading]:
    """The factor by which gradients grow from a layer to the one before."""
    yield from gradient_reading(measured)


def gradient_reading(measured: Measurements) -> Iterator[Reading]:
    """One reading over the depth of a model, whose whole span has to be large too."""
    found = per_layer(measured)
    if found is not None:
        factor, some = found
        span = factor ** len(some)
        evidence = {"span": span, "layers": len(some)}
        yield Reading(site=f"{some[0].site} … {some[-1].site}", value=factor, evidence=evidence)


def large_updates(measured: Measurements) -> Iterator[Reading]:
    """The largest over steps of the median step of a weight matrix, in parts of the weight."""
    updates = [step.update for step in measured.steps if math.isfinite(step.update)]
    if updates:
        yield Reading(site="weights", value=max(updates), evidence={"steps": measured.steps[-1].step})
