"""The progress of studies and experiments: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenkeel._progress import ProgressContext, say, shows_bars
from evenkeel.lab.experiments import VERDICTS, Claim, Experiment, ExperimentObserver
from evenkeel.lab.studies import Observer, Run, Spent

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Bars", "ExperimentLines", "Lines", "make_observer"]


class Pace:
    """How far a study is, in steps, and how long the rest takes at the pace so far; a diverged run leaves none."""

    def __init__(self, steps: int, runs: int) -> None:
        self.steps, self.runs, self.ended = steps, runs, 0
        self.at: dict[Run, int] = {}
        self.made = 0
        self.began = 0.0

    def start(self, run: Run, step: int) -> None:
        """A run begins or goes on at this step."""
        self.began = self.began or time.monotonic()
        self.at[run] = step

    def advance(self, run: Run, step: int) -> None:
        """A run has made steps."""
        self.made += step - self.at.get(run, step)
        self.at[run] = step

    def end(self, run: Run) -> None:
        """A run has ended."""
        self.at.pop(run, None)
        self.ended += 1

    @property
    def done(self) -> int:
        """Steps done or not needed any more."""
        return self.ended * self.steps + sum(self.at.values())

    def left(self) -> str:
        """Return how long the rest takes, in words behind a comma; nothing before the first step."""
        rest = self.runs * self.steps - self.done
        return f", {minutes((time.monotonic() - self.began) / self.made * rest)} left" if self.made else ""


class Bars(ProgressContext, Observer):
    """Bars on stderr: the whole study with the time left, and each run at hand with loss and tokens per second.

    Args:
        steps: of each run.
        runs: how many there are.
    """

    def __init__(self, steps: int, runs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.pace = Pace(steps, runs)
        self.progress: Progress = Progress(
            TextColumn("{task.description:<36.36}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]:<36}", markup=False),
            console=Console(stderr=True),
        )
        self.study: TaskID = self.progress.add_task("study", total=steps * runs, facts="")
        self.bars: dict[Run, TaskID] = {}

    def run_skipped(self, run: Run) -> None:
        """Leave the run out of what there is to do."""
        self.pace.runs -= 1
        self.progress.update(self.study, total=self.pace.runs * self.pace.steps)

    def run_started(self, run: Run, step: int) -> None:
        """Show the run's bar from this step."""
        self.pace.start(run, step)
        if run not in self.bars:
            self.bars[run] = self.progress.add_task(run.label, total=self.pace.steps, completed=step, facts="")

    def step_done(self, run: Run, step: int, loss: float, tokens_per_second: float) -> None:
        """Advance both bars."""
        self.pace.advance(run, step)
        self.progress.update(
            self.bars[run], completed=step, facts=f"loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
        )
        self._show_study()

    def run_ended(self, run: Run, status: str) -> None:
        """Show the run's last step, however fast it came, and remove its bar."""
        self.pace.end(run)
        self.progress.refresh()
        self.progress.remove_task(self.bars.pop(run))
        self._show_study()

    def worker_lost(self, run: Run, reason: str) -> None:
        """Leave a line above the bars."""
        self.progress.console.print(lost_line(run, reason), markup=False, highlight=False)

    def text_laid_out(self, size: int) -> None:
        """Show how much there is."""
        self.progress.update(self.study, facts=f"laying out the text: {size / 2**20:,.0f} MiB")

    def study_estimated(self, spent: Spent) -> None:
        """Leave a line above the bars."""
        self.progress.console.print(estimate_line(spent), markup=False, highlight=False)

    def study_trained(self, spent: Spent) -> None:
        """Leave a line above the bars."""
        self.progress.console.print(spent_line(spent), markup=False, highlight=False)

    def costs_started(self, arms: int) -> None:
        """Say what the last seconds are for."""
        self.progress.update(self.study, facts=f"timing the steps of {arms} arms in turn")

    def _show_study(self) -> None:
        pace = self.pace
        facts = f"{pace.ended}/{pace.runs} runs{pace.left()}"
        self.progress.update(self.study, completed=pace.done, facts=facts)


class Lines(ProgressContext, Observer):
    """A line on stderr when a run ends, and every few seconds at a validation.

    Args:
        steps: of each run.
        runs: how many there are.
    """

    every = 10.0  # seconds

    def __init__(self, steps: int, runs: int) -> None:
        self.pace = Pace(steps, runs)
        self.losses: dict[Run, float] = {}
        self.speeds: dict[Run, float] = {}
        self.said = time.monotonic()

    def run_skipped(self, run: Run) -> None:
        """Leave the run out of what there is to do."""
        self.pace.runs -= 1

    def run_started(self, run: Run, step: int) -> None:
        """Count from this step on."""
        self.pace.start(run, step)

    def step_done(self, run: Run, step: int, loss: float, tokens_per_second: float) -> None:
        """Remember what the next line says."""
        self.pace.advance(run, step)
        self.speeds[run] = tokens_per_second

    def validated(self, run: Run, step: int, loss: float) -> None:
        """Say how far a long run is."""
        self.losses[run] = loss
        if time.monotonic() - self.said >= self.every:
            self._say(f"{run.label}: step {step}/{self.pace.steps}, validation loss {loss:.3f}", run)

    def run_ended(self, run: Run, status: str) -> None:
        """Say how the run ended."""
        step = self.pace.at.get(run, 0)
        self.pace.end(run)
        count = f"{self.pace.ended}/{self.pace.runs}"
        loss = f", validation loss {self.losses.get(run, math.nan):.3f}" if status == "finished" else ""
        self._say(f"{count} {run.label}: {status} at step {step}/{self.pace.steps}{loss}", run)

    def worker_lost(self, run: Run, reason: str) -> None:
        """Say what happened and what follows."""
        say(lost_line(run, reason))

    def text_laid_out(self, size: int) -> None:
        """Say how much there is, every few seconds."""
        if time.monotonic() - self.said >= self.every:
            say(f"laying out the text: {size / 2**20:,.0f} MiB")
            self.said = time.monotonic()

    def study_estimated(self, spent: Spent) -> None:
        """Say what is to be expected."""
        say(estimate_line(spent))

    def study_trained(self, spent: Spent) -> None:
        """Say what became of it."""
        say(spent_line(spent))

    def costs_started(self, arms: int) -> None:
        """Say what the last seconds are for."""
        say(f"timing the steps of {arms} arms in turn")

    def _say(self, text: str, run: Run) -> None:
        speed = f", {self.speeds[run]:,.0f} tokens/s" if run in self.speeds else ""
        say(f"{text}{speed}{self.pace.left()}")
        self.said = time.monotonic()


def lost_line(run: Run, reason: str) -> str:
    """Return what to tell of a run whose process was lost."""
    return f"{run.label}: its process {reason}; another one goes on from the last checkpoint"


def estimate_line(spent: Spent) -> str:
    """Return what to tell before the first run."""
    about = "" if spent.estimated_seconds is None else "about "
    return f"the trainings will take {about}{estimated_text(spent)}"


def spent_line(spent: Spent) -> str:
    """Return what to tell after the last run."""
    return f"the trainings took {spent_text(spent.seconds, spent.bytes)} (estimated: {estimated_text(spent)})"


def estimated_text(spent: Spent) -> str:
    """Return what was estimated, and what that leaves out, in words."""
    beside = f", beside {spent.uncounted}" if spent.uncounted else ""
    return f"{spent_text(spent.estimated_seconds, spent.estimated_bytes)}{beside}"


def spent_text(seconds: float | None, size: int | None) -> str:
    """Return a time and the memory of a worker in words."""
    time_text = "an unknown time" if seconds is None else minutes(seconds)
    if size is None:
        return time_text
    memory = f"{size / 2**30:.2f} GiB" if size >= 1 << 27 else f"{size / 2**20:.1f} MiB"
    return f"{time_text} and {memory} of memory a worker"


def minutes(seconds: float) -> str:
    """Return a time to go in minutes and seconds."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


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

    def worker_lost(self, trial: Mapping[str, Any], reason: str) -> None:
        """Say what happened and what follows."""
        named = ", ".join(f"{name} {value}" for name, value in trial.items())
        say(f"{self.title} ({named}): its process {reason}; another one measures it")

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
    return Bars(steps, runs) if shows_bars() else Lines(steps, runs)
