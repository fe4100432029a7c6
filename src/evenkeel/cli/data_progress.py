"""The progress of `evenkeel data`: a bar on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from evenkeel._progress import ProgressContext, say, shows_bars

if TYPE_CHECKING:
    from rich.progress import Progress

    from evenkeel.data import FitProgress

__all__ = ["Bar", "Lines", "Watcher", "make_watcher"]

# Seconds between lines where there is no terminal.
PAUSE = 10.0


class Watcher(ProgressContext):
    """Shows nothing.

    Args:
        title: of the work.

    Attributes:
        whole: all there is was read.
    """

    def __init__(self, title: str) -> None:
        self.title, self.whole = title, False

    def fragment_done(self, progress: FitProgress) -> None:
        """Hear of a fragment that was read."""
        self.whole = progress.done == progress.total
        skipped = f", {progress.skipped} skipped" if progress.skipped else ""
        self.advance(progress.done, progress.total, f"{progress.rows:,} rows{skipped}")

    def block_done(self, done: int, total: int, rows: int) -> None:
        """Hear of a block that was written."""
        self.advance(done, total, f"{rows:,} rows")

    def advance(self, done: int, total: int | None, facts: str) -> None:
        """Show how far the work has come."""


class Bar(Watcher):
    """A bar on stderr with the rows so far and the time left.

    Args:
        title: of the work.
    """

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(title)
        self.progress: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.progress.add_task(title, total=None, facts="")

    def advance(self, done: int, total: int | None, facts: str) -> None:
        """Advance the bar."""
        self.progress.update(self.task, completed=done, total=total, facts=facts)


class Lines(Watcher):
    """A line on stderr every ten seconds.

    Args:
        title: of the work.
    """

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.last = time.monotonic()

    def advance(self, done: int, total: int | None, facts: str) -> None:
        """Print a line, if the last one is old enough."""
        if time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            say(f"{self.title}: {done}{f' of {total}' if total else ''} parts, {facts}")


def make_watcher(title: str, *, quiet: bool) -> Watcher:
    """Return what shows the progress: a bar on a terminal, lines elsewhere, nothing if quiet."""
    if quiet:
        return Watcher(title)
    return Bar(title) if shows_bars() else Lines(title)
