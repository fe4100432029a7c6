"""What shows progress is a context: bars run from its beginning to its end, lines and silence need neither."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from rich.progress import Progress

__all__ = ["Shown"]


class Shown:
    """A context in which Rich's bars run, if a subclass has any.

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
