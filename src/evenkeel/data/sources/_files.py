"""Sources in files: one file, several, or a directory, with hive partitions where its folders are named key=value."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from evenkeel._errors import SourceError
from evenkeel._options.formats import known_endings
from evenkeel._packages import require_package
from evenkeel._threads import side_by_side
from evenkeel.data._packages import reading
from evenkeel.data.sources._columns import NUMERIC, Block, Columns, arrow_blocks, other_columns, select_columns
from evenkeel.data.sources._format import File, Format, Parts
from evenkeel.data.sources._listing import Listing, format_names, format_of, key_of, list_files
from evenkeel.data.sources._objects import SMALL, Readable, current_version, opened, version_of
from evenkeel.data.sources._source import STORED, STORED_SMALL, Fragment, Skip, Source
from evenkeel.data.sources._stores import Place, StoredFile
from evenkeel.data.statistics import Statistics

# A larger file is read in several parts of at least this size, as its row groups or record batches allow.
PART_BYTES = 1 << 26
# Above so many paths, looking for one that is given twice would take long.
MOST_COMPARED = 1000
# The value of a folder that stands for rows without one, as Hive writes it; whole numbers as they are told from text.
NO_VALUE, WHOLE = "__HIVE_DEFAULT_PARTITION__", re.compile(r"-?[0-9]{1,18}")
# Large objects whose ends are read at a time.
OPENED_AT_ONCE = 16


@dataclass(frozen=True)
class FileFragment(Fragment):
    """A file of a table format, or some of its row groups or record batches.

    Attributes:
        path: the file.
        names: the columns to read; those of `constants` come from the directories' names.
        format: of the file.
        parts: the row groups or record batches to read; None for all.
        constants: values of columns that the directories' names give.
        optional: columns that the file lacks are missing there, and no error.
    """

    path: Place
    names: tuple[str, ...]
    format: Format
    parts: Parts
    constants: tuple[tuple[str, Any], ...]
    optional: bool

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the columns block by block."""
        with opened(self.path) as path:
            yield from self._blocks_of(path, self._constants_of(path))

    def _constants_of(self, path: Readable) -> dict[str, Any]:
        """The values of the columns that the file does not hold."""
        constants = dict(self.constants)
        if self.optional and self.format.schema:
            present = {*self.format.schema(path).names, *constants}
            constants |= {name: None for name in self.names if name not in present}
        return constants

    def _blocks_of(self, path: Readable, constants: dict[str, Any]) -> Iterator[Block]:
        arrow = require_package("pyarrow")
        assert self.format.batches
        for batch in self.format.batches(path, [name for name in self.names if name not in constants], self.parts):
            for name, value in constants.items():
                batch = batch.append_column(name, arrow.repeat(arrow.scalar(value, "int64"), batch.num_rows))
            yield from arrow_blocks(batch, self.names)

    def add_to(self, statistics: Statistics, skipped: list[Skip] | None) -> str:
        """Update statistics with the rows, by the format's own moments where those will do."""
        with opened(self.path) as path:
            constants = self._constants_of(path)
            if self.format.moments is None or statistics.keeps_quantiles or constants:
                for block in self._blocks_of(path, constants):
                    block.add_to(statistics)
            else:
                moments, rows, dtypes = self.format.moments(path, self.names, self.parts)
                statistics.add_moments(moments, rows=rows, dtypes=dtypes)
            return version_of(path)

    def version(self) -> str:
        """The version of the object in its store."""
        return current_version(self.path)


def open_path(path: Place, columns: Columns, *, skip: bool) -> Source:
    """Open a file, a directory, or the files that a pattern with * names."""
    return open_files(list_files(path), str(path), columns, skip)


def open_paths(paths: Sequence[Place], columns: Columns, *, skip: bool) -> Source:
    """Open several files, in the order given, as one source."""
    listings = [list_files(path) for path in paths]
    files = [file for listing in listings for file in listing.files]
    if len(files) < MOST_COMPARED and (repeated := [f for number, f in enumerate(files) if f in files[:number]]):
        raise SourceError(f"{repeated[0]} is given twice; its rows would count twice")
    local = [file for file in files if isinstance(file, Path)]
    root = Path(os.path.commonpath([file.parent.absolute() for file in local])) if local else Path()
    places = [file.absolute() if isinstance(file, Path) else file for file in files]
    schema = listings[0].schema if len(listings) == 1 else None
    return open_files(Listing(places, root, False, schema), f"{len(files)} files", columns, skip)


def open_files(listing: Listing, description: str, columns: Columns, skip: bool) -> Source:
    """Open files of one format."""
    paths = listing.files
    if len(kinds := format_names(paths)) > 1:
        raise SourceError(f"the files are of different formats, {' and '.join(kinds)}; fit them apart and merge")
    kind = format_of(paths[0])
    if kind is None:
        raise SourceError(f"{description}: the names tell no format; they must end in one of {known_endings()}")
    files = [file_at(path, listing.root) for path in paths]
    open_all = kind.open or partial(open_tables, kind, listing.schema)
    source = open_all(files, description, columns, skip)
    source.waiting = waiting_of(files)
    return source


def waiting_of(files: Sequence[File]) -> int:
    """The threads for each processor that pay off while files are read: several for those in a store."""
    if not any(isinstance(file.path, StoredFile) for file in files):
        return 1
    sizes = [file.signature[0] for file in files if file.signature]
    return STORED_SMALL if sizes and sum(sizes) <= SMALL * len(sizes) else STORED


def file_at(place: Place, root: Place) -> File:
    """A file of a source."""
    if isinstance(place, StoredFile):
        return File(place, key_of(place, root), () if place.size is None else (place.size, place.modified))
    try:
        status = Path(str(place).partition("::")[0]).stat()
    except OSError:
        return File(place, key_of(place, root), ())  # reading it will say why
    return File(place, key_of(place, root), (status.st_size, status.st_mtime_ns))


def open_tables(kind: Format, whole: Any, files: list[File], description: str, columns: Columns, skip: bool) -> Source:
    """Open files of named columns; the whole table says which there are, or the first file that can be read."""
    schema, skipped = (whole, list[Skip]()) if whole else first_schema(files, kind, skip)
    readable = files[len(skipped) :]
    asked = [columns] if isinstance(columns, str) else columns or ()
    extra = [name for name in partition_values(readable[0].path) if name in asked and name not in schema.names]
    folders = [partition_values(file.path) if extra else {} for file in readable]
    texts = {name for values in folders for name in extra if isinstance(values.get(name), str)}
    other = other_columns(schema) | dict.fromkeys(texts, "text")
    names = tuple(select_columns([*schema.names, *extra], other, columns))

    def fragments_of(file: File) -> list[FileFragment]:
        return file_fragments(file, names, kind, skip, extra, optional=whole is not None)

    dtypes = tuple("int64" if name in extra else str(schema.field(name).type) for name in names)
    parts = all_fragments(readable, fragments_of)
    return Source(description, names, parts, reads=True, skipped=skipped, dtypes=dtypes)


def all_fragments(files: Sequence[File], fragments_of: Callable[[File], list[FileFragment]]) -> list[FileFragment]:
    """The parts of all files; the ends of large objects, which tell their parts, are read side by side."""
    if not any(isinstance(file.path, StoredFile) for file in files):
        return [part for file in files for part in fragments_of(file)]
    return [part for parts in side_by_side(fragments_of, files, OPENED_AT_ONCE) for part in parts]


def first_schema(files: Sequence[File], kind: Format, skip: bool) -> tuple[Any, list[Skip]]:
    """The schema of the first file that can be read, and the files before it."""
    skipped: list[Skip] = []
    for file in files[:-1] if skip else ():
        try:
            return read_schema(file.path, kind), skipped
        except SourceError as error:
            skipped.append(Skip(str(file.path), str(error)))
    return read_schema(files[len(skipped)].path, kind), skipped


def read_schema(place: Place, kind: Format) -> Any:
    """The Arrow schema of a file; SourceError where it cannot be read."""
    assert kind.schema
    with reading(str(place)), opened_as(kind, place) as path:
        schema = kind.schema(path)
        tuple(schema.names)  # decodes them, which fails where they are no text
        return schema


def opened_as(kind: Format, place: Place) -> AbstractContextManager[Any]:
    """Open a place for reading: see `opened`; a table that is a directory stays a place."""
    return nullcontext(place) if kind.directory else opened(place)


def numeric_columns(path: Place) -> list[str] | None:
    """The names of the numeric columns of a file or the first of several, and of those that its folders name.

    None where columns have no names.
    """
    listing = list_files(path)
    first = listing.files[0]
    kind = format_of(first)
    if kind is None or not tells_types(kind):
        names = open_path(path, None, skip=False).names
        return None if names is None else list(names)
    schema, folders = listing.schema or read_schema(first, kind), partition_values(first)
    numbers = [name for name, value in folders.items() if not isinstance(value, str)]
    return select_columns([*dict.fromkeys([*schema.names, *numbers])], other_columns(schema), NUMERIC)


def dropped_columns(path: Place) -> dict[str, str]:
    """The columns that hold no numbers, with their types, of a file or the first of several."""
    listing = list_files(path)
    kind = format_of(listing.files[0])
    if kind is None or not tells_types(kind):
        return {}
    return other_columns(listing.schema or read_schema(listing.files[0], kind))


def tells_types(kind: Format) -> bool:
    """Whether the columns of a file have names, and types that may be others than numbers."""
    return kind.batches is not None and kind.named


def partition_values(place: Place) -> dict[str, Any]:
    """The columns that the folders of a path name: key=value, a whole number, text, or None for a missing value."""
    values: dict[str, Any] = {}
    for folder in (place.path if isinstance(place, StoredFile) else place.as_posix()).split("/")[:-1]:
        name, equals, text = map(unquote, folder.partition("="))
        if equals and name:
            values[name] = None if text == NO_VALUE else int(text) if WHOLE.fullmatch(text) else text
    return values


def file_fragments(
    file: File, names: tuple[str, ...], kind: Format, skip: bool, extra: Sequence[str], *, optional: bool
) -> list[FileFragment]:
    """The parts in which a file is read; `extra` columns come from its folders, see `FileFragment`."""
    constants = tuple((name, value) for name, value in partition_values(file.path).items() if name in extra)
    place, sizes = file.path, list[int]()
    if kind.part_sizes and file.signature and file.signature[0] > 2 * PART_BYTES:
        try:
            with reading(str(place)), opened(place) as path:
                sizes = kind.part_sizes(path)
            if isinstance(place, StoredFile):  # all parts must be of one version
                place = replace(place, version=version_of(path))
        except SourceError:
            if not skip:
                raise  # otherwise reading the whole file will say so once more, and be counted
    groups: list[Parts] = [*grouped(sizes, PART_BYTES)]
    return [
        FileFragment(
            f"{file.key}#{parts[0]}-{parts[-1]}" if parts else file.key,
            *(str(file.path), file.signature, place, names, kind, parts, constants, optional),
        )
        for parts in (groups if len(groups) > 1 else [None])
    ]


def grouped(sizes: Sequence[int], least: int) -> Iterator[tuple[int, ...]]:
    """Yield the positions of neighbouring parts, together at least so many bytes each."""
    group: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        group.append(index)
        total += size
        if total >= least:
            yield tuple(group)
            group, total = [], 0
    if group:
        yield tuple(group)
