"""A fitted scaler applied to files of any size, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from evenkeel._errors import InvalidArgumentError, SourceError
from evenkeel._options.urls import scheme_of
from evenkeel._packages import require_package
from evenkeel.data._contract import OnMismatch, check_on_mismatch, report
from evenkeel.data._packages import reading
from evenkeel.data.scalers import Affine, map_table
from evenkeel.data.sources import (
    WRITERS,
    Block,
    Columns,
    Format,
    Place,
    arrow_column,
    column_name,
    column_positions,
    format_of,
    inside,
    is_directory,
    key_of,
    list_files,
    locate,
    open_writer,
    opened_as,
    other_columns,
    read_schema,
    select_columns,
    writing,
)

if TYPE_CHECKING:
    from evenkeel.data.scalers import Scaler


def transform_files(
    scaler: Scaler,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    columns: Columns = None,
    on_mismatch: OnMismatch = "raise",
    progress: Callable[[int, int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path | str:
    """Write a transformed copy of a file or directory, block by block; other columns are copied as they are.

    Floating columns keep their dtype, integers become float64; nulls stay nulls. A directory becomes a directory with
    the same files, of the same format. Nothing appears under the name ``out`` before all of it is written.

    Args:
        scaler: fitted; the columns are found by the names it was fitted with, in any order.
        source: a Parquet, CSV, Feather, Arrow or ``.npy`` file, or a directory of them; a path or a URL.
        out: a ``.parquet``, ``.csv``, ``.feather``, ``.arrow`` or ``.npy`` file, or for a directory a directory; a path
            or a URL. A ``.npy`` file for a store is first written here, into the directory of temporary files.
        columns: which columns those of the scaler are, where the scaler or the file has no names; by default all.
        on_mismatch: what to do with data that contradicts the scaler's contract: ``raise``, ``warn`` or ``ignore``.
        progress: called after each block with the files done, the files there are, and the rows written.
        storage_options: for the client of the store that a URL names; see `fit`.

    Returns:
        The path or URL written.

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
    check_on_mismatch(on_mismatch)
    place, target = locate_both(source, out, storage_options)
    files, root, whole, *_ = list_files(place)
    check_target(target, place, files, whole=whole)
    task = Task(scaler, columns, on_mismatch)
    with writing(target) as temporary:
        rows = 0
        for number, file in enumerate(files):
            part = inside(temporary, key_of(file, root)) if whole else temporary
            for written in transform_file(file, part, file.suffix if whole else target.suffix, task):
                rows += written
                if progress is not None:
                    progress(number, len(files), rows)
    return target if isinstance(target, Path) else str(target)


@dataclass(frozen=True)
class Task:
    """The work on each file; see `transform_files`."""

    scaler: Scaler
    columns: Columns
    on_mismatch: OnMismatch


def locate_both(source: Any, out: Any, options: Mapping[str, Any] | None) -> tuple[Place, Place]:
    """The places of the input and the output; options are for the one that is a URL, or for both."""
    if not (scheme_of(source) or scheme_of(out)):
        return locate(source, options), locate(out)
    place, target = (locate(text, options if scheme_of(text) else None) for text in (source, out))
    return place, target


def check_target(target: Place, source: Place, files: Sequence[Place], *, whole: bool) -> None:
    """Raise unless the result can be written there; `whole` says that the source is a directory."""
    if not whole and len(files) > 1:
        raise SourceError(f"{source} names {len(files)} files; give one file, or their directory")
    if whole and target.suffix in WRITERS:
        raise InvalidArgumentError(f"{source} is a directory, so the output is one; {target} names a file")
    if not whole and target.suffix not in WRITERS:
        raise InvalidArgumentError(f"cannot write {target}: the name must end in {', '.join(WRITERS)}")
    if is_directory(target):
        raise InvalidArgumentError(f"{target} exists already, as a directory; name another")
    if is_one_of(target, files):
        raise InvalidArgumentError(f"{target} is the input; name another file")


def is_one_of(target: Place, files: Sequence[Place]) -> bool:
    """Whether a file is one of several, by whatever name."""
    if not isinstance(target, Path):
        return target in files
    local = (file for file in files if isinstance(file, Path))
    return target.exists() and any(target.samefile(file) for file in local if file.exists())


def transform_file(place: Place, out: Place, suffix: str, task: Task) -> Iterator[int]:
    """Write the transformed copy of one file; yield the rows of each block."""
    kind = table_format(place)
    table = read_schema(place, kind)
    with reading(str(place)):
        positions = scaled_columns(table, kind, task)
    schema = transformed_schema(table, kind, positions, task.scaler)
    batches = transformed_batches(place, kind, table.names, positions, schema, task)
    with open_writer(out, suffix, schema) as writer, closing(batches):
        for batch in batches:
            writer.write(batch)
            yield batch.num_rows


def transformed_batches(
    place: Place, kind: Format, names: Sequence[str], positions: Sequence[int], schema: Any, task: Task
) -> Generator[Any]:
    """Yield the record batches of a file's copy; errors meanwhile are about the file."""
    affine, contract, reported = task.scaler._affine(), task.scaler.contract_, set[str]()
    assert kind.batches
    with reading(str(place)), opened_as(kind, place) as path:
        for batch in kind.batches(path, names, None):
            columns = [arrow_column(batch.column(position)) for position in positions]
            if task.on_mismatch != "ignore" and batch.num_rows:
                problems = contract.problems(Block.of_columns(columns).tensor(), names=False)
                report([text for text in problems if text not in reported], task.on_mismatch)
                reported.update(problems)
            yield transformed(batch, columns, affine, positions, schema)


def table_format(path: Place) -> Format:
    """The format of a file that holds a table."""
    kind = format_of(path)
    if kind is None or kind.batches is None:
        raise SourceError(f"{path}: images are not rewritten; use ImageNormalize, or the fitted scaler's to_module()")
    return kind


def feature_names(scaler: Scaler) -> tuple[str, ...] | None:
    """The names that a scaler was fitted with."""
    names = getattr(scaler, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def scaled_columns(schema: Any, kind: Format, task: Task) -> list[int]:
    """The positions in a table of the scaler's features, in the scaler's order."""
    present, other = list(schema.names), other_columns(schema)
    names, width = feature_names(task.scaler), task.scaler.n_features_in_
    if task.columns is not None and not kind.named:
        positions = list(column_positions(len(present), task.columns) or range(len(present)))
    elif task.columns is not None:
        positions = [present.index(name) for name in select_columns(present, other, task.columns)]
    elif names is not None and kind.named:
        positions = [present.index(column_name(name, present)) for name in names]
        select_columns(present, other, names)
    else:
        positions = [index for index, name in enumerate(present) if name not in other]
    if len(positions) != width:
        raise SourceError(
            f"the statistics are of {width} columns, but {len(positions)} were found here; name them with columns="
        )
    return positions


def transformed_schema(schema: Any, kind: Format, positions: Sequence[int], scaler: Scaler) -> Any:
    """The schema of the copy: scaled columns are floating; columns without names get those of the scaler."""
    arrow, names = require_package("pyarrow"), feature_names(scaler)
    fields = list(schema)
    for position in positions:
        floating = arrow.types.is_floating(fields[position].type)
        fields[position] = arrow.field(fields[position].name, fields[position].type if floating else arrow.float64())
    if names and not kind.named and len(fields) == len(names):
        fields = [arrow.field(name, field.type) for name, field in zip(names, fields, strict=True)]
    return arrow.schema(fields)


def transformed(batch: Any, columns: Sequence[Tensor], affine: Affine, positions: Sequence[int], schema: Any) -> Any:
    """A record batch with the columns at these positions transformed, each in the dtype it has."""
    arrow = require_package("pyarrow")
    arrays = list(batch.columns)
    for index, (position, column) in enumerate(zip(positions, columns, strict=True)):
        wide = column if column.is_floating_point() else column.double()
        y = map_table(wide[:, None], affine.of(slice(index, index + 1)))
        assert y is not None
        mask = arrays[position].is_null().to_numpy(zero_copy_only=False) if arrays[position].null_count else None
        arrays[position] = arrow.array(y[:, 0].numpy(), type=schema.field(position).type, mask=mask)
    return arrow.record_batch(arrays, schema=schema)
