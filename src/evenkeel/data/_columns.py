"""Blocks of rows as columns, however they came; which columns are numbers, and which of them are wanted."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenkeel._errors import EvenkeelError, InvalidArgumentError, SourceError
from evenkeel.data._arrays import as_tensor, dtype_name
from evenkeel.data._moments import from_column_moments
from evenkeel.functional._columns import column_moments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from evenkeel.data._statistics import Statistics

    Columns = Sequence[str | int] | str | None

__all__ = [
    "Block",
    "arrow_blocks",
    "arrow_column",
    "block_rows",
    "is_numeric",
    "require_columns",
    "require_package",
    "select_columns",
]

# The word that asks for every numeric column, where others are to be left out without naming them.
NUMERIC = "numeric"
NAMES_SHOWN = 8
# Elements that are copied at a time where columns cannot be read in place: 16 MB of float64.
COPIED_ELEMENTS = 1 << 21
COPIED_ROWS = 1 << 12, 1 << 18


def require_package(module: str, extra: str = "data") -> Any:
    """Import a module that only some sources need, or raise an EvenkeelError that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise EvenkeelError(
            f"this source needs the package {package}, which is not installed; run: pip install 'evenkeel[{extra}]'"
        ) from error


class Block:
    """Rows of a table: one (rows, features) tensor, or a dense (rows,) tensor for each column.

    Columns stay apart as long as they can: Arrow keeps each in memory of its own, and the kernel reads it there.

    Args:
        data: the tensor, or the columns.
        dtypes: how NumPy spells the columns' dtypes.
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
        """How many rows there are."""
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
            moments = from_column_moments(column_moments(self.data))
            statistics.add_moments(moments, rows=self.rows, dtypes=self.dtypes)


def block_rows(columns: int) -> int:
    """Rows of so many columns that are copied at a time."""
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
        return as_tensor(torch.from_dlpack(array))  # 1.4 us, by way of NumPy 6
    types = require_package("pyarrow").types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_decimal(array.type):
        array = array.cast("float64")
    if types.is_boolean(array.type) and array.null_count:
        array = array.cast("uint8")
    return as_tensor(array.to_numpy(zero_copy_only=False))


def is_plain(array: Any) -> bool:
    """Whether an Arrow array is numbers without nulls, of a type that torch can compute with."""
    types, kind = require_package("pyarrow").types, array.type
    plain = types.is_floating(kind) or types.is_signed_integer(kind) or types.is_uint8(kind)
    return bool(plain and array.null_count == 0)


def arrow_blocks(batch: Any, names: Sequence[str]) -> Iterator[Block]:
    """Yield the named columns of an Arrow record batch: as one block, or in several where columns must be copied."""
    columns = [batch.column(name) for name in names]
    step = batch.num_rows if all(map(is_plain, columns)) else block_rows(len(columns))
    for start in range(0, batch.num_rows, step):
        yield Block.of_columns([arrow_column(column.slice(start, step)) for column in columns])


def select_columns(found: Sequence[str], other: dict[str, str], columns: Columns) -> list[str]:
    """Which columns are wanted.

    Args:
        found: the names of all columns in their order.
        other: the columns that hold no numbers, with their types.
        columns: names, or positions in `found`; "numeric" for all that hold numbers; None for all, which then must.

    Raises:
        SourceError: a column is unknown or holds no numbers, or none is left.
    """
    if columns == NUMERIC and NUMERIC not in found:
        wanted = [name for name in found if name not in other]
        if not wanted:
            raise SourceError(f"there is no numeric column among {shown(found)}; {types_of(found, other)}")
        return wanted
    wanted = (
        list(found)
        if columns is None
        else [resolve(c, found) for c in ([columns] if isinstance(columns, str) else columns)]
    )
    if not wanted:
        raise SourceError("no column is left; name at least one in columns=")
    if repeated := [name for name in dict.fromkeys(wanted) if wanted.count(name) > 1 or list(found).count(name) > 1]:
        raise SourceError(
            f"the column {repeated[0]!r} occurs more than once; name or rename columns so that each is one"
        )
    if words := [name for name in wanted if name in other]:
        numeric = [name for name in found if name not in other]
        fix = "name numeric columns only" if columns is not None else f"name the columns to use, of {shown(numeric)}, "
        fix += "" if columns is not None else 'or take all that are numbers with columns="numeric" (--numeric)'
        raise SourceError(f"not numbers: {types_of(words, other)}; {fix if numeric else 'there is no numeric column'}")
    return wanted


def resolve(column: object, found: Sequence[str]) -> str:
    """The name of a column given by name or position."""
    if isinstance(column, str):
        if column in found:
            return column
        near = difflib.get_close_matches(column, list(found), n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {shown(found)}"
        raise SourceError(f"there is no column {column!r}; {hint}")
    if not isinstance(column, int | np.integer) or isinstance(column, bool):
        raise InvalidArgumentError(f"columns: expected names or positions, but got {column!r}")
    if not -len(found) <= column < len(found):
        raise SourceError(f"there is no column {column}: the source has {len(found)}, counted from 0")
    return found[int(column)]


def require_columns(names: Sequence[str], found: Sequence[str]) -> None:
    """Raise `SourceError` where a file lacks columns of the source."""
    if missing := [name for name in names if name not in found]:
        raise SourceError(f"lacks the column {missing[0]!r}, which the source's first file has")


def types_of(names: Sequence[str], other: dict[str, str]) -> str:
    """Names with their types, shortened."""
    return shown([f"{name} ({other[name]})" if name in other else name for name in names])


def shown(names: Sequence[str]) -> str:
    """A list of names, shortened."""
    rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(str(name) for name in names[:NAMES_SHOWN]) + rest
