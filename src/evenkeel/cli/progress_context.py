"""The context in which progress is displayed: bars start and stop with it, lines and silence need neither."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from rich.progress import Progress

__all__ = ["ProgressContext"]


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
