"""Readings of remembered statistics, and of how much a batch's say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements

__all__ = [
    "frozen_but_updating",
    "lag_of_statistics",
    "not_finite",
    "small_batch",
    "tiny_variance",
    "unset_statistics",
]

SETTLED = 10  # updates before remembered statistics can be expected to be near the batch's
ENOUGH = 16  # independent elements of a batch whose statistics count as evidence


def unset_statistics(measured: Measurements) -> Iterator[Reading]:
    """1 for a trained model's norm whose remembered statistics are the ones that it was made with."""
    for n in measured.norms:
        if n.shares in ("channel", "sample_channel") and (n.updates is not None or n.default_statistics):
            trained = bool(n.bias_moved) or (n.size > 0 and n.at_start < 1) or others_trained(measured, n.site)
            unused = n.training is True and not n.frozen
            if trained and not unused:
                yield Reading(site=n.site, value=float(n.default_statistics), evidence={"updates": n.updates})


def others_trained(measured: Measurements, site: str) -> bool:
    """Whether another norm's statistics have seen batches."""
    return any(n.updates for n in measured.norms if n.site != site)


def lag_of_statistics(measured: Measurements) -> Iterator[Reading]:
    """How far remembered statistics are from a batch's, in its deviations or as the logarithm of their ratio."""
    for s in measured.signals:
        shift, ratio = s.values.get("shift", math.nan), s.values.get("ratio", math.nan)
        counted = s.updates is None or s.updates >= SETTLED
        enough = s.values.get("effective", 0.0) >= ENOUGH and s.values.get("elements", 0.0) >= 2 * ENOUGH
        if not (math.isnan(shift) or s.frozen) and measured.trained and counted and enough:
            evidence = {"shift": shift, "ratio": ratio, "updates": s.updates}
            yield Reading(site=s.site, value=max(shift, math.log2(ratio)), evidence=evidence)


def tiny_variance(measured: Measurements) -> Iterator[Reading]:
    """The share of remembered variances below eps."""
    for n in measured.norms:
        if n.remembers and n.updates != 0 and not n.default_statistics and n.shares != "token":
            yield Reading(site=n.site, value=n.tiny, evidence={"eps": n.eps if n.eps is not None else 1e-5})


def not_finite(measured: Measurements) -> Iterator[Reading]:
    """How many numbers of a norm are NaN, infinite or negative variances."""
    for n in measured.norms:
        yield Reading(site=n.site, value=float(n.not_finite), evidence={"dtype": n.dtype})


def frozen_but_updating(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm whose parameters are frozen while its statistics follow the batches."""
    trains = any(n.trainable for n in measured.norms) or any(r.others_held > 0 for r in measured.optimizer)
    for n in measured.norms:
        if n.trainable is False and n.updates is not None and (trains or measured.depths):
            yield Reading(site=n.site, value=float(bool(n.training) and not n.frozen), evidence={"updates": n.updates})


def small_batch(measured: Measurements) -> Iterator[Reading]:
    """How many independent elements the statistics of a training batch stand on."""
    for s in measured.signals:
        uses_batch = s.shares == "channel" and not s.frozen and (s.training or not s.remembers)
        if uses_batch and "effective" in s.values and s.values["collapsed"] < 1:
            evidence = {"samples": int(s.values["samples"]), "elements": int(s.values["elements"])}
            yield Reading(site=s.site, value=s.values["effective"], evidence=evidence)
