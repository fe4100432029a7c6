"""The phases of a command whose parts tell nothing of how far they are: what goes on, and for how long."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evenkeel._progress import say, shows_bars

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["phase"]

PATIENCE = 2.0  # seconds before a phase is named where there is no terminal: most take less
PAUSE = 10.0  # seconds between lines


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Show what goes on, on stderr: a spinner with a clock on a terminal, lines elsewhere if it takes long."""
    if shows_bars():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            bars.add_task(title, total=None)
            yield
        return
    ended = threading.Event()
    teller = threading.Thread(target=tell, args=(title, ended), daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def tell(title: str, ended: threading.Event) -> None:
    """Say a line after a while, and another every now and then, until the phase has ended."""
    began, pause = time.monotonic(), PATIENCE
    while not ended.wait(pause):
        seconds = time.monotonic() - began
        say(f"{title}: {seconds:.0f} s")
        pause = PAUSE
