"""A study's summary arranged for its page: the runs of one arm together, and their measurements over seeds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from evenkeel._errors import StudyError
from evenkeel.report import Series, format_number, join_words

FORMAT = 1

Run = Mapping[str, Any]
Probe = Mapping[str, Any]

LEAK_NOTE = "leaks: not comparable"


@dataclass(frozen=True)
class Arm:
    """All runs of one arm, one a seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def leaks(self) -> bool:
        """Whether statistics over positions or examples let the loss see what it should not."""
        return any(run.get("leaks", False) for run in self.runs)

    @property
    def broken(self) -> bool:
        """Whether every run diverged."""
        return all(run["status"] == "diverged" for run in self.runs)

    @property
    def shown(self) -> tuple[Run, ...]:
        """The runs that stand for the arm: the finished ones, else the running ones, else the diverged ones.

        A mean over runs of different lengths would jump where one of them ends.
        """
        groups = (self.with_status(status) for status in ("finished", "running", "diverged"))
        return next((group for group in groups if group), self.runs)

    @property
    def final_losses(self) -> tuple[float, ...]:
        """Final validation loss of every finished run, in nats per byte."""
        losses = (run.get("final_validation_loss") for run in self.with_status("finished"))
        return tuple(loss for loss in losses if loss is not None and math.isfinite(loss))

    def with_status(self, status: str) -> tuple[Run, ...]:
        """The runs that ended, or stand, in this way."""
        return tuple(run for run in self.runs if run["status"] == status)

    def fate(self) -> str:
        """How the runs ended if not all of them finished, in a few words; else empty."""
        parts = []
        for status, alone in (("diverged", "diverged at step"), ("running", "unfinished: step")):
            runs = self.with_status(status)
            if runs and len(runs) == len(self.runs):
                steps = sorted({last_step(run) for run in runs})
                parts.append(f"{alone} {' to '.join(str(step) for step in (steps[0], steps[-1])[: len(steps)])}")
            elif runs:
                word = "unfinished" if status == "running" else status
                parts.append(f"{len(runs)} of {len(self.runs)} seeds {word}")
        return ", ".join(parts)

    def note(self) -> str:
        """The remark that belongs beside the arm's loss wherever it is shown."""
        return "; ".join(part for part in (LEAK_NOTE if self.leaks else "", self.fate()) if part)


def group_arms(summary: Mapping[str, Any]) -> list[Arm]:
    """The arms of a summary in its order, each with the runs of all its seeds."""
    if summary.get("format") != FORMAT:
        raise StudyError(
            f"the summary has format {summary.get('format')!r}, this version reads format {FORMAT}; "
            "run the study again or use the evenkeel version that wrote it"
        )
    runs: dict[str, list[Run]] = {}
    for run in summary.get("arms", ()):
        runs.setdefault(str(run["name"]), []).append(run)
    return [Arm(name, tuple(group)) for name, group in runs.items()]


def last_step(run: Run) -> int:
    """The last step that a run has recorded."""
    steps = [*run.get("train", {}).get("step", ()), *run.get("validation", {}).get("step", ())]
    return max(steps, default=0)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def finite(value: float | None) -> TypeGuard[float]:
    """Whether a measurement exists and is a number."""
    return value is not None and math.isfinite(value)


def over_seeds(arm: Arm, measure: Callable[[Run], Mapping[float, float | None]], *, remarks: bool = False) -> Series:
    """The mean over an arm's shown runs of a measurement by position, with its range where there are several runs.

    With `remarks` the curve carries the arm's remark and, if every run diverged, the cross at its end.
    """
    measured = [dict(measure(run)) for run in arm.shown]
    positions = sorted({position for values in measured for position in values})
    columns = [[v for values in measured if finite(v := values.get(x))] for x in positions]
    several = len(measured) > 1
    return Series(
        arm.name,
        positions,
        [mean(column) if column else None for column in columns],
        low=[min(column, default=None) for column in columns] if several else None,
        high=[max(column, default=None) for column in columns] if several else None,
        note=arm.note() if remarks else "",
        broken=remarks and arm.broken,
    )


@dataclass(frozen=True)
class Stage:
    """A training step at which runs were probed for one kind of measurement."""

    step: int
    key: str

    @property
    def heading(self) -> str:
        """The moment in words."""
        return f"after step {self.step}" if self.step else "at initialization"

    def pick(self, run: Run) -> Probe | None:
        """The probe of a run at this step, if it has one."""
        return next((probe for probe in _probes(run, self.key) if probe["step"] == self.step), None)

    def absent(self, arms: Sequence[Arm]) -> str:
        """A sentence that names the arms without a probe at this step, or nothing."""
        names = [spoken(arm.name) for arm in arms if not any(self.pick(run) for run in arm.shown)]
        verb = "has" if len(names) == 1 else "have"
        return f"{join_words(names)} {verb} no measurement {self.heading}." if names else ""


def stages(arms: Iterable[Arm], key: str) -> list[Stage]:
    """The first and the last step at which any shown run has this kind of measurement; one if they coincide."""
    steps = {probe["step"] for arm in arms for run in arm.shown for probe in _probes(run, key)}
    return [Stage(step, key) for step in sorted({min(steps), max(steps)})] if steps else []


def _probes(run: Run, key: str) -> list[Probe]:
    return [probe for probe in run.get("probes", ()) if probe.get(key)]


def by_layer(probe: Probe | None, key: str) -> dict[float, float | None]:
    """A measurement of the residual stream by layer; layer 0 is the embedding's output."""
    return {row["layer"]: row.get(key) for row in (probe or {}).get("residual", ())}


def spoken(name: str) -> str:
    """An arm's name within a sentence: "none diverged" would say the opposite of what is meant."""
    return "the arm without norm" if name == "none" else name


def opening(text: str) -> str:
    """Text that starts a sentence: only the article gets a capital, names are kept as they are."""
    return f"The{text[3:]}" if text.startswith("the ") else f"In{text[2:]}" if text.startswith("in ") else text


def loss_text(value: float) -> str:
    """A loss with three decimals."""
    return f"{value:.3f}"


def rounded_gap(low: float, high: float) -> float:
    """The difference of two losses as a reader would compute it from their three decimals."""
    return float(loss_text(high)) - float(loss_text(low))


def gap_text(low: float, high: float) -> str:
    """The difference of two losses in words; never zero for losses that differ."""
    gap = loss_text(rounded_gap(low, high))
    return "less than 0.001" if gap == "0.000" and high != low else gap


def times(ratio: float) -> str:
    """A ratio in words."""
    return f"{format_number(ratio)} times"


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{format_number(100 * share)} %"


def sentences(*parts: str) -> str:
    """The non-empty parts as one paragraph."""
    return " ".join(opening(part) for part in parts if part)


def seeds_sentence(arms: Sequence[Arm]) -> str:
    """What a line and a band stand for, where there are several seeds."""
    counts = sorted({len(arm.shown) for arm in arms})
    if counts[-1:] == [1] or not counts:
        return ""
    return f"Lines are means over {' to '.join(map(str, counts))} seeds, bands their range."


def leak_sentence(arms: Sequence[Arm]) -> str:
    """The warning that belongs with the loss of every arm whose norm shares statistics over a causal sequence."""
    names = [spoken(arm.name) for arm in arms if arm.leaks]
    if not names:
        return ""
    possessive = "its loss is" if len(names) == 1 else "their losses are"
    return (
        f"{join_words(names)}: BatchNorm in a causal model leaks information across positions and examples, "
        f"so {possessive} not comparable with the others."
    )
