"""One training of a study, and who is told how it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evenkeel._options.study import StudySettings
from evenkeel.lab.transformer import Arm


@dataclass(frozen=True)
class Run:
    """One training of a study: an arm at one learning rate with one seed.

    Attributes:
        arm: the norm, its placement and the choices around it.
        lr: the highest learning rate.
        seed: of the initialization and of the data order.

    Example:
        >>> from evenkeel.lab import Run, find_arm
        >>> Run(find_arm("pre-rms"), 0.004, 0).label
        'pre-rms, rate 0.004, seed 0'
    """

    arm: Arm
    lr: float
    seed: int

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.arm.name}, rate {self.lr:g}, seed {self.seed}"

    def directory(self, out: Path) -> Path:
        """Return where the run's records and checkpoint are in a study's directory."""
        return out / "arms" / f"{self.arm.name}-lr{self.lr:g}-seed{self.seed}"


def runs_of(settings: StudySettings) -> list[Run]:
    """Return every run of a study in its order: the whole map with the first seed, then with the next."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    return [Run(arm, lr, seed) for seed in seeds for arm in settings.find_arms() for lr in settings.rates]


@dataclass(frozen=True)
class Spent:
    """What was estimated, and what it came to; None for what nobody could tell.

    Attributes:
        estimated_seconds: for all runs, before the first began.
        seconds: that they took.
        estimated_bytes: of memory, for each worker.
        bytes: the most that one held.
        uncounted: what the estimates leave out, in words.

    Example:
        >>> from evenkeel.lab import Spent
        >>> Spent(estimated_seconds=60.0, seconds=66.0).bytes is None
        True
    """

    estimated_seconds: float | None = None
    seconds: float | None = None
    estimated_bytes: int | None = None
    bytes: int | None = None
    uncounted: str = ""


class Observer:
    """Told how a study goes on; does nothing unless a method is overridden.

    Example:
        >>> from evenkeel.lab import Observer, Run, find_arm
        >>> class Printer(Observer):
        ...     def validated(self, run: Run, step: int, loss: float) -> None:
        ...         print(run.label, step, loss)
        >>> Printer().validated(Run(find_arm("pre-rms"), 0.004, 0), 100, 2.5)
        pre-rms, rate 0.004, seed 0 100 2.5
    """

    def run_skipped(self, run: Run) -> None:
        """A run of a resumed study had ended before."""

    def run_started(self, run: Run, step: int) -> None:
        """A run begins, or continues, at this step."""

    def step_done(self, run: Run, step: int, loss: float, tokens_per_second: float) -> None:
        """This many training steps are done; the loss is the last one's."""

    def validated(self, run: Run, step: int, loss: float) -> None:
        """The validation loss after this many steps is known."""

    def run_ended(self, run: Run, status: str) -> None:
        """A run ended as ``finished`` or ``diverged``."""

    def worker_lost(self, run: Run, reason: str) -> None:
        """The process of a run ended before the run did; another one continues it."""

    def text_laid_out(self, size: int) -> None:
        """A text that is a table or large is laid out on the disk, so many bytes of it so far."""

    def study_estimated(self, spent: Spent) -> None:
        """The first run is about to begin; this is what all of them will take."""

    def study_trained(self, spent: Spent) -> None:
        """Every run has ended; this was estimated, and this is what they took."""

    def costs_started(self, arms: int) -> None:
        """Every run has ended, and the steps of this many arms are timed in turn."""
