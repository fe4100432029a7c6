"""Lance tables: each fragment of theirs is one of ours, its rows read in batches, all of one version of the table."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenkeel._errors import EvenkeelError, SourceError
from evenkeel._packages import require_package
from evenkeel.data.sources._columns import Block, Columns, arrow_blocks, block_rows, other_columns, select_columns
from evenkeel.data.sources._format import File, Format, Parts
from evenkeel.data.sources._source import STORED, Fragment, Skip, Source
from evenkeel.data.sources._stores import Place, StoredFile
from evenkeel.data.sources._tables import rust_options
from evenkeel.data.sources._transfers import one_line

# Batches that Lance reads ahead, and the bytes that it holds for them; left alone it takes 16, and 2 GB.
READAHEAD, BUFFER = 2, 1 << 25


@dataclass(frozen=True)
class LanceFragment(Fragment):
    """The rows of a fragment of a Lance table that are not deleted.

    Attributes:
        table: at one version, which travels with it to other processes.
        number: of the fragment.
        names: the columns to read.
    """

    table: Any
    number: int
    names: tuple[str, ...]

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the columns block by block."""
        fragment, names = self.table.get_fragment(self.number), self.names
        with answering(self.label):
            for batch in fragment.to_batches(columns=list(names), **scan_options(names)):
                yield from arrow_blocks(batch, names)


@contextmanager
def answering(label: str) -> Iterator[None]:
    """Turn Lance's errors, which end in places of its own source, into a SourceError."""
    try:
        yield
    except EvenkeelError:
        raise
    except Exception as error:  # of several classes
        raise SourceError(f"{label}: this Lance table cannot be read: {one_line(error)}") from error


def is_lance(source: Any) -> bool:
    """Whether an object is a table of the package `lance`, which need not be installed."""
    return type(source).__module__.partition(".")[0] == "lance" and hasattr(source, "get_fragments")


def open_table(place: Place) -> Any:
    """The newest version of a table."""
    lance = require_package("lance")
    if isinstance(place, Path) and not place.is_dir():
        raise SourceError(f"{place}: is a part of a Lance table, not one; give the directory that holds its _versions")
    with answering(str(place)):
        return lance.dataset(str(place), storage_options=rust_options(place) if isinstance(place, StoredFile) else None)


def read_schema(place: Place) -> Any:
    """The Arrow schema of a table."""
    return open_table(place).schema


def read_batches(place: Place, names: Sequence[str], parts: Parts) -> Iterator[Any]:
    """Yield the record batches of all fragments of a table."""
    table = open_table(place)
    with answering(str(place)):
        yield from table.to_batches(columns=list(names), **scan_options(names))


def scan_options(names: Sequence[str]) -> dict[str, int]:
    """How much is read at a time."""
    return {"batch_size": block_rows(len(names)), "batch_readahead": READAHEAD, "io_buffer_size": BUFFER}


def open_files(files: list[File], description: str, columns: Columns, skip: bool) -> Source:
    """Open tables as one source; one that cannot be opened is an error, as it may hold any number of rows."""
    tables = [(file.key, open_table(file.path)) for file in files]
    return open_tables(tables, description, columns)


def open_tables(tables: list[tuple[str, Any]], description: str, columns: Columns) -> Source:
    """Open tables as one source, each with the key that its fragments begin with; the first tells the columns."""
    schema = tables[0][1].schema
    names = tuple(select_columns(schema.names, other_columns(schema), columns))
    parts = [part for key, table in tables for part in fragments_of(table, key, names)]
    if not parts:
        raise SourceError(f"{description} has no rows; there is nothing to fit")
    versions = ", ".join(str(table.version) for _, table in tables)
    dtypes = tuple(str(schema.field(name).type) for name in names)
    waiting = STORED if any("://" in table.uri for _, table in tables) else 1
    return Source(f"{description} (version {versions})", names, parts, reads=True, waiting=waiting, dtypes=dtypes)


def fragments_of(table: Any, key: str, names: tuple[str, ...]) -> Iterator[LanceFragment]:
    """Yield the fragments of a table; files that are added leave those alone that were there."""
    for fragment in table.get_fragments():
        number, state = fragment.fragment_id, fragment.metadata.to_json()  # the names of its files, which never change
        signature = (fragment.count_rows(), zlib.crc32(json.dumps(state, sort_keys=True, default=repr).encode()))
        yield LanceFragment(f"{key}#{number}", f"{table.uri} (fragment {number})", signature, table, number, names)


LANCE = Format(name="Lance", schema=read_schema, batches=read_batches, open=open_files)
