"""A fitted scaler applied to files of any size, in bounded memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from evenkeel._errors import InvalidArgumentError, SourceError
from evenkeel.data._columns import (
    Block,
    arrow_column,
    block_rows,
    is_numeric,
    require_package,
    resolve,
    select_columns,
)
from evenkeel.data._contract import OnMismatch, report
from evenkeel.data._formats import FileFragment, format_of, open_array_file, reading
from evenkeel.data._source_files import partition_values, schema_of, signature_of, table_files
from evenkeel.data._source_memory import array_columns
from evenkeel.data._writers import WRITERS, WRITTEN, open_writer, writing
from evenkeel.functional._columns import column_affine

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel.data._base import Affine, Scaler
    from evenkeel.data._columns import Columns

__all__ = ["transform_files"]


def transform_files(
    scaler: Scaler,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    columns: Columns = None,
    on_mismatch: OnMismatch = "raise",
    progress: Callable[[int, int, int], None] | None = None,
) -> Path:
    """Write a transformed copy of a file or directory, block by block; other columns are copied as they are.

    Floating columns keep their dtype, integers become float64; nulls stay nulls. A directory becomes a directory with
    the same files, of the same format. Nothing appears under the name ``out`` before all of it is written.

    Args:
        scaler: fitted; the columns are found by the names it was fitted with, in any order.
        source: a Parquet, CSV, Feather, Arrow or ``.npy`` file, or a directory of them.
        out: a ``.parquet``, ``.csv``, ``.feather``, ``.arrow`` or ``.npy`` file, or for a directory a directory.
        columns: which columns those of the scaler are, where the scaler or the file has no names; by default all.
        on_mismatch: what to do with data that contradicts the scaler's contract: ``raise``, ``warn`` or ``ignore``.
        progress: called after each block with the files done, the files there are, and the rows written.

    Returns:
        The path written.

    Raises:
        SourceError: the source cannot be read or lacks columns.
        ContractError: the data is not like that of the fit, and ``on_mismatch="raise"``.
        InvalidArgumentError: the output's format is not known.
        EvenkeelError: the output cannot be written.

    Example:
        >>> import tempfile, numpy as np
        >>> from evenkeel.data import fit, transform_files
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/in.npy", np.array([[1.0], [3.0]]))
        ...     path = transform_files(fit(f"{folder}/in.npy"), f"{folder}/in.npy", f"{folder}/out.npy")
        ...     np.load(path).ravel()
        array([-1.,  1.])
    """
    if on_mismatch not in get_args(OnMismatch):
        raise InvalidArgumentError(f"on_mismatch must be raise, warn or ignore, but got {on_mismatch!r}")
    target = Path(out)
    files, root = table_files(Path(source))
    whole = Path(source).is_dir()
    if not whole and len(files) > 1:
        raise SourceError(f"{source} names {len(files)} files; give one file, or their directory")
    if whole and target.suffix in WRITERS:
        raise InvalidArgumentError(f"{source} is a directory, so the output is one; {target} names a file")
    if not whole and target.suffix not in WRITERS:
        raise InvalidArgumentError(f"cannot write {target}: the name must end in {WRITTEN}")
    if target.exists() and (target.is_dir() or any(target.samefile(file) for file in files if file.exists())):
        raise InvalidArgumentError(
            f"{target} exists already" if target.is_dir() else f"{target} is the input; name another file"
        )
    with writing(target) as temporary:
        if temporary.is_dir():
            shutil.rmtree(temporary)  # what a killed run left
        rows = 0
        for number, file in enumerate(files):
            place = temporary / file.relative_to(root) if whole else temporary
            if whole:
                place.parent.mkdir(parents=True, exist_ok=True)
            suffix = file.suffix if whole else target.suffix
            for written in transform_file(Table(file, root), scaler, columns, place, suffix, on_mismatch):
                rows += written
                if progress is not None:
                    progress(number, len(files), rows)
    return target


class Table:
    """A file as record batches of all its columns, those of the folders' names left out.

    Args:
        path: the file.
        root: the directory that was asked for.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.kind = path, str(format_of(path))
        self.partitions = partition_values(path, root)
        arrow = require_package("pyarrow")
        if self.kind == "image":
            raise SourceError(
                f"{path}: images are not rewritten; use ImageNormalize, or the fitted scaler's to_module()"
            )
        with reading(str(path)):
            if self.kind == "NumPy":
                self.array = self._open_array()
                kind = arrow.from_numpy_dtype(self.array.dtype)
                self.schema = arrow.schema([(str(index), kind) for index in range(self.array.shape[1])])
            else:
                self.schema = schema_of(path, self.kind)

    def _open_array(self) -> np.ndarray[Any, Any]:
        plain, _, member = str(self.path).partition("::")
        array = open_array_file(Path(plain), member)
        if array.ndim != 2 or array.dtype.kind not in "buif":
            raise SourceError(f"expected numbers of shape (rows, columns), but got {array.dtype} of {array.shape}")
        return array

    def batches(self) -> Iterator[Any]:
        """Yield the rows."""
        arrow = require_package("pyarrow")
        if self.kind == "NumPy":
            step = block_rows(self.array.shape[1])
            for start in range(0, len(self.array), step):
                rows = np.ascontiguousarray(self.array[start : start + step].T)
                yield arrow.record_batch([arrow.array(column) for column in rows], schema=self.schema)
        else:
            names = tuple(self.schema.names)
            yield from FileFragment(self.path, "", signature_of(self.path), names, self.kind).batches()


def transform_file(
    table: Table, scaler: Scaler, columns: Columns, out: Path, suffix: str, on_mismatch: OnMismatch
) -> Iterator[int]:
    """Write the transformed copy of one file; yield the rows of each block."""
    arrow = require_package("pyarrow")
    with reading(str(table.path)):
        positions = scaled_columns(table, scaler, columns)
    names = feature_names(scaler)
    fields = list(table.schema)
    for position in positions:
        fields[position] = arrow.field(fields[position].name, floating(fields[position].type))
    if names and table.kind == "NumPy" and len(fields) == len(names):
        fields = [arrow.field(name, field.type) for name, field in zip(names, fields, strict=True)]
    schema, contract, said = arrow.schema(fields), scaler.contract_, set[str]()
    writer = open_writer(out, suffix, schema)
    try:
        with reading(str(table.path)):
            for batch in table.batches():
                columns_now = [arrow_column(batch.column(position)) for position in positions]
                if on_mismatch != "ignore" and batch.num_rows:
                    problems = contract.problems(Block.of_columns(columns_now).tensor(), names=False)
                    report([text for text in problems if text not in said], on_mismatch)
                    said.update(problems)
                writer.write(transformed(batch, columns_now, scaler._affine(), positions, schema))
                yield batch.num_rows
    finally:
        writer.close()


def feature_names(scaler: Scaler) -> tuple[str, ...] | None:
    """The names that a scaler was fitted with."""
    found = getattr(scaler, "feature_names_in_", None)
    return None if found is None else tuple(str(name) for name in found)


def scaled_columns(table: Table, scaler: Scaler, columns: Columns) -> list[int]:
    """The positions in a table of the scaler's features, in the scaler's order."""
    found, width = list(table.schema.names), scaler.n_features_in_
    other = {field.name: str(field.type) for field in table.schema if not is_numeric(field.type)}
    names = feature_names(scaler)
    if columns is not None and table.kind == "NumPy":
        positions = list(array_columns(found, columns) or range(len(found)))
    elif columns is not None:
        positions = [found.index(name) for name in select_columns(found, other, columns)]
    elif names is not None and table.kind != "NumPy":
        positions = [found.index(resolve(name, found)) for name in names]
        select_columns(found, other, names)
    else:
        positions = [index for index, name in enumerate(found) if name not in other]
    if len(positions) != width:
        raise SourceError(
            f"the statistics are of {width} columns, but {len(positions)} were found here; name them with columns="
        )
    return positions


def floating(kind: Any) -> Any:
    """The Arrow type of transformed values: floating types stay, others become float64."""
    arrow = require_package("pyarrow")
    return kind if arrow.types.is_floating(kind) else arrow.float64()


def transformed(batch: Any, columns: Sequence[Tensor], affine: Affine, positions: Sequence[int], schema: Any) -> Any:
    """A record batch with the columns at these positions transformed, each in the dtype it has."""
    arrow = require_package("pyarrow")
    shift, scale, offset = (torch.from_numpy(np.asarray(part, np.float64)) for part in affine[:3])
    arrays = list(batch.columns)
    for index, (position, column) in enumerate(zip(positions, columns, strict=True)):
        wide = column if column.is_floating_point() else column.double()
        one = slice(index, index + 1)
        y = column_affine(wide[:, None], shift[one], scale[one], offset[one], clip=affine.clip)[:, 0]
        mask = arrays[position].is_null().to_numpy(zero_copy_only=False) if arrays[position].null_count else None
        arrays[position] = arrow.array(y.numpy(), type=schema.field(position).type, mask=mask)
    return arrow.record_batch(arrays, schema=schema)
