"""The step at which a command is: on a terminal beside a clock, elsewhere in a line now and then."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evenkeel._progress import say, shows_bars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["telling_steps"]

PATIENCE = 2.0  # seconds before a step is told where there is no terminal: most commands take less
PAUSE = 10.0  # seconds between lines


@contextmanager
def telling_steps() -> Iterator[Callable[[str], None]]:
    """Give a function that takes what comes next, and show on stderr the last that it took, with the time since."""
    with spinner() if shows_bars() else lines() as step:
        yield step


@contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """Show the step in a line that changes and leaves nothing behind."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("")
        yield lambda step: bars.update(task, description=step)


@contextmanager
def lines() -> Iterator[Callable[[str], None]]:
    """Say the step after a while, and again every now and then."""
    current, ended = [("", time.monotonic())], threading.Event()

    def tell() -> None:
        pause = PATIENCE
        while not ended.wait(pause):
            step, began = current[0]
            say(f"{step}: {time.monotonic() - began:.0f} s")
            pause = PAUSE

    def begin(step: str) -> None:
        current[0] = (step, time.monotonic())

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield begin
    finally:
        ended.set()
        teller.join()
