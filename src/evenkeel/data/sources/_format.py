"""The record that says how one kind of file is read and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from evenkeel._options.formats import DIRECTORIES, ENDINGS, WRITTEN
from evenkeel.data.sources._columns import Columns
from evenkeel.data.sources._objects import Readable
from evenkeel.data.sources._source import Source
from evenkeel.data.sources._stores import Place
from evenkeel.data.statistics import Moments

Sink = Any  # a path, or PyArrow's stream of an object
Parts = tuple[int, ...] | None  # the numbers of the parts of a file to read; None for all of it


@dataclass(frozen=True, kw_only=True)
class Format:
    """How the files of one kind are read and written.

    A kind whose files hold a table of named columns needs `schema` and `batches`; one without (arrays, images) opens
    its files itself.

    Attributes:
        name: of the kind: a key of `ENDINGS`.
        schema: gives the Arrow schema of a file.
        batches: yields Arrow record batches of the named columns of a file, in bounded memory.
        part_sizes: gives the bytes of each part of a file that can be read on its own, if there are such parts.
        moments: gives the moments, rows and dtypes of columns, where that needs less memory than whole rows.
        open: opens files as a source (described so, of these columns; True skips unreadable files), where they are no
            tables of named columns.
        named: whether the columns have names, or else positions.
        writer: opens a file for writing tables of an Arrow schema: a path, or a stream of PyArrow.
        rewinds: whether the writer goes back to the beginning, which a stream does not allow.
    """

    name: str
    schema: Callable[[Any], Any] | None = None
    batches: Callable[[Any, Sequence[str], Parts], Iterator[Any]] | None = None
    part_sizes: Callable[[Readable], list[int]] | None = None
    moments: Callable[[Readable, Sequence[str], Parts], tuple[Moments, int, set[str]]] | None = None
    open: Callable[[list[File], str, Columns, bool], Source] | None = None
    named: bool = True
    writer: Callable[[Sink, Any], BatchWriter] | None = None
    rewinds: bool = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The endings of the files' names."""
        return ENDINGS[self.name]

    @property
    def directory(self) -> bool:
        """Whether each table is a directory, which `schema` and `batches` take by its place."""
        return self.name in DIRECTORIES

    @property
    def written(self) -> tuple[str, ...]:
        """The endings of files that can be written."""
        return WRITTEN.get(self.name, ())


@dataclass(frozen=True)
class File:
    """A file of a source.

    Attributes:
        path: of the file.
        key: its path within the source.
        signature: its size and time of modification, which show that it changed; empty where they are not known.
    """

    path: Place
    key: str
    signature: tuple[int, ...]


class BatchWriter:
    """Writes record batches to a file, by one of PyArrow's writers unless a subclass does it otherwise."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def write(self, batch: Any) -> None:
        """Append rows."""
        self.writer.write_batch(batch)

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()

    def abandon(self) -> None:
        """Close a file that will not be whole."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.abandon() if kind else self.close()
