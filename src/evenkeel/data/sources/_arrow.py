"""Arrow files and streams (Feather is an Arrow file), mapped: about two million values of all columns at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evenkeel._errors import SourceError
from evenkeel._packages import require_package
from evenkeel.data.sources._columns import block_rows, require_columns
from evenkeel.data.sources._format import BatchWriter, Format, Parts, Sink
from evenkeel.data.sources._objects import Readable, python_file, size_of


def read_schema(path: Readable) -> Any:
    """The Arrow schema of a file."""
    with open_bytes(path) as file:
        return open_reader(path, file).schema


def open_bytes(path: Readable, *, sequential: bool = False) -> Any:
    """A file mapped, an object as PyArrow reads it."""
    if isinstance(path, Path):
        return require_package("pyarrow").memory_map(str(path))
    return path.arrow_file(sequential=sequential)


def read_batches(path: Readable, names: Sequence[str], parts: Parts) -> Iterator[Any]:
    """Yield the record batches of an Arrow file or stream, or pieces of those that are large."""
    with open_bytes(path, sequential=is_stream(path)) as file:
        reader = open_reader(path, file)
        require_columns(names, reader.schema.names)
        if not isinstance(path, Path) and not is_stream(path):
            reader = open_reader(path, file, [reader.schema.get_field_index(name) for name in names])
        rows = block_rows(len(names))
        for batch in reader if is_stream(path) else numbered_batches(reader, parts):
            table = batch.select(list(names))
            table.validate(full=True)  # a batch may say that it has more rows than its buffers hold
            yield from (table.slice(start, rows) for start in range(0, table.num_rows, rows))


def numbered_batches(reader: Any, parts: Parts) -> Iterator[Any]:
    """Yield the record batches with these numbers, or all."""
    yield from (reader.get_batch(i) for i in (range(reader.num_record_batches) if parts is None else parts))


def read_part_sizes(path: Readable) -> list[int]:
    """The bytes of each record batch of an Arrow file, on average; none of a stream's."""
    if is_stream(path):
        return []
    with open_bytes(path) as file:
        count = open_reader(path, file).num_record_batches
    return [size_of(path) // count] * count if count else []


def open_reader(path: Readable, file: Any, fields: list[int] | None = None) -> Any:
    """PyArrow's reader of a file, which reads the buffers of all columns or of those at these positions."""
    ipc = require_package("pyarrow").ipc
    if is_stream(path):
        return ipc.open_stream(file)
    return ipc.open_file(file, options=ipc.IpcReadOptions(use_threads=fields is None, included_fields=fields))


def is_stream(path: Readable) -> bool:
    """Whether an Arrow file is of the streaming kind, which has no magic bytes."""
    with python_file(path) as file:
        start = file.read(6)
    if start.startswith(b"FEA1"):
        raise SourceError(f"{path}: cannot be read: Feather version 1; write it again with a newer library")
    return start != b"ARROW1"


def open_writer(sink: Sink, schema: Any) -> BatchWriter:
    """Open an Arrow (Feather) file for writing."""
    return BatchWriter(require_package("pyarrow").ipc.new_file(str(sink) if isinstance(sink, Path) else sink, schema))


ARROW = Format(
    name="Arrow",
    schema=read_schema,
    batches=read_batches,
    part_sizes=read_part_sizes,
    writer=open_writer,
)
