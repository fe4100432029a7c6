"""Sources in memory: arrays, memory maps, tensors, frames and Arrow tables. Their rows are read where they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import SourceError
from evenkeel.data._arrays import dtype_name
from evenkeel.data._columns import Block, arrow_blocks, is_numeric, require_package, select_columns
from evenkeel.data._sources import Fragment, Skip, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from evenkeel.data._columns import Columns

__all__ = [
    "arrow_numbers",
    "is_frame",
    "open_array",
    "open_frame",
    "row_ranges",
    "table_of",
]

# Elements of one fragment: large enough that making and merging its state costs nothing beside reading it (64 MB of
# float32), small enough that several processes share a table of a few hundred MB.
FRAGMENT_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class HeldFragment(Fragment):
    """Some rows of what is held in memory, named by the position of the first one."""

    held: Any
    start: int
    signature = ()

    @property
    def key(self) -> str:  # type: ignore[override]
        """The position of the first row."""
        return f"row {self.start}"

    @property
    def label(self) -> str:  # type: ignore[override]
        """The rows, in words."""
        return f"rows {self.start} to {self.start + len(self.held) - 1}"


@dataclass(frozen=True)
class RowsFragment(HeldFragment):
    """Some rows of an array or tensor."""

    columns: tuple[int, ...] | None

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the rows as one block."""
        yield Block.of_array(chosen(self.held, self.columns))


@dataclass(frozen=True)
class TableFragment(HeldFragment):
    """Some rows of an Arrow table or of a frame, which is turned into Arrow columns as it is read."""

    names: tuple[str, ...]

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the rows, chunk by chunk."""
        for batch in table_of(self.held, self.names).to_batches():
            yield from arrow_blocks(batch, self.names)


def chosen(array: Any, columns: tuple[int, ...] | None) -> Any:
    """The wanted columns of a (rows, columns) array, without a copy where they lie at equal distances."""
    if columns is None:
        return array
    steps = set(np.diff(columns).tolist())
    if len(columns) == 1:
        return array[:, columns[0] : columns[0] + 1]
    if len(steps) == 1 and (step := steps.pop()) > 0:
        return array[:, columns[0] : columns[-1] + 1 : step]
    return array[:, list(columns)]


def row_ranges(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """First and last row (exclusive) of each fragment of a table in memory."""
    step = max(1, FRAGMENT_ELEMENTS // max(columns, 1))
    yield from ((start, min(start + step, rows)) for start in range(0, rows, step))


def open_array(array: Any, columns: Columns, *, fragment: Callable[..., Fragment] | None = None) -> Source:
    """Open a (rows, columns) array or tensor; structured arrays have the names of their fields.

    Args:
        array: the values.
        columns: the wanted ones.
        fragment: makes a fragment of (first row, last row exclusive, columns), where it is not these rows themselves.
    """
    if getattr(getattr(array, "dtype", None), "names", None):
        fields = {name: np.ascontiguousarray(array[name]) for name in array.dtype.names}
        return open_frame(require_package("pyarrow").table(fields), columns)
    if array.ndim != 2:
        raise SourceError(
            f"expected (rows, columns), but the shape is {tuple(array.shape)}; use x.reshape(-1, 1) for one column, "
            "or Statistics(axis=…) for other layouts"
        )
    check_rows(len(array))
    positions = [str(index) for index in range(array.shape[1])]
    if not positions:
        raise SourceError(f"the table of shape {tuple(array.shape)} has no columns")
    kept = array_columns(positions, columns)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "buifO":
        raise SourceError(f"expected real numbers, but the dtype is {array.dtype}; convert the array first")
    width = array.shape[1] if kept is None else len(kept)
    if fragment is None:
        parts: list[Fragment] = [RowsFragment(array[a:b], a, kept) for a, b in row_ranges(len(array), width)]
    else:
        parts = [fragment(a, b, kept) for a, b in row_ranges(len(array), width)]
    return Source(f"{type(array).__name__} of shape {tuple(array.shape)}", None, parts, dtypes=(dtype_name(array),))


def array_columns(positions: list[str], columns: Columns) -> tuple[int, ...] | None:
    """The wanted positions, or None for all: columns of an array have numbers, which may be typed as text."""
    if columns is None or columns == "numeric":
        return None
    return tuple(int(name) for name in select_columns(positions, {}, columns))


def check_rows(rows: int) -> None:
    """Raise `SourceError` where there is nothing to fit."""
    if rows == 0:
        raise SourceError("the source has no rows; there is nothing to fit")


def is_frame(source: Any) -> bool:
    """Whether an object is an Arrow table or batch, a frame, or anything else that Arrow reads again and again."""
    kind = type(source)
    if kind.__module__.partition(".")[0] == "pandas":
        return kind.__name__ == "DataFrame"
    return (
        (hasattr(source, "__arrow_c_stream__") and hasattr(source, "__len__"))
        or hasattr(source, "to_batches")
        or (hasattr(source, "num_rows") and hasattr(source, "schema"))
    )


def open_frame(frame: Any, columns: Columns) -> Source:
    """Open an Arrow table or batch, a pandas or Polars frame, or what else exports Arrow data."""
    arrow = require_package("pyarrow")
    if type(frame).__module__.partition(".")[0] == "pandas":
        return open_pandas(frame, columns)
    table = table_of(frame, None)
    names = table.column_names
    wanted = tuple(select_columns(names, arrow_numbers(table.schema), columns))
    check_rows(table.num_rows)
    parts = [
        TableFragment(table.select(wanted).slice(a, b - a), a, wanted)
        for a, b in row_ranges(table.num_rows, len(wanted))
    ]
    dtypes = tuple(str(table.schema.field(name).type) for name in wanted)
    assert isinstance(table, arrow.Table)
    return Source(f"table of {table.num_rows} rows", wanted, parts, dtypes=dtypes)


def open_pandas(frame: Any, columns: Columns) -> Source:
    """Open a pandas frame; one whose columns lie in one array is read there."""
    names = [str(name) for name in frame.columns]
    other = {name: str(dtype) for name, dtype in zip(names, frame.dtypes, strict=True) if not pandas_number(dtype)}
    wanted = tuple(select_columns(names, other, columns))
    check_rows(len(frame))
    frame = frame.iloc[:, [names.index(name) for name in wanted]]
    dtypes = tuple(str(dtype) for dtype in frame.dtypes)
    ranges = row_ranges(len(frame), len(wanted))
    if len(set(dtypes)) == 1 and isinstance(frame.dtypes.iloc[0], np.dtype):
        array = frame.to_numpy()
        parts: list[Fragment] = [RowsFragment(array[a:b], a, None) for a, b in ranges]
    else:
        parts = [TableFragment(frame.iloc[a:b], a, wanted) for a, b in ranges]
    return Source(f"frame of {len(frame)} rows", wanted, parts, dtypes=dtypes)


def pandas_number(dtype: Any) -> bool:
    """Whether a pandas dtype holds numbers, the nullable and Arrow ones included."""
    return getattr(dtype, "kind", "O") in "buif" and str(dtype) != "category"


def arrow_numbers(schema: Any) -> dict[str, str]:
    """The columns of an Arrow schema that hold no numbers, with their types."""
    return {field.name: str(field.type) for field in schema if not is_numeric(field.type)}


def table_of(frame: Any, names: tuple[str, ...] | None) -> Any:
    """A frame, batch or table as an Arrow table over the same memory where that is possible."""
    arrow = require_package("pyarrow")
    if isinstance(frame, arrow.RecordBatch):
        return arrow.Table.from_batches([frame])
    if isinstance(frame, arrow.Table):
        return frame
    if type(frame).__module__.partition(".")[0] == "pandas":
        # Threads would be started for each fragment anew.
        table = arrow.Table.from_pandas(frame, preserve_index=False, nthreads=1)
        return table.rename_columns(list(names)) if names else table
    return arrow.table(frame)
