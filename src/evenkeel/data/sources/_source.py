"""An opened source: its columns, and the fragments or the stream that hold its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from evenkeel.data.sources._columns import Block
from evenkeel.data.statistics import Statistics

# Threads for each processor that read a store: while one computes, the requests of the other are under way; four took
# up to a third more of the processors' time. Objects of one request each are mostly waited for.
STORED, STORED_SMALL = 2, 8


@dataclass(frozen=True)
class Skip:
    """A file (or a part of one) that cannot be read and was left out, and why."""

    label: str
    error: str


@dataclass(frozen=True)
class Fragment(ABC):
    """A part of a source that is read on its own, in any thread or process: a file, some of its row groups, some rows.

    Attributes:
        key: names the part within its source, the same in every run.
        label: names it in messages.
        signature: changes with the file (its size and time of modification); empty for values in memory.
    """

    key: str
    label: str
    signature: tuple[int, ...]

    @abstractmethod
    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Read the rows block by block.

        Args:
            skipped: where to list what inside the fragment cannot be read, or None to raise.
        """

    def add_to(self, statistics: Statistics, skipped: list[Skip] | None) -> str:
        """Update statistics with the rows.

        Args:
            statistics: to update.
            skipped: as in `blocks`.

        Returns:
            The version of the objects that were read; nothing where the signature tells enough.
        """
        for block in self.blocks(skipped):
            block.add_to(statistics)
        return ""

    def version(self) -> str:
        """The version that the objects have now; see `add_to`."""
        return ""


@dataclass
class Source:
    """An opened source: its columns, and where its rows are.

    Attributes:
        description: the source in words.
        names: the columns, or None where they have no names.
        fragments: the parts, in their order; None for a stream.
        stream: the rows of a source that can be read but once, in one process.
        reads: reading takes time (files), so that several threads pay off.
        waiting: threads for each processor that pay off, since reading waits for a network.
        skipped: the files that cannot be opened.
        dtypes: the columns' dtypes as NumPy or Arrow spells them, where they are known before reading.
    """

    description: str
    names: tuple[str, ...] | None = None
    fragments: Sequence[Fragment] | None = None
    stream: Iterable[Block] | None = None
    reads: bool = False
    waiting: int = 1
    skipped: list[Skip] = field(default_factory=list)
    dtypes: tuple[str, ...] = ()
