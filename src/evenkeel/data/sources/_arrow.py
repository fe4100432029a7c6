"""Arrow files and streams (Feather is an Arrow file), mapped: about two million values of all columns at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evenkeel._errors import SourceError
from evenkeel.data._packages import require_package
from evenkeel.data.sources._columns import block_rows, require_columns
from evenkeel.data.sources._format import BatchWriter, Format, Parts


def read_schema(path: Path) -> Any:
    """The Arrow schema of a file."""
    with require_package("pyarrow").memory_map(str(path)) as mapped:
        return open_reader(path, mapped).schema


def read_batches(path: Path, names: Sequence[str], parts: Parts) -> Iterator[Any]:
    """Yield the record batches of an Arrow file or stream, or pieces of those that are large."""
    with require_package("pyarrow").memory_map(str(path)) as mapped:
        reader = open_reader(path, mapped)
        require_columns(names, reader.schema.names)
        rows = block_rows(len(names))
        for batch in reader if is_stream(path) else numbered_batches(reader, parts):
            table = batch.select(list(names))
            table.validate(full=True)  # a batch may say that it has more rows than its buffers hold
            yield from (table.slice(start, rows) for start in range(0, table.num_rows, rows))


def numbered_batches(reader: Any, parts: Parts) -> Iterator[Any]:
    """Yield the record batches with these numbers, or all."""
    yield from (reader.get_batch(i) for i in (range(reader.num_record_batches) if parts is None else parts))


def read_part_sizes(path: Path) -> list[int]:
    """The bytes of each record batch of an Arrow file, on average; none of a stream's."""
    if is_stream(path):
        return []
    with require_package("pyarrow").memory_map(str(path)) as mapped:
        count = open_reader(path, mapped).num_record_batches
    return [path.stat().st_size // count] * count if count else []


def open_reader(path: Path, mapped: Any) -> Any:
    """PyArrow's reader of a mapped file."""
    ipc = require_package("pyarrow").ipc
    return ipc.open_stream(mapped) if is_stream(path) else ipc.open_file(mapped)


def is_stream(path: Path) -> bool:
    """Whether an Arrow file is of the streaming kind, which has no magic bytes."""
    with path.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"FEA1"):
        raise SourceError(f"{path}: cannot be read: Feather version 1; write it again with a newer library")
    return start != b"ARROW1"


def open_writer(path: Path, schema: Any) -> BatchWriter:
    """Open an Arrow (Feather) file for writing."""
    return BatchWriter(require_package("pyarrow").ipc.new_file(str(path), schema))


ARROW = Format(
    name="Arrow",
    suffixes=(".feather", ".arrow", ".ipc", ".arrows"),
    schema=read_schema,
    batches=read_batches,
    part_sizes=read_part_sizes,
    written=(".feather", ".arrow", ".ipc"),
    writer=open_writer,
)
