"""What statistics are fitted on: anything that holds rows, as fragments that are read one by one, or as a stream."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenkeel._errors import InvalidTypeError, SourceError

if TYPE_CHECKING:
    from evenkeel.data._columns import Block, Columns
    from evenkeel.data._statistics import Statistics

__all__ = ["Fragment", "Skip", "Source", "open_source"]


@dataclass(frozen=True)
class Skip:
    """What could not be read and was left out: the file (or the part of one), and why."""

    label: str
    error: str


class Fragment(ABC):
    """A part of a source that is read on its own, in any thread or process: a file, some of its row groups, some rows.

    Attributes:
        key: names the part within its source, the same in every run.
        label: what a message calls it.
        signature: what tells that it changed: size and time of modification of a file, empty for what is in memory.
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

    def add_to(self, statistics: Statistics, skipped: list[Skip] | None) -> None:
        """Update statistics with the rows.

        Args:
            statistics: what is updated.
            skipped: as in `blocks`.
        """
        for block in self.blocks(skipped):
            block.add_to(statistics)


@dataclass
class Source:
    """An opened source: its columns, and where its rows are.

    Attributes:
        description: what a message calls the source.
        names: the columns, or None where they have no names.
        fragments: the parts, in their order; None for a stream.
        stream: the rows of what can be read but once, in one process.
        reads: reading takes time (files), so that several threads pay off.
        skipped: what was found unreadable while opening.
        dtypes: how NumPy or Arrow spells the columns' dtypes, where that is known before reading.
    """

    description: str
    names: tuple[str, ...] | None = None
    fragments: Sequence[Fragment] | None = None
    stream: Iterable[Block] | None = None
    reads: bool = False
    skipped: list[Skip] = field(default_factory=list)
    dtypes: tuple[str, ...] = ()


def open_source(source: Any, *, columns: Columns = None, on_error: str = "raise") -> Source:
    """Find out what a source is and open it.

    Args:
        source: a path, several paths, or an object that holds rows.
        columns: names or positions of the wanted columns; see `fit`.
        on_error: "skip" lets unreadable files be passed over while looking for the first schema.

    Raises:
        SourceError: there is nothing to read, or the columns cannot be chosen so.
        InvalidTypeError: no way to read such an object is known.
    """
    from evenkeel.data import _source_files, _source_memory, _source_stream

    if isinstance(source, Source):
        return source
    if isinstance(source, str | os.PathLike):
        return _source_files.open_path(Path(source), columns, on_error)
    if isinstance(source, list | tuple) and source and all(isinstance(p, str | os.PathLike) for p in source):
        return _source_files.open_paths([Path(path) for path in source], columns, on_error)
    if isinstance(source, Mapping):
        source = (source,)  # one batch
    if isinstance(source, list | tuple) and not any(isinstance(item, Mapping) or is_array(item) for item in source):
        source = as_table(source)
    if isinstance(source, torch.Tensor | np.ndarray):
        return _source_memory.open_array(source, columns)
    if _source_memory.is_frame(source):
        return _source_memory.open_frame(source, columns)
    if isinstance(source, Iterable):
        return _source_stream.open_stream(source, columns)
    if isinstance(source, torch.utils.data.Dataset):
        raise InvalidTypeError(
            "a Dataset gives single samples; wrap it in torch.utils.data.DataLoader(dataset, batch_size=1024)"
        )
    raise InvalidTypeError(
        f"cannot read rows from a {type(source).__name__}; give an array, tensor, frame, Arrow table, path, "
        "or an iterable of batches"
    )


def is_array(item: Any) -> bool:
    """Whether an item of a list is a batch of its own, not a number or a row of numbers."""
    return hasattr(item, "__len__") and hasattr(item, "shape")


def as_table(rows: Sequence[Any]) -> np.ndarray[Any, Any]:
    """A list of rows of numbers as an array."""
    try:
        return np.asarray(rows)
    except ValueError as error:
        raise SourceError(f"the rows of a list must have one length: {error}") from error
