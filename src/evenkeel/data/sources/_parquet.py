"""Parquet files: their rows in batches, or the moments of their columns, a few columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenkeel._errors import SourceError
from evenkeel._packages import require_package
from evenkeel.data.sources._columns import arrow_column, block_rows, require_columns
from evenkeel.data.sources._format import BatchWriter, Format, Parts, Sink
from evenkeel.data.sources._objects import BLOCK, Range, Readable
from evenkeel.data.statistics import Moments, empty_moments, joined_columns, merge_moments, table_moments

Steps = Sequence[tuple[list[str], list[int]]]  # columns, and the row groups in which they are read together

# The buffer of each column (1 MB was slower), and the most that all of them hold.
COLUMN_BUFFER, BUFFERS, PAGE = 1 << 18, 1 << 24, 1 << 12
# Summed at a time: the rows of a column, and the bytes of as many columns as there is room for.
PIECE_ROWS, PIECE_BYTES = 1 << 20, 1 << 23
MOST_COLUMNS = BUFFERS // COLUMN_BUFFER
# Of a large row group in a store, the bytes of each column that are read in turn; of others, the largest column that is
# one request: two, of which PyArrow gets the bytes together, took 1.12 of the time of one.
TURN, WHOLE = 1 << 20, 5 << 21
# Rows of a row group: what the writer holds at a time.
GROUP_ROWS = 1 << 18


def read_schema(path: Readable) -> Any:
    """The Arrow schema of a file."""
    return require_package("pyarrow.parquet").read_schema(path if isinstance(path, Path) else path.arrow_file())


def read_part_sizes(path: Readable) -> list[int]:
    """The bytes of each row group of a file."""
    source = path if isinstance(path, Path) else path.arrow_file()
    with require_package("pyarrow.parquet").ParquetFile(source) as file:
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        return [sum(g.column(i).total_compressed_size for i in range(g.num_columns)) for g in groups]


def read_batches(path: Readable, names: Sequence[str], parts: Parts) -> Iterator[Any]:
    """Yield the record batches of a Parquet file's columns."""
    with open_file(path, names, len(names), parts) as (file, sizes, plan):
        missing = sum(sizes.values())
        plan([(list(names), list(sizes))])
        # Of 120 000 rows of 2 048 token ids in one group, all took 2 082 MiB and 15 s, 1 024 at a time 42 MiB and 5 s.
        width = row_bytes(file.metadata, names, sizes) // max(len(names), 1)
        rows = max(block_rows(len(names)) * 8 // max(width, 8), 1)
        for batch in file.iter_batches(rows, row_groups=list(sizes), columns=list(names), use_threads=False):
            missing -= batch.num_rows
            yield batch
        check_complete(path, missing)


def read_moments(path: Readable, names: Sequence[str], parts: Parts) -> tuple[Moments, int, set[str]]:
    """The moments of a Parquet file's columns, its rows, and the columns' dtypes.

    Beside each column that it reads, PyArrow keeps a page, a dictionary and two bytes a value, for all columns until
    the batch is complete. A few columns at a time take a fraction of that, and are summed before they leave the caches.
    """
    dtypes: set[str] = set()
    bunches: list[Moments] = []
    with open_file(path, names, MOST_COLUMNS, parts) as (file, sizes, plan):
        rows = sum(sizes.values())
        some_columns = list(column_bunches(file.schema_arrow, names, rows))
        plan([(some, groups) for some in some_columns for groups in packed(sizes, PIECE_ROWS)])
        for some in some_columns:
            moments, missing = None, rows
            for batch in pieces(file, some, sizes):
                missing -= batch.num_rows
                columns = [arrow_column(batch.column(name)) for name in some]
                dtypes |= {str(column.dtype).removeprefix("torch.") for column in columns}
                state = table_moments(columns)
                moments = state if moments is None else merge_moments(moments, state)
                del batch, columns  # lest they stay while the next ones are read
            check_complete(path, missing)
            bunches.append(empty_moments(len(some)) if moments is None else moments)
    return joined_columns(bunches), rows, dtypes


@contextmanager
def open_file(
    path: Readable, names: Sequence[str], columns: int, parts: Parts
) -> Iterator[tuple[Any, dict[int, int], Callable[[Steps], None]]]:
    """Open a file to read a number of columns at a time.

    Gives the file, the rows of each row group to read, and a function to be told what will be read in which order.
    Read and not mapped: a mapped file that is cut short meanwhile kills the process, and reading costs 5 % at most.
    """
    parquet = require_package("pyarrow.parquet")
    buffer = min(max(BUFFERS // max(columns, 1), PAGE), COLUMN_BUFFER)
    stored = None if isinstance(path, Path) else path.file(views=True)
    source, metadata, whole = path, None, False
    if stored is not None:
        source = require_package("pyarrow").PythonFile(stored, mode="r")
        metadata = parquet.read_metadata(source)
        whole = all(metadata.row_group(index).num_rows <= PIECE_ROWS for index in range(metadata.num_row_groups))
    options = {"metadata": metadata, "pre_buffer": False, "buffer_size": 0 if whole else buffer}
    with parquet.ParquetFile(source, **options) as file:
        require_columns(names, file.schema_arrow.names)
        groups = range(file.metadata.num_row_groups) if parts is None else parts

        def plan(steps: Steps) -> None:
            if stored is not None:
                stored.plan(chunk_ranges(file.metadata, steps), WHOLE if whole else BLOCK)

        yield file, {index: file.metadata.row_group(index).num_rows for index in groups}, plan
        if stored is not None:
            stored.close()


def row_bytes(metadata: Any, names: Sequence[str], sizes: Mapping[int, int]) -> int:
    """The bytes of the average row of columns: more than eight a column where they hold texts or lists."""
    columns = [index for name in names for index in leaves_of(metadata).get(name, ())]
    chunks = (metadata.row_group(group).column(column) for group in sizes for column in columns)
    return sum(chunk.total_uncompressed_size for chunk in chunks) // max(sum(sizes.values()), 1)


def leaves_of(metadata: Any) -> dict[str, list[int]]:
    """The positions of what is stored of each column, of those within it likewise."""
    leaves: dict[str, list[int]] = {}
    for index in range(metadata.num_columns):
        path = metadata.schema.column(index).path
        for name in {path, path.partition(".")[0]}:
            leaves.setdefault(name, []).append(index)
    return leaves


def chunk_ranges(metadata: Any, steps: Steps) -> Iterator[Range]:
    """Yield the ranges of a file that hold columns, in the order in which they are read.

    Row groups come one after the other: those that PyArrow reads as one piece fit in what is read ahead. Of a group
    that is larger the columns are read side by side, so their ranges are cut and taken in turn.
    """
    leaves = leaves_of(metadata)
    for names, groups in steps:
        columns = sorted({index for name in names for index in leaves.get(name, ())})
        for group in groups:
            chunks = [chunk_range(metadata, group, column) for column in columns]
            longest = max((stop - start for start, stop in chunks), default=0)
            turn = TURN if metadata.row_group(group).num_rows > PIECE_ROWS else max(longest, TURN)
            for offset in range(0, longest, turn):
                cut = ((start + offset, min(start + offset + turn, stop)) for start, stop in chunks)
                yield from ((start, stop) for start, stop in cut if start < stop)


def chunk_range(metadata: Any, group: int, column: int) -> Range:
    """The range of a file that holds a column of a row group."""
    chunk = metadata.row_group(group).column(column)
    start = min(offset for offset in (chunk.dictionary_page_offset, chunk.data_page_offset) if offset is not None)
    return start, start + chunk.total_compressed_size


def pieces(file: Any, names: list[str], sizes: Mapping[int, int]) -> Iterator[Any]:
    """Yield record batches of columns: several row groups, one, or parts of one that is large."""
    for groups in packed(sizes, PIECE_ROWS):
        if sum(sizes[index] for index in groups) <= PIECE_ROWS:
            batches = iter(file.read_row_groups(groups, columns=names, use_threads=False).to_batches())
        else:  # half as many, since the reader keeps a batch while it reads the next
            batches = file.iter_batches(PIECE_ROWS // 2, row_groups=groups, columns=names, use_threads=False)
        while (batch := next(batches, None)) is not None:
            if batch.num_rows:
                yield batch
            del batch


def column_bunches(schema: Any, names: Sequence[str], rows: int) -> Iterator[list[str]]:
    """Yield the columns in their order, together as many as a piece has room for."""
    sizes = {name: bytes_of(schema.field(name).type) * min(rows, PIECE_ROWS) for name in names}
    for bunch in packed(sizes, PIECE_BYTES):
        yield from (bunch[start : start + MOST_COLUMNS] for start in range(0, len(bunch), MOST_COLUMNS))


def bytes_of(kind: Any) -> int:
    """The bytes of a value in memory; 8 for those of no fixed size."""
    try:
        return max(kind.bit_width // 8, 1)
    except ValueError:
        return 8


def packed(sizes: Mapping[Any, int], most: int) -> Iterator[list[Any]]:
    """Yield neighbours whose sizes add up to this at most, or a single one that is larger."""
    pack: list[Any] = []
    total = 0
    for key, size in sizes.items():
        if pack and total + size > most:
            yield pack
            pack, total = [], 0
        pack.append(key)
        total += size
    if pack:
        yield pack


def check_complete(path: Readable, missing: int) -> None:
    """Raise `SourceError` where rows are missing: PyArrow takes a column that ends early for one that has fewer."""
    if missing:
        raise SourceError(f"{path}: cannot be read: it ends {missing} rows early; was it cut short meanwhile?")


class ParquetWriter(BatchWriter):
    """Writes a Parquet file, record batches collected to row groups of a size that readers like."""

    def __init__(self, sink: Sink, schema: Any) -> None:
        super().__init__(require_package("pyarrow.parquet").ParquetWriter(sink, schema))
        self.schema, self.rows = schema, 0
        self.waiting: list[Any] = []

    def write(self, batch: Any) -> None:
        """Append rows; they reach the file with the next full row group."""
        self.waiting.append(batch)
        self.rows += batch.num_rows
        if self.rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the waiting batches as a row group."""
        if self.waiting:
            table = require_package("pyarrow").Table.from_batches(self.waiting, self.schema)
            self.writer.write_table(table, row_group_size=table.num_rows)
        self.waiting, self.rows = [], 0

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        super().close()


PARQUET = Format(
    name="Parquet",
    schema=read_schema,
    batches=read_batches,
    part_sizes=read_part_sizes,
    moments=read_moments,
    writer=ParquetWriter,
)
