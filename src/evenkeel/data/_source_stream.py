"""Sources that are read but once, in this process: DataLoaders, generators, any iterable of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenkeel._errors import InvalidTypeError, SourceError
from evenkeel.data._arrays import as_tensor
from evenkeel.data._columns import Block, arrow_blocks, select_columns
from evenkeel.data._source_memory import array_columns, arrow_numbers, chosen, is_frame, table_of
from evenkeel.data._sources import Source

if TYPE_CHECKING:
    from evenkeel.data._columns import Columns

__all__ = ["open_stream"]


def open_stream(batches: Iterable[Any], columns: Columns) -> Source:
    """Open an iterable of batches.

    A batch is a (rows, columns) array or tensor, a frame or Arrow table, a dict of columns by name, or a tuple or list
    (inputs, targets, …) of which the inputs count.
    """
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise SourceError("the iterable gives no batches; there is nothing to fit (a generator can be read only once)")
    first = inputs_of(first)
    names, other = described(first)
    wanted: tuple[str, ...] | None = None
    if names is not None:
        wanted = tuple(select_columns(names, other, columns))
    rest = (inputs_of(batch) for batch in iterator)
    kept = None if names is not None else array_columns([str(i) for i in range(width_of(first))], columns)
    stream = (block for batch in chain([first], rest) for block in blocks_of(batch, wanted, kept))
    return Source(f"iterable ({type(batches).__name__})", wanted, None, stream)


def inputs_of(batch: Any) -> Any:
    """The inputs of a batch: of (inputs, targets, …) the first."""
    return batch[0] if isinstance(batch, tuple | list) and batch and hasattr(batch[0], "shape") else batch


def described(batch: Any) -> tuple[list[str] | None, dict[str, str]]:
    """The column names of a batch, or None, and which of the columns hold no numbers."""
    if isinstance(batch, Mapping):
        flat = flattened(batch)
        return list(flat), {name: kind for name, values in flat.items() if (kind := not_numbers(values))}
    if not isinstance(batch, np.ndarray | torch.Tensor) and is_frame(batch):
        table = table_of(batch, None)
        return table.column_names, arrow_numbers(table.schema)
    return None, {}


def not_numbers(values: Any) -> str:
    """What a column holds if not numbers, otherwise nothing."""
    kind = values.dtype if isinstance(values, np.ndarray) else None
    return str(kind) if kind is not None and kind.kind not in "buif" else ""


def flattened(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a dict of columns; of a (rows, columns) entry each has the entry's name and its position."""
    flat: dict[str, Any] = {}
    for name, values in batch.items():
        values = values if isinstance(values, torch.Tensor) else np.asarray(values)
        if values.ndim == 1:
            flat[str(name)] = values
        elif values.ndim == 2:
            flat |= {f"{name}.{index}": values[:, index] for index in range(values.shape[1])}
        else:
            raise SourceError(
                f"the entry {name!r} of a batch has the shape {tuple(values.shape)}; give (rows,) or (rows, columns)"
            )
    if len({len(values) for values in flat.values()}) > 1:
        raise SourceError(
            f"the columns of a batch differ in length: {', '.join(f'{n} {len(v)}' for n, v in flat.items())}"
        )
    return flat


def width_of(batch: Any) -> int:
    """The columns of an array batch."""
    if isinstance(batch, str | bytes | int | float):
        raise InvalidTypeError(f"expected batches of rows, but the iterable gives {type(batch).__name__}")
    array = batch if isinstance(batch, torch.Tensor) else np.asarray(batch)
    if array.ndim != 2:
        raise SourceError(
            f"expected batches of shape (rows, columns), but got {tuple(array.shape)}; wrap single samples in "
            "torch.utils.data.DataLoader(dataset, batch_size=1024)"
        )
    return int(array.shape[1])


def blocks_of(batch: Any, names: tuple[str, ...] | None, kept: tuple[int, ...] | None) -> Iterator[Block]:
    """The wanted columns of one batch."""
    if names is None:
        width_of(batch)
        yield Block.of_array(chosen(batch if hasattr(batch, "shape") else np.asarray(batch), kept))
    elif isinstance(batch, Mapping):
        flat = flattened(batch)
        if missing := [name for name in names if name not in flat]:
            raise SourceError(f"a batch lacks the column {missing[0]!r}, which the first one has")
        columns = [as_tensor(flat[name]).detach().cpu().contiguous() for name in names]
        yield Block.of_columns(columns)
    else:
        table = table_of(batch, None)
        if missing := [name for name in names if name not in table.column_names]:
            raise SourceError(f"a batch lacks the column {missing[0]!r}, which the first one has")
        for part in table.to_batches():
            yield from arrow_blocks(part, names)
