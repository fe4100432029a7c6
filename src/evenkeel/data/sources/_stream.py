"""Sources that can be read only once, in this process: DataLoaders, generators, any iterable of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from evenkeel._errors import InvalidTypeError, SourceError
from evenkeel.data._arrays import as_tensor
from evenkeel.data.sources._columns import (
    Block,
    Columns,
    arrow_blocks,
    column_positions,
    other_columns,
    refuse_repeated,
    select_columns,
    take_columns,
)
from evenkeel.data.sources._memory import is_frame, table_of
from evenkeel.data.sources._source import Source

NO_BATCHES = "the iterable gives no batches; there is nothing to fit (a generator can be read only once)"


def open_stream(batches: Iterable[Any], columns: Columns, *, empty: str = NO_BATCHES) -> Source:
    """Open an iterable of batches; the error about none of them says `empty`.

    A batch is a (rows, columns) array or tensor, a frame or Arrow table, a dict of columns by name, or a tuple or list
    (inputs, targets, …) of which the inputs count.
    """
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise SourceError(empty)
    first = inputs_of(first)
    all_names, other = columns_of(first)
    names = None if all_names is None else tuple(select_columns(all_names, other, columns))
    positions = column_positions(width_of(first), columns) if names is None else None
    rest = (inputs_of(batch) for batch in iterator)
    stream = (block for batch in chain([first], rest) for block in blocks_of(batch, names, positions))
    return Source(f"iterable ({type(batches).__name__})", names, None, stream)


def inputs_of(batch: Any) -> Any:
    """The inputs of a batch: of (inputs, targets, …) the first."""
    return batch[0] if isinstance(batch, tuple | list) and batch and hasattr(batch[0], "shape") else batch


def columns_of(batch: Any) -> tuple[list[str] | None, dict[str, str]]:
    """The column names of a batch, or None, and the columns that hold no numbers with their types."""
    if isinstance(batch, Mapping):
        flat = flattened(batch)
        return list(flat), {name: kind for name, values in flat.items() if (kind := not_numbers(values))}
    if not isinstance(batch, np.ndarray | torch.Tensor) and is_frame(batch):
        table = table_of(batch, None)
        return table.column_names, other_columns(table.schema)
    return None, {}


def not_numbers(values: Any) -> str:
    """The dtype of a column that holds no numbers, otherwise nothing."""
    kind = values.dtype if isinstance(values, np.ndarray) else None
    return str(kind) if kind is not None and kind.kind not in "buif" else ""


def flattened(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a dict of columns; of a (rows, columns) entry each has the entry's name and its position."""
    flat: dict[str, Any] = {}
    for name, values in batch.items():
        values = values if isinstance(values, torch.Tensor) else np.asarray(values)
        if values.ndim not in (1, 2):
            raise SourceError(
                f"the entry {name!r} of a batch has the shape {tuple(values.shape)}; give (rows,) or (rows, columns)"
            )
        columns = {str(name): values} if values.ndim == 1 else {f"{name}.{i}": v for i, v in enumerate(values.T)}
        refuse_repeated(list(columns), [*flat, *columns])
        flat |= columns
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


def blocks_of(batch: Any, names: tuple[str, ...] | None, positions: tuple[int, ...] | None) -> Iterator[Block]:
    """Yield the selected columns of one batch."""
    if names is None:
        width_of(batch)
        yield Block.of_array(take_columns(batch if hasattr(batch, "shape") else np.asarray(batch), positions))
    elif isinstance(batch, Mapping):
        flat = flattened(batch)
        require_in_batch(names, flat)
        yield Block.of_columns([as_tensor(flat[name]).detach().cpu().contiguous() for name in names])
    else:
        table = table_of(batch, None)
        require_in_batch(names, table.column_names)
        for part in table.to_batches():
            yield from arrow_blocks(part, names)


def require_in_batch(names: tuple[str, ...], present: Iterable[str]) -> None:
    """Raise `SourceError` where a batch lacks columns of the first, or has several of a name."""
    if missing := [name for name in names if name not in present]:
        raise SourceError(f"a batch lacks the column {missing[0]!r}, which the first one has")
    refuse_repeated(names, list(present))
