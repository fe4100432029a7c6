"""The progress of studies and experiments: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenkeel._progress import ProgressContext, say, shows_bars
from evenkeel.lab.experiments import VERDICTS, Claim, Experiment, ExperimentObserver
from evenkeel.lab.studies import Observer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from evenkeel._options.arms import Arm

__all__ = ["Bars", "ExperimentLines", "Lines", "make_observer"]


class Bars(ProgressContext, Observer):
    """Two bars on stderr: the arm at hand, with loss and tokens per second, and the whole study, with the time left.

    Args:
        steps: of each arm.
        runs: arms times seeds.
    """

    def __init__(self, steps: int, runs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.steps, self.runs, self.done = steps, runs, 0
        self.progress: Progress = Progress(
            TextColumn("{task.description:<20.20}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[facts]:<32}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.study: TaskID = self.progress.add_task("study", total=steps * runs, facts="", start=False)
        self.bar: TaskID = self.progress.add_task("", total=steps, facts="", visible=False)

    def arm_skipped(self, arm: Arm, seed: int) -> None:
        """Leave the arm out of what there is to do."""
        self.runs -= 1
        self.progress.update(self.study, total=self.runs * self.steps)

    def arm_started(self, arm: Arm, seed: int, step: int) -> None:
        """Show the arm's bar from this step."""
        self.progress.start_task(self.study)
        self.progress.reset(self.bar, description=f"{arm.name} seed {seed}", completed=step, visible=True)

    def step_done(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Advance both bars."""
        facts = f"loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
        self.progress.update(self.bar, completed=step, facts=facts)
        self.progress.update(self.study, completed=self.done * self.steps + step, facts=f"{self.done}/{self.runs} arms")

    def arm_ended(self, arm: Arm, seed: int, status: str) -> None:
        """Leave a line about the arm above the bars."""
        self.done += 1
        self.progress.update(self.study, completed=self.done * self.steps, facts=f"{self.done}/{self.runs} arms")
        self.progress.console.print(f"{arm.name} seed {seed}: {status}", markup=False, highlight=False)


class Lines(ProgressContext, Observer):
    """One line on stderr at each validation.

    Args:
        steps: of each arm.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.label = ""
        self.facts = ""
        self.first = 0
        self.started = 0.0

    def arm_started(self, arm: Arm, seed: int, step: int) -> None:
        """Remember which arm the next lines are about."""
        self.label, self.facts, self.first, self.started = f"{arm.name} seed {seed}", "", step, time.monotonic()

    def step_done(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Remember what the next line says."""
        left = seconds_left(self.started, step - self.first, self.steps - step)
        self.facts = f", loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s, {left:.0f} s left for this arm"

    def validated(self, step: int, loss: float) -> None:
        """Print a line."""
        say(f"{self.label}: step {step}/{self.steps}, validation loss {loss:.3f}{self.facts}")

    def arm_ended(self, arm: Arm, seed: int, status: str) -> None:
        """Print how the arm ended."""
        say(f"{self.label}: {status}")


class Silent(ProgressContext, Observer):
    """Shows nothing."""


class ExperimentLines(ExperimentObserver):
    """A line on stderr when an experiment begins and ends, and every few seconds between."""

    every = 5.0  # seconds

    def __init__(self) -> None:
        self.title = ""
        self.started = self.said = time.monotonic()
        self.first = 0

    def experiment_started(self, experiment: Experiment, done: int, total: int) -> None:
        """Say which, and what is kept from before."""
        kept = f", {done} kept from before" if done else ""
        say(f"{experiment.name}: {total} trials{kept}")
        self.title, self.first = experiment.name, done
        self.started = self.said = time.monotonic()

    def trial_done(self, trial: Mapping[str, Any], done: int, total: int) -> None:
        """Say how far it is and how long it will take."""
        now = time.monotonic()
        if now - self.said >= self.every:
            left = seconds_left(self.started, done - self.first, total - done)
            say(f"{self.title}: {done}/{total} trials, about {left:.0f} s left")
            self.said = now

    def experiment_ended(self, experiment: Experiment, claims: Sequence[Claim]) -> None:
        """Say how the claims fared."""
        counts = [
            f"{number} {text}" for key, text in VERDICTS.items() if (number := sum(c.verdict == key for c in claims))
        ]
        say(f"{experiment.name}: {', '.join(counts) or 'no claims'}")


def seconds_left(started: float, done: int, left: int) -> float:
    """Return how long the steps that are left take at the pace of those done since the start."""
    return (time.monotonic() - started) / done * left


def make_observer(steps: int, runs: int, *, quiet: bool) -> Bars | Lines | Silent:
    """Return what shows a study's progress: bars on a terminal, lines elsewhere, nothing if quiet."""
    if quiet:
        return Silent()
    return Bars(steps, runs) if shows_bars() else Lines(steps)
