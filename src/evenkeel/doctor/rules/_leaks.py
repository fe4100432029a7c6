"""Readings of what flows where it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading
from evenkeel.doctor.rules._rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements

__all__ = ["RULES"]

GROUP = "Leaks"

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


RULES: tuple[Rule, ...] = (
    Rule(
        id="padding-pollutes",
        group=GROUP,
        severity="warning",
        quantity="movement of statistics by padding",
        threshold=0.1,
        applies="the mask leaves positions out, over which {site} takes its statistics",
        message="padding moves the statistics of {site} by {value:.2g} deviations of the real elements",
        remedy="norm = ek.nn.BatchNorm1d(channels)  # takes the mask: norm(x, mask)",
        source="evenkeel, lesson 4: padding is averaged in",
        read=polluting_padding,
    ),
    Rule(
        id="causal-leak",
        group=GROUP,
        severity="critical",
        quantity="movement of earlier outputs",
        threshold=1e-4,
        applies="information goes forward in time alone once the statistics of {site} are kept",
        message="the last position moves earlier outputs by {value:.2g} deviations, through the statistics of {site}",
        remedy="norm = torch.nn.LayerNorm(channels)  # over features at each position, instead of {site}",
        source="by definition of a causal model; measured with and without the statistics",
        read=causal_leak,
    ),
    Rule(
        id="batch-dependence",
        group=GROUP,
        severity="critical",
        quantity="movement of a row's output by other rows",
        threshold=1e-4,
        applies="the model was in evaluation, and no row depends on another once the statistics of {site} are kept",
        message="other rows move a row's output by {value:.2g} deviations in evaluation, through {site}",
        remedy="norm = torch.nn.BatchNorm2d(channels, track_running_stats=True)  # {site}",
        source="by definition: a prediction must not depend on its neighbours; measured with and without the "
        "statistics",
        read=batch_dependence,
    ),
)
