"""Readings of what norms are given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements

__all__ = [
    "collapsed_channels",
    "dominating_eps",
    "dominating_mean",
    "double_norm",
    "near_overflow",
    "strange_numbers",
    "vanishing_eps",
    "wrong_axis",
]

HALF_LARGEST = 65504.0
FEWEST = 8  # features: of fewer the mean is large by chance
TEMPORAL = 3  # axes of an input with positions


def dominating_eps(measured: Measurements) -> Iterator[Reading]:
    """The share of a norm's rows whose variance is below eps."""
    for s in measured.signals:
        if not (s.remembers and not s.training) and s.values["elements"] > 1:
            yield Reading(site=s.site, value=s.values["below_eps"], evidence={"rms": s.values["rms"]})


def vanishing_eps(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm that computes in float16 and gives NaN for zeros: its eps is zero there."""
    for s in measured.signals:
        if s.dtype == "float16":
            yield Reading(site=s.site, value=float(s.half_refuses), evidence={"dtype": s.dtype})


def dominating_mean(measured: Measurements) -> Iterator[Reading]:
    """The share of the mean in the power of the rows of a norm that does not subtract it."""
    for s in measured.signals:
        if s.statistic in ("rms", "l2") and s.shares == "token" and s.values["elements"] >= FEWEST:
            yield Reading(site=s.site, value=s.values["mean_share"])


def collapsed_channels(measured: Measurements) -> Iterator[Reading]:
    """The share of channels without any spread over a batch."""
    for s in measured.signals:
        if "collapsed" in s.values and s.values["elements"] > 1:
            yield Reading(site=s.site, value=s.values["collapsed"], evidence={"channels": int(s.values["groups"])})


def near_overflow(measured: Measurements) -> Iterator[Reading]:
    """The largest finite size of a float16 result, in parts of the largest that there is."""
    for layer in measured.layers:
        if layer.dtype == "float16":
            value = layer.largest / HALF_LARGEST
            yield Reading(site=layer.site, value=value, evidence={"largest": layer.largest})


def strange_numbers(measured: Measurements) -> Iterator[Reading]:
    """The share of NaN and infinities in the result of the first layer that has some."""
    first = next((layer for layer in measured.layers if layer.not_finite > 0), None)
    if first is not None:
        made = "made by it" if first.input_finite else "already in its input"
        yield Reading(site=first.site, value=first.not_finite, evidence={"made": made, "dtype": first.dtype})
    elif measured.loss is not None:
        strange = not math.isfinite(measured.loss)
        made = "made after the last layer, in the loss" if strange else "nowhere"
        yield Reading(site="loss", value=float(strange), evidence={"made": made, "dtype": "the loss"})


def double_norm(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm that is given the unchanged result of another norm."""
    for s in measured.signals:
        yield Reading(site=s.site, value=float(s.source_kind == "norm"), evidence={"other": s.source})


def wrong_axis(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm of one axis straight after a layer whose features lie on another."""
    for s in measured.signals:
        if len(s.shape) < TEMPORAL or s.source_kind not in ("linear", "conv"):
            continue
        features = "the last axis" if s.source_kind == "linear" else "axis 1"
        if s.shares == "channel":
            wrong, taken = s.source_kind == "linear" and s.axis == 1, "each index of axis 1 as a channel"
        elif s.last_only:
            wrong, taken = s.source_kind == "conv" and s.axis == -1, "the last axis alone"
        else:
            continue
        yield Reading(
            site=s.site, value=float(wrong), evidence={"layer": s.source, "features": features, "taken": taken}
        )
