"""Progress on stderr: bars on a terminal and in a notebook, lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from rich.progress import Progress

__all__ = ["ProgressContext", "say", "shows_bars"]


def shows_bars() -> bool:
    """Whether stderr shows bars that move: a terminal does, and a notebook, which Rich draws in."""
    if sys.stderr.isatty():
        return True
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter


def say(line: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class ProgressContext:
    """Run the Rich bars of a subclass, if it has any, from the context's beginning to its end.

    Attributes:
        progress: the bars, or None.
    """

    progress: Progress | None = None

    def __enter__(self) -> Self:
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.progress is not None:
            self.progress.stop()
