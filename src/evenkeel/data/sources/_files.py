"""Sources on disk: one file, several, or a directory, with hive partitions where its folders are named key=value."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from evenkeel._errors import SourceError
from evenkeel.data._packages import reading, require_package
from evenkeel.data.sources._columns import NUMERIC, Block, Columns, arrow_blocks, other_columns, select_columns
from evenkeel.data.sources._format import File, Format, Parts
from evenkeel.data.sources._formats import FORMATS
from evenkeel.data.sources._source import Fragment, Skip, Source
from evenkeel.data.statistics import Statistics

# A larger file is read in several parts of at least this size, as its row groups or record batches allow.
PART_BYTES = 1 << 26
# Above so many paths, looking for one that is given twice would take long.
MOST_COMPARED = 1000


@dataclass(frozen=True)
class FileFragment(Fragment):
    """A file of a table format, or some of its row groups or record batches.

    Attributes:
        path: the file.
        names: the columns to read; those of `constants` come from the directories' names.
        format: of the file.
        parts: the row groups or record batches to read; None for all.
        constants: values of columns that the directories' names give.
    """

    path: Path
    names: tuple[str, ...]
    format: Format
    parts: Parts
    constants: tuple[tuple[str, Any], ...]

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the columns block by block."""
        arrow, constants = require_package("pyarrow"), dict(self.constants)
        assert self.format.batches
        for batch in self.format.batches(self.path, [name for name in self.names if name not in constants], self.parts):
            for name, value in constants.items():
                batch = batch.append_column(name, arrow.repeat(value, batch.num_rows))
            yield from arrow_blocks(batch, self.names)

    def add_to(self, statistics: Statistics, skipped: list[Skip] | None) -> None:
        """Update statistics with the rows, by the format's own moments where those will do."""
        if self.format.moments is None or statistics.keeps_quantiles or self.constants:
            super().add_to(statistics, skipped)
            return
        moments, rows, dtypes = self.format.moments(self.path, self.names, self.parts)
        statistics.add_moments(moments, rows=rows, dtypes=dtypes)


def open_path(path: Path, columns: Columns, *, skip: bool) -> Source:
    """Open a file, a directory, or the files that a pattern with * names."""
    files, root = table_files(path)
    return open_files(files, root, str(path), columns, skip)


def open_paths(paths: Sequence[Path], columns: Columns, *, skip: bool) -> Source:
    """Open several files, in the order given, as one source."""
    files = [file for path in paths for file in table_files(path)[0]]
    if len(files) < MOST_COMPARED and (repeated := [f for number, f in enumerate(files) if f in files[:number]]):
        raise SourceError(f"{repeated[0]} is given twice; its rows would count twice")
    root = Path(os.path.commonpath([file.parent.absolute() for file in files]))
    return open_files([file.absolute() for file in files], root, f"{len(files)} files", columns, skip)


def table_files(path: Path) -> tuple[list[Path], Path]:
    """The files of a path in a stable order, and the directory that their keys are relative to."""
    plain = Path(str(path).partition("::")[0])
    if plain.is_dir():
        return directory_files(plain), plain
    if "*" in path.name and not plain.exists():
        matching = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
        if not matching:
            raise SourceError(f"no file matches {path}")
        return matching, path.parent
    if not plain.exists():
        raise SourceError(f"there is no file or directory {plain}")
    if format_of(path) is None:
        raise SourceError(f"{path}: the name tells no format; it must end in one of {known_suffixes()}")
    return [path], plain.parent


def directory_files(root: Path) -> list[Path]:
    """The data files below a directory, sorted; hidden ones and those whose names begin with _ do not count."""
    files: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        files += [Path(folder, name) for name in names if not name.startswith((".", "_"))]
    data = [path for path in files if format_of(path)]
    if not data:
        reason = f"none of its {len(files)} files ends in one of {known_suffixes()}" if files else "it is empty"
        raise SourceError(f"the directory {root} holds no data: {reason}")
    if len(kinds := format_names(data)) > 1:
        pattern = f"{root}/*{data[0].suffix}"
        raise SourceError(f"the directory {root} mixes {' and '.join(kinds)} files; give one kind, such as {pattern}")
    return sorted(data)


def known_suffixes() -> str:
    """The endings of all formats."""
    return ", ".join(suffix for kind in FORMATS for suffix in kind.suffixes)


def format_names(paths: Sequence[Path]) -> list[str]:
    """The names of the formats of files, sorted."""
    return sorted({kind.name if (kind := format_of(path)) else "None" for path in paths})


def format_of(path: Path) -> Format | None:
    """The format that a file's name ends in, or None."""
    name = path.name.partition("::")[0].lower()
    return next((kind for kind in FORMATS if name.endswith(kind.suffixes)), None)


def open_files(paths: Sequence[Path], root: Path, description: str, columns: Columns, skip: bool) -> Source:
    """Open files of one format; their keys are relative to the root."""
    if len(kinds := format_names(paths)) > 1:
        raise SourceError(f"the files are of different formats, {' and '.join(kinds)}; fit them apart and merge")
    kind = format_of(paths[0])
    if kind is None:
        raise SourceError(f"{description}: the names tell no format; they must end in one of {known_suffixes()}")
    files, open_all = [file_at(path, root) for path in paths], kind.open or partial(open_tables, kind)
    return open_all(files, description, columns, skip)


def file_at(path: Path, root: Path) -> File:
    """A file of a source."""
    plain = Path(str(path).partition("::")[0])
    key = plain.relative_to(root).as_posix() if plain.is_relative_to(root) else plain.as_posix()
    try:
        status = plain.stat()
    except OSError:
        return File(path, key, ())  # reading it will say why
    return File(path, key, (status.st_size, status.st_mtime_ns))


def open_tables(kind: Format, files: list[File], description: str, columns: Columns, skip: bool) -> Source:
    """Open files of named columns; the first one that can be read says which there are."""
    schema, skipped = first_schema(files, kind, skip)
    readable = files[len(skipped) :]
    constants = partition_values(readable[0].key)
    asked = [columns] if isinstance(columns, str) else columns or ()
    extra = [name for name in constants if name in asked and name not in schema.names]
    other = other_columns(schema) | {name: "text" for name in extra if isinstance(constants[name], str)}
    names = tuple(select_columns([*schema.names, *extra], other, columns))
    parts = [part for file in readable for part in file_fragments(file, names, kind, skip, extra)]
    dtypes = tuple("int64" if name in extra else str(schema.field(name).type) for name in names)
    return Source(description, names, parts, reads=True, skipped=skipped, dtypes=dtypes)


def first_schema(files: Sequence[File], kind: Format, skip: bool) -> tuple[Any, list[Skip]]:
    """The schema of the first file that can be read, and the files before it."""
    skipped: list[Skip] = []
    for file in files[:-1] if skip else ():
        try:
            return read_schema(file.path, kind), skipped
        except SourceError as error:
            skipped.append(Skip(str(file.path), str(error)))
    return read_schema(files[len(skipped)].path, kind), skipped


def read_schema(path: Path, kind: Format) -> Any:
    """The Arrow schema of a file; SourceError where it cannot be read."""
    assert kind.schema
    with reading(str(path)):
        schema = kind.schema(path)
        tuple(schema.names)  # decodes them, which fails where they are no text
        return schema


def numeric_columns(path: Path) -> list[str] | None:
    """The names of the numeric columns of a file or the first of several, and of those that its folders name.

    None where columns have no names.
    """
    files, root = table_files(path)
    kind = format_of(files[0])
    if kind is None or kind.open is not None:
        names = open_path(path, None, skip=False).names
        return None if names is None else list(names)
    schema, folders = read_schema(files[0], kind), partition_values(file_at(files[0], root).key)
    numbers = [name for name, value in folders.items() if not isinstance(value, str)]
    return select_columns([*dict.fromkeys(schema.names), *numbers], other_columns(schema), NUMERIC)


def dropped_columns(path: Path) -> dict[str, str]:
    """The columns that hold no numbers, with their types, of a file or the first of several."""
    files, _ = table_files(path)
    kind = format_of(files[0])
    return {} if kind is None or kind.open is not None else other_columns(read_schema(files[0], kind))


def partition_values(key: str) -> dict[str, Any]:
    """The columns that the folders of a key name: key=value, a whole number or text."""
    values: dict[str, Any] = {}
    for folder in Path(key).parts[:-1]:
        name, equals, text = folder.partition("=")
        if equals:
            values[name] = int(text) if text.lstrip("-").isdigit() else unquote(text)
    return values


def file_fragments(
    file: File, names: tuple[str, ...], kind: Format, skip: bool, extra: Sequence[str]
) -> Iterator[FileFragment]:
    """Yield the parts in which a file is read."""
    constants = tuple((name, value) for name, value in partition_values(file.key).items() if name in extra)
    sizes: list[int] = []
    if kind.part_sizes and file.signature and file.signature[0] > 2 * PART_BYTES:
        try:
            with reading(str(file.path)):
                sizes = kind.part_sizes(file.path)
        except SourceError:
            if not skip:
                raise  # otherwise reading the whole file will say so once more, and be counted
    groups: list[Parts] = [*grouped(sizes)]
    for parts in groups if len(groups) > 1 else [None]:
        key = f"{file.key}#{parts[0]}-{parts[-1]}" if parts else file.key
        yield FileFragment(key, str(file.path), file.signature, file.path, names, kind, parts, constants)


def grouped(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the positions of neighbouring parts, together at least PART_BYTES each."""
    group: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        group.append(index)
        total += size
        if total >= PART_BYTES:
            yield tuple(group)
            group, total = [], 0
    if group:
        yield tuple(group)
