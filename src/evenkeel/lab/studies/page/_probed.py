"""What the probes of a study saw, as curves over the seeds: the stream by layer, gradients by block, norms in a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel.lab.studies.page._arms import Arm, Curve, Run, finite, named, over_seeds
from evenkeel.report import Series

Probe = Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """A training step at which runs were probed for one kind of measurement."""

    step: int
    key: str

    @property
    def heading(self) -> str:
        """The moment in words."""
        return f"after step {self.step}" if self.step else "at initialization"

    def rows(self, run: Run) -> Sequence[Mapping[str, Any]]:
        """What a run's probe at this step measured, if it has one."""
        measured = (probe[self.key] for probe in _probes(run, self.key) if probe["step"] == self.step)
        rows = next(measured, ())
        return [rows] if isinstance(rows, Mapping) else rows

    def curves(self, arms: Sequence[Arm], measure: Callable[[Sequence[Mapping[str, Any]]], Curve]) -> list[Series]:
        """One curve an arm of what is measured from the rows of a probe."""
        return [over_seeds(arm, lambda run: measure(self.rows(run))) for arm in arms]

    def absent(self, arms: Sequence[Arm]) -> str:
        """A sentence that names the arms without a probe at this step, or nothing."""
        missing = [arm for arm in arms if not any(self.rows(run) for run in arm.typical_runs)]
        verb = "has" if len(missing) == 1 else "have"
        return f"{named(missing)} {verb} no measurement {self.heading}." if missing else ""


def stages(arms: Iterable[Arm], key: str) -> list[Stage]:
    """The first and the last step at which any typical run has this kind of measurement; one if they coincide."""
    steps = {probe["step"] for arm in arms for run in arm.typical_runs for probe in _probes(run, key)}
    return [Stage(step, key) for step in sorted({min(steps), max(steps)})] if steps else []


def _probes(run: Run, key: str) -> list[Probe]:
    return [probe for probe in run.get("probes", ()) if probe.get(key)]


def by_layer(rows: Sequence[Mapping[str, Any]], key: str) -> Curve:
    """A measurement of the residual stream by layer; layer 0 is the embedding's output."""
    return {row["layer"]: row.get(key) for row in rows}


def block_gradients(rows: Sequence[Mapping[str, Any]]) -> Curve:
    """Root of the summed squares of a block's attention and feed-forward gradient norms, by block counted from 1."""
    squares: Curve = {}
    for row in rows:
        if row.get("block") is None or not str(row["group"]).endswith((".attention", ".feed_forward")):
            continue
        block, norm = row["block"] + 1, row.get("norm")
        before = squares.get(block, 0.0)
        squares[block] = before + norm**2 if before is not None and finite(norm) else None
    return {block: None if square is None else math.sqrt(square) for block, square in squares.items()}


def around_norms(rows: Sequence[Mapping[str, Any]], key: str) -> Curve:
    """The size of the values before or after every norm, by the norm's place in the order of the forward pass."""
    return {number: row.get(key) for number, row in enumerate(rows, start=1)}


def growth_of(curves: Iterable[Series]) -> dict[str, float]:
    """RMS at the last layer over RMS at the first, by arm."""
    ends = ((curve.name, curve.y[0], curve.y[-1]) for curve in curves if len(curve.y) > 1)
    return {name: last / first for name, first, last in ends if finite(first) and finite(last) and first > 0}
