"""Readings of what flows where it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements

__all__ = ["batch_dependence", "causal_leak", "polluting_padding"]

ROUNDING = 1e-5


def polluting_padding(measured: Measurements) -> Iterator[Reading]:
    """How far padding moves a norm's statistics, in deviations of the real elements."""
    for s in measured.signals:
        if "padded_shift" in s.values and not (s.remembers and not s.training) and not s.frozen:
            yield Reading(site=s.site, value=s.values["padded_shift"])


def causal_leak(measured: Measurements) -> Iterator[Reading]:
    """How far a later position moves earlier outputs, where it moves none with the norms' statistics kept."""
    for leak in measured.leaks:
        if leak.kind == "time":
            yield Reading(site=leak.site, value=leak.moved, evidence={"held": leak.held})


def batch_dependence(measured: Measurements) -> Iterator[Reading]:
    """How far other rows move a row's output in evaluation, where they move none with the norms' statistics kept."""
    for leak in measured.leaks:
        if leak.kind == "batch" and leak.held < ROUNDING:
            yield Reading(site=leak.site, value=leak.moved, evidence={"held": leak.held})
