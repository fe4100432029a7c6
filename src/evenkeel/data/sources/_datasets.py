"""Data sets of Hugging Face, which hold Arrow tables: read in their own order, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evenkeel._errors import InvalidTypeError
from evenkeel.data.sources._columns import (
    Block,
    Columns,
    arrow_blocks,
    block_rows,
    other_columns,
    select_columns,
)
from evenkeel.data.sources._memory import row_ranges, rows_identity
from evenkeel.data.sources._source import Fragment, Skip, Source
from evenkeel.data.sources._stream import open_stream

STREAMED_ROWS = 4096


@dataclass(frozen=True)
class DatasetFragment(Fragment):
    """Some rows of a data set that gives Arrow tables, after its own selection and order."""

    dataset: Any
    start: int
    stop: int
    names: tuple[str, ...]

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the rows block by block: those of a shuffled or selected data set are gathered."""
        step = block_rows(len(self.names))
        for first in range(self.start, self.stop, step):
            for batch in self.dataset[first : min(first + step, self.stop)].to_batches():
                yield from arrow_blocks(batch, self.names)


def is_dataset(source: Any) -> bool:
    """Whether an object is one of the package `datasets`, which need not be installed."""
    return type(source).__module__.partition(".")[0] == "datasets" and hasattr(source, "with_format")


def open_dataset(dataset: Any, columns: Columns) -> Source:
    """Open a data set, or one that is read as a stream."""
    if isinstance(dataset, Mapping):
        first = next(iter(dataset), "train")
        raise InvalidTypeError(f"this holds the splits {', '.join(dataset)}; give one, such as dataset[{first!r}]")
    arrow = dataset.with_format("arrow")
    if not hasattr(dataset, "__len__"):
        return open_stream(arrow.iter(batch_size=STREAMED_ROWS), columns)
    schema = arrow.features.arrow_schema
    names = tuple(select_columns(schema.names, other_columns(schema), columns))
    arrow = arrow.select_columns(list(names))
    parts = [DatasetFragment(*rows_identity(a, b), arrow, a, b, names) for a, b in row_ranges(len(dataset), len(names))]
    dtypes = tuple(str(schema.field(name).type) for name in names)
    return Source(f"data set of {len(dataset)} rows", names, parts, dtypes=dtypes)
