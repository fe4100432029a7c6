"""Sources in memory: arrays, memory maps, tensors, frames and Arrow tables. Their rows are read where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenkeel._errors import SourceError
from evenkeel._packages import require_package
from evenkeel.data._arrays import dtype_name
from evenkeel.data.sources._columns import (
    Block,
    Columns,
    arrow_blocks,
    column_positions,
    other_columns,
    select_columns,
    take_columns,
)
from evenkeel.data.sources._source import Fragment, Skip, Source

# Elements of one fragment: large enough that making and merging its state costs nothing beside reading it (64 MB of
# float32), small enough that several processes share a table of a few hundred MB.
FRAGMENT_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class RowsFragment(Fragment):
    """Some rows of an array or tensor in memory."""

    rows: Any
    columns: tuple[int, ...] | None

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the rows as one block."""
        yield Block.of_array(take_columns(self.rows, self.columns))


@dataclass(frozen=True)
class TableFragment(Fragment):
    """Some rows of an Arrow table in memory, or of a frame, which is turned into Arrow columns as it is read."""

    rows: Any
    names: tuple[str, ...]

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the rows, chunk by chunk."""
        for batch in table_of(self.rows, self.names).to_batches():
            yield from arrow_blocks(batch, self.names)


def row_ranges(rows: int, columns: int) -> list[tuple[int, int]]:
    """First and last row (exclusive) of each fragment of a table."""
    if rows == 0:
        raise SourceError("the source has no rows; there is nothing to fit")
    step = max(1, FRAGMENT_ELEMENTS // max(columns, 1))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def rows_identity(start: int, stop: int) -> tuple[str, str, tuple[int, ...]]:
    """The key, label and signature of rows in memory."""
    return f"row {start}", f"rows {start} to {stop - 1}", ()


def open_array(array: Any, columns: Columns, *, fragment: Callable[..., Fragment] | None = None) -> Source:
    """Open a (rows, columns) array or tensor; structured arrays have the names of their fields.

    Args:
        array: the values.
        columns: as in `fit`.
        fragment: makes a fragment of (first row, last row exclusive, columns); by default of the rows in memory.
    """
    if getattr(getattr(array, "dtype", None), "names", None):
        fields = {name: np.ascontiguousarray(array[name]) for name in array.dtype.names}
        return open_frame(require_package("pyarrow").table(fields), columns)
    if array.ndim != 2:
        raise SourceError(
            f"expected (rows, columns), but the shape is {tuple(array.shape)}; use x.reshape(-1, 1) for one column, "
            "or Statistics(axis=…) for other layouts"
        )
    if len(array) and not array.shape[1]:
        raise SourceError(f"the table of shape {tuple(array.shape)} has no columns")
    positions = column_positions(array.shape[1], columns)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "buifO":
        raise SourceError(f"expected real numbers, but the dtype is {array.dtype}; convert the array first")
    ranges = row_ranges(len(array), array.shape[1] if positions is None else len(positions))
    if fragment is None:
        parts: list[Fragment] = [RowsFragment(*rows_identity(a, b), array[a:b], positions) for a, b in ranges]
    else:
        parts = [fragment(a, b, positions) for a, b in ranges]
    return Source(f"{type(array).__name__} of shape {tuple(array.shape)}", None, parts, dtypes=(dtype_name(array),))


def is_frame(source: Any) -> bool:
    """Whether an object is an Arrow table or batch, a frame, or another table that Arrow can read repeatedly."""
    if is_pandas(source):
        return type(source).__name__ == "DataFrame"
    return (
        (hasattr(source, "__arrow_c_stream__") and hasattr(source, "__len__"))
        or hasattr(source, "to_batches")
        or (hasattr(source, "num_rows") and hasattr(source, "schema"))
    )


def is_pandas(source: Any) -> bool:
    """Whether an object is one of pandas', which need not be installed."""
    return type(source).__module__.partition(".")[0] == "pandas"


def open_frame(frame: Any, columns: Columns) -> Source:
    """Open an Arrow table or batch, a pandas or Polars frame, or another object that exports Arrow data."""
    if is_pandas(frame):
        return open_pandas(frame, columns)
    table = table_of(frame, None)
    names = tuple(select_columns(table.column_names, other_columns(table.schema), columns))
    ranges = row_ranges(table.num_rows, len(names))
    parts = [TableFragment(*rows_identity(a, b), table.select(names).slice(a, b - a), names) for a, b in ranges]
    dtypes = tuple(str(table.schema.field(name).type) for name in names)
    return Source(f"table of {table.num_rows} rows", names, parts, dtypes=dtypes)


def open_pandas(frame: Any, columns: Columns) -> Source:
    """Open a pandas frame; one whose columns lie in one array is read there."""
    all_names = [str(name) for name in frame.columns]
    kinds = list(zip(all_names, frame.dtypes, strict=True))
    numbers = {name for name, dtype in kinds if pandas_number(dtype)}
    other = {name: str(dtype) for name, dtype in kinds if name not in numbers}
    names = tuple(select_columns(all_names, other, columns))
    ranges = row_ranges(len(frame), len(names))
    frame = frame.iloc[:, [all_names.index(name) for name in names]]
    dtypes = tuple(str(dtype) for dtype in frame.dtypes)
    if len(set(dtypes)) == 1 and isinstance(frame.dtypes.iloc[0], np.dtype):
        array = frame.to_numpy()
        parts: list[Fragment] = [RowsFragment(*rows_identity(a, b), array[a:b], None) for a, b in ranges]
    else:
        parts = [TableFragment(*rows_identity(a, b), frame.iloc[a:b], names) for a, b in ranges]
    return Source(f"frame of {len(frame)} rows", names, parts, dtypes=dtypes)


def pandas_number(dtype: Any) -> bool:
    """Whether a pandas dtype holds numbers, the nullable and Arrow ones included."""
    return getattr(dtype, "kind", "O") in "buif" and str(dtype) != "category"


def table_of(frame: Any, names: tuple[str, ...] | None) -> Any:
    """A frame, batch or table as an Arrow table over the same memory where that is possible."""
    arrow = require_package("pyarrow")
    if isinstance(frame, arrow.RecordBatch):
        return arrow.Table.from_batches([frame])
    if isinstance(frame, arrow.Table):
        return frame
    if is_pandas(frame):
        # Threads would be started for each fragment anew.
        table = arrow.Table.from_pandas(frame, preserve_index=False, nthreads=1)
        return table.rename_columns(list(names)) if names else table
    return arrow.table(frame)
