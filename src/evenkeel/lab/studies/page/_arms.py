"""A study's summary arranged for its page: the runs of one arm together, and their measurements over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from evenkeel._errors import StudyError
from evenkeel.lab.runner import FORMAT
from evenkeel.lab.studies.page._words import spoken
from evenkeel.report import Series, join_words

Run = Mapping[str, Any]
Curve = dict[float, float | None]  # a measurement by position: step, block or layer

LEAK_NOTE = "leaks: not comparable"


@dataclass(frozen=True)
class Arm:
    """All runs of one arm, one a seed."""

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
    def typical_runs(self) -> tuple[Run, ...]:
        """The runs that stand for the arm: the finished ones, else the running ones, else the diverged ones.

        A mean over runs of different lengths would jump where one of them ends.
        """
        groups = (self.with_status(status) for status in ("finished", "running", "diverged"))
        return next((group for group in groups if group), self.runs)

    @property
    def final_losses(self) -> tuple[float, ...]:
        """Final validation loss of every finished run, in nats per byte."""
        return tuple(filter(finite, (run.get("final_validation_loss") for run in self.with_status("finished"))))

    @property
    def loss(self) -> float:
        """The mean of the final losses, of which there must be one."""
        return mean(self.final_losses)

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


def ranked(arms: Iterable[Arm]) -> list[Arm]:
    """The arms that finished with a comparable loss, lowest mean first."""
    return sorted((arm for arm in arms if arm.final_losses and not arm.leaks), key=lambda arm: arm.loss)


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


def costs(arm: Arm, key: str) -> list[float]:
    """The finite values of a cost over an arm's runs."""
    return list(filter(finite, ((run.get("cost") or {}).get(key) for run in arm.runs)))


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
