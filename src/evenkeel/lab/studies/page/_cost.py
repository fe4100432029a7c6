"""What a study says of the arms' cost: the time of a step and the share of it in norms, measured in turn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel.lab.studies.page._arms import Arm
from evenkeel.lab.studies.page._words import percent, sentences, spoken, times
from evenkeel.report import Axis, Figure, Row, Style, bars, format_number, join_words

WITHIN_A_STEP = 3  # times as long as alone is the most that norms take; BatchNorm was measured at two and a half
EVEN = 1.01  # ratios closer than this are one
LEFT_OUT = 6  # from this number of rounds on, an interval leaves out the lowest and the highest


@dataclass(frozen=True)
class Interval:
    """A median of rounds, and a range that holds the true one in 96 % of cases with nine rounds."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """The interval of some rounds."""
        ordered = sorted(values)
        inner = ordered[1:-1] if len(ordered) >= LEFT_OUT else ordered
        return Interval(statistics.median(ordered), inner[0], inner[-1])

    def scaled(self, factor: float) -> Interval:
        """The same in another unit."""
        return Interval(factor * self.value, factor * self.low, factor * self.high)


@dataclass(frozen=True)
class Cost:
    """What the arms cost, by name.

    Attributes:
        steps: seconds of a step.
        shares: part of a step that the norms take, timed alone: at least this.
        base: the arm that others are compared with: the one without norm, else the fastest.
        ratios: a step over the base's step of the same round.
    """

    steps: dict[str, Interval]
    shares: dict[str, Interval]
    base: str
    ratios: dict[str, Interval]

    def differs(self, name: str) -> bool:
        """Whether an arm's step is told apart from the base's by the rounds."""
        return not self.ratios[name].low <= 1 <= self.ratios[name].high

    def slower(self, name: str) -> bool:
        """Whether an arm's step takes surely longer than the base's, by what its norms can explain.

        That is once to three times what they take alone: less or more comes from other load on the machine.
        """
        ratio, share = self.ratios[name], self.shares[name]
        least, most = (1 / (1 - min(part, 0.99)) for part in (share.low, WITHIN_A_STEP * share.value))
        return ratio.low > 1 and ratio.high >= least / EVEN and ratio.value <= most


def cost_of(summary: Mapping[str, Any], arms: Sequence[Arm]) -> Cost | None:
    """What was measured at the study's end, or None."""
    costs = {arm.name: cost for arm in arms if (cost := (summary.get("costs") or {}).get(arm.name))}
    if not costs:
        return None
    steps = {name: cost["step_seconds"] for name, cost in costs.items()}
    typical = {name: statistics.median(values) for name, values in steps.items()}
    plain = [arm.name for arm in arms if arm.name in costs and arm.plain]
    base = plain[0] if plain else min(typical, key=typical.__getitem__)
    return Cost(
        {name: Interval.of(values) for name, values in steps.items()},
        {name: Interval.of(quotients(cost["norm_seconds"], steps[name])) for name, cost in costs.items()},
        base,
        {name: Interval.of(quotients(values, steps[base])) for name, values in steps.items()},
    )


def quotients(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The quotient in every round."""
    return [value / other if other else 0.0 for value, other in zip(values, others, strict=True)]


def cost_figure(
    arms: Sequence[Arm], cost: Cost | None, styles: Mapping[str, Style], machine: Mapping[str, object]
) -> Figure | None:
    """Time of a training step and the share of it spent in norms."""
    if cost is None:
        return None
    notes = {
        name: f"× {format_number(ratio.value)}" if cost.slower(name) else "" for name, ratio in cost.ratios.items()
    }
    heading = f"Step time (×: relative to {spoken(cost.base)})" if len(cost.steps) > 1 else "Step time"
    steps = [_row(name, interval.scaled(1000), notes[name]) for name, interval in cost.steps.items()]
    shares = [_row(name, interval.scaled(100), "") for name, interval in cost.shares.items()]
    axes = Axis("time of a training step (ms)"), Axis("share of the step spent in norms (%)")
    panels = [
        bars(steps, x=axes[0], styles=styles, heading=heading, unit=" ms"),
        bars(shares, x=axes[1], styles=styles, heading="Share of norms", unit=" %"),
    ]
    timed = [arm for arm in arms if arm.name in cost.steps]
    method = (
        "All arms in turn, at the study's end; a bar is the median of the rounds, the whisker what most rounds lie in. "
        "Norms are timed alone, where their input is in the cache: their share is a lower bound."
    )
    return Figure(
        name="cost",
        title=cost_title(cost),
        caption=sentences(method, ratio_sentence(cost), _unlike(timed), _machine(machine)),
        panels=panels,
    )


def _row(name: str, interval: Interval, note: str) -> Row:
    return Row(name, interval.value, low=interval.low, high=interval.high, note=note)


def cost_title(cost: Cost) -> str:
    """What norms cost, in one sentence."""
    shares = {name: share for name, share in cost.shares.items() if share.value > 0}
    if not shares:
        name = next(iter(cost.steps))
        return f"A training step of {spoken(name)} takes {format_number(1000 * cost.steps[name].value)} ms"
    ordered = sorted(shares, key=lambda name: shares[name].value)
    least, most = ordered[0], ordered[-1]
    if shares[least].high >= shares[most].low:  # not told apart
        return f"Norms take up to {percent(shares[most].value)} of a training step"
    low, high = (format_number(100 * shares[name].value) for name in (least, most))
    surely = all(shares[name].high < shares[most].low for name in ordered[:-1])
    return f"Norms take {low} to {high} % of a training step{f', most in {most}' if surely else ''}"


def ratio_sentence(cost: Cost) -> str:
    """Which arms' steps surely take longer, and for which no difference is seen."""
    others = [name for name in cost.steps if name != cost.base]
    slower = [name for name in others if cost.slower(name)]
    same = [name for name in others if not cost.differs(name)]
    disturbed = [name for name in others if cost.differs(name) and name not in slower]
    told = [f"{name} {times(cost.ratios[name].value)}" for name in slower]
    parts = [f"A step takes, of the time of {spoken(cost.base)}: {join_words(told)}."] if told else []
    if same:
        parts.append(f"The rounds cannot tell a step of {join_words(same)} from one of {spoken(cost.base)}.")
    if disturbed:
        parts.append(f"What a step of {join_words(disturbed)} took does not fit its norms: other load disturbed it.")
    return " ".join(parts)


def _unlike(arms: Sequence[Arm]) -> str:
    names = {"feed_forward": "feed-forward", "qk_norm": "QK-norm"}
    unlike = [text for key, text in names.items() if len({run.get(key) for arm in arms for run in arm.runs}) > 1]
    return f"The arms also differ in {join_words(unlike)}, which costs time of its own." if unlike else ""


def _machine(machine: Mapping[str, object]) -> str:
    parts = [str(machine["processor"])] if machine.get("processor") else []
    if machine.get("threads"):
        parts.append(f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}")
    return f"Measured on {', '.join(parts)}." if parts else ""
