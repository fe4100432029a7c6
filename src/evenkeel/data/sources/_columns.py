"""Columns of numbers: blocks of rows, Arrow arrays as tensors, and the choice among a source's columns."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenkeel._errors import InvalidArgumentError, SourceError
from evenkeel._packages import require_package
from evenkeel.data._arrays import as_tensor, dtype_name
from evenkeel.data.statistics import Statistics, table_moments

Columns = Sequence[str | int] | str | None

# The word that asks for every numeric column, where others are to be left out without naming them.
NUMERIC = "numeric"
MOST_NAMES = 8
# Elements that are copied at a time where columns cannot be read in place: 16 MB of float64.
COPIED_ELEMENTS = 1 << 21
COPIED_ROWS = 1 << 12, 1 << 18


class Block:
    """Rows of a table: one (rows, features) tensor, or a dense (rows,) tensor for each column.

    Columns are not joined where they need not be: Arrow keeps each in memory of its own, and the kernel reads it there.

    Args:
        data: the tensor, or the columns.
        dtypes: the columns' dtypes as NumPy spells them.
    """

    def __init__(self, data: Tensor | Sequence[Tensor], dtypes: Sequence[str]) -> None:
        self.data, self.dtypes = data, tuple(dtypes)

    @classmethod
    def of_array(cls, array: Any) -> Block:
        """The block over the memory of a (rows, features) array or tensor."""
        return cls(as_tensor(array), [dtype_name(array)])

    @classmethod
    def of_columns(cls, columns: Sequence[Tensor]) -> Block:
        """The block of (rows,) tensors, one for each column."""
        return cls(columns, [str(column.dtype).removeprefix("torch.") for column in columns])

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.data if isinstance(self.data, torch.Tensor) else self.data[0])

    def tensor(self) -> Tensor:
        """(rows, features), in the dtype that holds every column; column by column in memory where it was copied."""
        if isinstance(self.data, torch.Tensor):
            return self.data
        if len(self.data) == 1:
            return self.data[0][:, None]
        dtype = np.result_type(*(column.numpy().dtype for column in self.data))
        table = np.empty((len(self.data), self.rows), dtype)
        for row, column in zip(table, self.data, strict=True):
            np.copyto(row, column.numpy())
        return torch.from_numpy(table).T

    def add_to(self, statistics: Statistics) -> None:
        """Update statistics with these rows."""
        if isinstance(self.data, torch.Tensor):
            statistics.update(self.data)
        elif statistics.keeps_quantiles:
            step = block_rows(len(self.data))
            for start in range(0, self.rows, step):
                part = Block([column[start : start + step] for column in self.data], self.dtypes)
                statistics.update(part.tensor())
        else:
            statistics.add_moments(table_moments(self.data), rows=self.rows, dtypes=self.dtypes)


def block_rows(columns: int) -> int:
    """The rows that are copied at a time, for a number of columns."""
    least, most = COPIED_ROWS
    return min(max(COPIED_ELEMENTS // max(columns, 1), least), most)


def is_numeric(kind: Any) -> bool:
    """Whether an Arrow type holds numbers; truth values count as 0 and 1."""
    types = require_package("pyarrow").types
    if types.is_dictionary(kind):
        return is_numeric(kind.value_type)
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind))


def arrow_column(array: Any) -> Tensor:
    """The numbers of an Arrow array as a tensor over its memory; NaN where it has nulls, which takes a copy."""
    if is_plain(array):
        return torch.from_dlpack(array)  # 1.4 us, by way of NumPy 6
    types = require_package("pyarrow").types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_decimal(array.type):
        array = array.cast("float64")
    if types.is_boolean(array.type) and array.null_count:
        array = array.cast("uint8")
    return as_tensor(array.to_numpy(zero_copy_only=False))


def is_plain(array: Any) -> bool:
    """Whether an Arrow array holds numbers without nulls, of a type that torch can compute with."""
    types, kind = require_package("pyarrow").types, array.type
    plain = types.is_floating(kind) or types.is_signed_integer(kind) or types.is_uint8(kind)
    return bool(plain and array.null_count == 0)


def arrow_blocks(batch: Any, names: Sequence[str]) -> Iterator[Block]:
    """Yield the named columns of an Arrow record batch: as one block, or in several where columns must be copied."""
    columns = [batch.column(name) for name in names]
    step = batch.num_rows if all(map(is_plain, columns)) else block_rows(len(columns))
    for start in range(0, batch.num_rows, step):
        yield Block.of_columns([arrow_column(column.slice(start, step)) for column in columns])


def other_columns(schema: Any) -> dict[str, str]:
    """The columns of an Arrow schema that hold no numbers, with their types; a name that has numbers too is not one.

    Where a CSV file's column of text is one because of a word among numbers, the word is named with its row.
    """
    numbers = {field.name for field in schema if is_numeric(field.type)}
    return {field.name: type_of(field) for field in schema if field.name not in numbers}


def type_of(field: Any) -> str:
    """The type of an Arrow field in words, with the word that a CSV file has among its numbers."""
    word = (field.metadata or {}).get(b"word")
    return f"{field.type}: {word.decode()}" if word else str(field.type)


def select_columns(names: Sequence[str], other: dict[str, str], columns: Columns) -> list[str]:
    """Choose among the columns of a source.

    Args:
        names: all columns in their order.
        other: the columns that hold no numbers, with their types.
        columns: names, or positions in `names`; "numeric" for all that hold numbers; None for all, which then must.

    Raises:
        SourceError: a column is unknown, holds no numbers or shares its name with another, or none is left.
    """
    numeric = [name for name in names if name not in other]
    asked = [columns] if isinstance(columns, str) else columns
    if columns == NUMERIC and NUMERIC not in names:
        if not numeric:
            raise SourceError(f"there is no numeric column among {first_of(names)}; {types_of(names, other)}")
        selected = numeric
    else:
        selected = list(names) if asked is None else [column_name(column, names) for column in asked]
    if not selected:
        raise SourceError("no column is left; name at least one in columns=")
    refuse_repeated(selected, names)
    if words := [name for name in selected if name in other]:
        fix = "name numeric columns only"
        if asked is None:
            fix = f"name the columns to use, of {first_of(numeric)}, "
            fix += 'or take all that are numbers with columns="numeric" (--numeric)'
        raise SourceError(f"not numbers: {types_of(words, other)}; {fix if numeric else 'there is no numeric column'}")
    return selected


def refuse_repeated(selected: Sequence[str], names: Sequence[str]) -> None:
    """Raise `SourceError` where one of the selected columns shares its name with another."""
    counts, asked = Counter(names), Counter(selected)
    if shared := [name for name in asked if counts[name] > 1]:
        raise SourceError(
            f"several columns have the name {first_of(list(map(repr, shared)))}; rename them so that each name is one, "
            "or name other columns in columns= (--columns)"
        )
    if repeated := [name for name, count in asked.items() if count > 1]:
        raise SourceError(f"the column {repeated[0]!r} is asked for more than once; name it once in columns=")


def column_name(column: object, names: Sequence[str]) -> str:
    """The name of a column given by name or position."""
    if isinstance(column, str):
        if column in names:
            return column
        near = difflib.get_close_matches(column, list(names), n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {first_of(names)}"
        raise SourceError(f"there is no column {column!r}; {hint}")
    if not isinstance(column, int | np.integer) or isinstance(column, bool):
        raise InvalidArgumentError(f"columns: expected names or positions, but got {column!r}")
    if not -len(names) <= column < len(names):
        raise SourceError(f"there is no column {column}: the source has {len(names)}, counted from 0")
    return names[int(column)]


def column_positions(width: int, columns: Columns) -> tuple[int, ...] | None:
    """Choose among the columns of an array, by numbers that may be typed as text; None for all."""
    if columns is None or columns == NUMERIC:
        return None
    return tuple(int(name) for name in select_columns([str(index) for index in range(width)], {}, columns))


def take_columns(array: Any, positions: tuple[int, ...] | None) -> Any:
    """Columns of a (rows, columns) array, without a copy where they lie at equal distances; None for all."""
    if positions is None:
        return array
    steps = set(np.diff(positions).tolist()) or {1}
    if len(steps) == 1 and (step := steps.pop()) > 0:
        return array[:, positions[0] : positions[-1] + 1 : step]
    return array[:, list(positions)]


def require_columns(names: Sequence[str], present: Sequence[str]) -> None:
    """Raise `SourceError` where a file lacks columns of the source, or has several of a name."""
    if missing := [name for name in names if name not in present]:
        raise SourceError(f"lacks the column {missing[0]!r}, which the source's first file has")
    refuse_repeated(names, present)


def types_of(names: Sequence[str], other: dict[str, str]) -> str:
    """Names with their types, shortened."""
    return first_of([f"{name} ({other[name]})" if name in other else name for name in names])


def first_of(names: Sequence[str]) -> str:
    """The first of a list of names, and how many more there are."""
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(str(name) for name in names[:MOST_NAMES]) + rest
