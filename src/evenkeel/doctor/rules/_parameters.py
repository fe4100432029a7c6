"""Readings of norms' parameters and of what the optimizer does with them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements, NormState

__all__ = ["affine_not_optimized", "dead_gains", "frozen_gains", "norm_decay", "redundant_bias"]

LEAST_STEPS = 20  # of watching before a weight that stands still says something
MOST_OTHERS = 0.5  # the share of matrices in an optimizer from which on a missing norm was forgotten
HALF = ("bfloat16", "float16")


def frozen_gains(measured: Measurements) -> Iterator[Reading]:
    """The share of a norm's weight that cannot move: seen over steps, in one step, or in the weights themselves."""
    if measured.steps:
        yield from still_gains(measured)
    elif measured.optimizer:
        for record in measured.optimizer:
            if not math.isnan(record.lost):
                how = "rounds to nothing in one step of the optimizer, which float32 would take"
                yield Reading(site=record.site, value=record.lost, evidence={"how": how, "rate": record.rate})
    elif any(n.training is None for n in measured.norms):
        yield from gains_at_start(measured.norms)


def still_gains(measured: Measurements) -> Iterator[Reading]:
    """Weights that have the same bits after many steps, although a gradient reached them."""
    last = measured.steps[-1]
    span = last.step - measured.steps[0].step
    rates = {record.site: record.rate for record in measured.optimizer if record.held}
    if span < LEAST_STEPS:
        return
    stepped = any(step.update > 0 for step in measured.steps)
    for site, moved in last.moved.items():
        slopes = [step.gradient.get(site, math.nan) for step in measured.steps]
        by_gradient = any(slope > 0 for slope in slopes)
        if rates.get(site, 0.0) > 0 and (by_gradient or (stepped and all(map(math.isnan, slopes)))):
            why = "although gradients reach it" if by_gradient else "in which other weights moved"
            how = f"has the same bits after {last.step} steps, {why}"
            yield Reading(site=site, value=1.0 - moved, evidence={"how": how, "rate": rates[site]})


def gains_at_start(norms: tuple[NormState, ...]) -> Iterator[Reading]:
    """Weights of a checkpoint that are where norms start, beside tensors that show a training."""
    others_moved = any(n.size and n.at_start < 0.5 and n.dtype in HALF for n in norms)
    halted = sum(n.at_start == 1.0 for n in norms)
    for n in norms:
        mostly = n.bias_moved is None and n.dtype in HALF and others_moved and 2 * halted >= len(norms)
        if n.size and (n.bias_moved or mostly):
            beside = "its own bias" if n.bias_moved else "the weights of other norms"
            how = f"is exactly where norms start, although {beside} moved ({n.dtype})"
            yield Reading(site=n.site, value=n.at_start, evidence={"how": how, "rate": math.nan})


def dead_gains(measured: Measurements) -> Iterator[Reading]:
    """The share of gains that pass nothing."""
    for n in measured.norms:
        if not math.isnan(n.dead) and n.size > 1 and n.at_start < 1:
            yield Reading(site=n.site, value=n.dead, evidence={"size": n.size})


def affine_not_optimized(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm whose trainable parameters the optimizer lacks, or that no gradient reaches."""
    for record in measured.optimizer:
        if record.others_held > MOST_OTHERS:
            missing, cut = not record.held, record.has_gradient is False
            what = "are not in the optimizer" if missing else "get no gradient"
            yield Reading(
                site=record.site, value=float(missing or cut), evidence={"what": what, "others": record.others_held}
            )


def norm_decay(measured: Measurements) -> Iterator[Reading]:
    """The weight decay of a norm's weight, where it pulls the gain to 0."""
    offsets = {n.site: n.offset for n in measured.norms}
    for record in measured.optimizer:
        if record.held and offsets.get(record.site, 0.0) == 0.0:
            yield Reading(site=record.site, value=record.decay, evidence={"rate": record.rate})


def redundant_bias(measured: Measurements) -> Iterator[Reading]:
    """1 for a layer with a bias whose result goes straight to a norm that subtracts each channel's mean."""
    for s in measured.signals:
        own = s.shares in ("channel", "sample_channel") and s.statistic == "moments"
        if own and s.source_kind in ("linear", "conv") and (s.training or not s.remembers) and not s.frozen:
            yield Reading(site=s.source, value=float(s.source_bias), evidence={"norm": s.site})
