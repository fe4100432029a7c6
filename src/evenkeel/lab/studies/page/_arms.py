"""A study's summary arranged for its page: the runs of one arm together, and their measurements over seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from evenkeel._errors import StudyError
from evenkeel.lab.studies._schemas import STUDY_FORMAT
from evenkeel.lab.studies.page._words import spoken
from evenkeel.report import Series, join_words

Run = Mapping[str, Any]
Curve = dict[float, float | None]  # a measurement by position: step, block or layer

LEAK_NOTE = "leaks: not comparable"


@dataclass(frozen=True)
class Arm:
    """Runs of one arm: at every learning rate, or at one."""

    name: str
    runs: tuple[Run, ...]

    @property
    def spoken(self) -> str:
        """The name within a sentence."""
        return spoken(self.name)

    @property
    def plain(self) -> bool:
        """Whether the arm has no norm."""
        return all(run.get("norm") == "none" for run in self.runs)

    @property
    def leaks(self) -> bool:
        """Whether statistics over positions or examples let the loss see what it should not."""
        return any(run.get("leaks", False) for run in self.runs)

    @property
    def broken(self) -> bool:
        """Whether every run diverged."""
        return all(run["status"] == "diverged" for run in self.runs)

    @property
    def complete(self) -> bool:
        """Whether every run finished with a loss."""
        return len(self.final_losses) == len(self.runs)

    @property
    def typical_runs(self) -> tuple[Run, ...]:
        """The runs that stand for the arm: the finished ones, else the running ones, else the diverged ones.

        A mean over runs of different lengths would jump where one of them ends.
        """
        groups = (self.with_status(status) for status in ("finished", "running", "diverged"))
        return next((group for group in groups if group), self.runs)

    @property
    def final_losses(self) -> tuple[float, ...]:
        """Final validation loss of every finished run, in nats."""
        return tuple(filter(finite, (run.get("final_validation_loss") for run in self.with_status("finished"))))

    @property
    def loss(self) -> float:
        """The mean of the final losses, of which there must be one."""
        return mean(self.final_losses)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates of the runs, lowest first."""
        return tuple(sorted({run["lr"] for run in self.runs}))

    def at(self, rate: float) -> Arm:
        """The arm's runs at one learning rate."""
        return dataclasses.replace(self, runs=tuple(run for run in self.runs if run["lr"] == rate))

    @property
    def best(self) -> Arm:
        """The arm at its best learning rate: most seeds finished, then the lowest mean loss, then the longest runs."""

        def order(arm: Arm) -> tuple[float, float, int]:
            finished = len(arm.final_losses) / len(arm.runs)
            return -finished, arm.loss if arm.final_losses else math.inf, -max(map(last_step, arm.runs))

        return min((self.at(rate) for rate in self.rates), key=order)

    def with_status(self, status: str) -> tuple[Run, ...]:
        """The runs that ended, or stand, in this way."""
        return tuple(run for run in self.runs if run["status"] == status)

    def fate(self) -> str:
        """How the runs ended if not all of them finished, in a few words; else empty."""
        parts = []
        for status, word, alone in (
            ("diverged", "diverged", "diverged at step"),
            ("running", "unfinished", "unfinished: step"),
        ):
            runs = self.with_status(status)
            steps = sorted({last_step(run) for run in runs})
            if runs and len(runs) == len(self.runs):
                parts.append(f"{alone} {' to '.join(map(str, dict.fromkeys((steps[0], steps[-1]))))}")
            elif runs:
                parts.append(f"{len(runs)} of {len(self.runs)} runs {word}")
        return ", ".join(parts)

    def note(self) -> str:
        """The remark that belongs beside the arm's loss wherever it is shown."""
        return "; ".join(part for part in (LEAK_NOTE if self.leaks else "", self.fate()) if part)


def group_arms(summary: Mapping[str, Any]) -> list[Arm]:
    """The arms of a summary in its order, each with the runs of all its rates and seeds."""
    if summary.get("format") != STUDY_FORMAT:
        raise StudyError(
            f"the summary has format {summary.get('format')!r}, this version reads format {STUDY_FORMAT}; "
            "run the study again or use the evenkeel version that wrote it"
        )
    runs: dict[str, list[Run]] = {}
    for run in summary.get("arms", ()):
        runs.setdefault(str(run["name"]), []).append(run)
    return [Arm(name, tuple(group)) for name, group in runs.items()]


def all_rates(arms: Iterable[Arm]) -> list[float]:
    """Every learning rate of a study, lowest first."""
    return sorted({rate for arm in arms for rate in arm.rates})


def ranked(arms: Iterable[Arm]) -> list[Arm]:
    """The arms that finished with a comparable loss, lowest mean first."""
    return sorted((arm for arm in arms if arm.final_losses and not arm.leaks), key=lambda arm: arm.loss)


def without_twins(arms: Sequence[Arm]) -> list[Arm]:
    """The arms without those that differ from another one by their warm-up only: before training they are the same."""
    names = {arm.name for arm in arms}
    return [arm for arm in arms if "+" not in arm.name or arm.name.partition("+")[0] not in names]


def named(arms: Iterable[Arm]) -> str:
    """The arms' names in a sentence."""
    return join_words([arm.spoken for arm in arms])


def last_step(run: Run) -> int:
    """The last step that a run has recorded."""
    return max((step for kind in ("train", "validation") for step in run.get(kind, {}).get("step", ())), default=0)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def finite(value: float | None) -> TypeGuard[float]:
    """Whether a measurement exists and is a number."""
    return value is not None and math.isfinite(value)


def over_seeds(arm: Arm, measure: Callable[[Run], Curve], *, remarks: bool = False) -> Series:
    """The mean over an arm's typical runs of a measurement by position, with its range where there are several runs.

    With `remarks` the curve carries the arm's remark and, if every run diverged, the cross at its end.
    """
    curves = [measure(run) for run in arm.typical_runs]
    positions = sorted({position for curve in curves for position in curve})
    columns = [list(filter(finite, (curve.get(position) for curve in curves))) for position in positions]
    several = len(curves) > 1
    return Series(
        arm.name,
        positions,
        [mean(column) if column else None for column in columns],
        low=[min(column, default=None) for column in columns] if several else None,
        high=[max(column, default=None) for column in columns] if several else None,
        note=arm.note() if remarks else "",
        broken=remarks and arm.broken,
    )
