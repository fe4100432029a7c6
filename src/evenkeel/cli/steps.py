"""What a command is doing, in words: a line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from evenkeel._progress import ProgressContext, say, shows_bars

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Steps"]

# Seconds between lines where there is no terminal.
PAUSE = 5.0


class Steps(ProgressContext):
    """Show what comes next, with the time since the beginning."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        if shows_bars():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self.progress: Progress | None = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self.task = self.progress.add_task("")

    def __call__(self, step: str) -> None:
        """Tell the next step; where there is no terminal, if the last line is old enough."""
        if self.progress is not None:
            self.progress.update(self.task, description=step)
        elif time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            say(step)
