"""Parquet and Arrow files whose rows are documents: of text, which is learned byte by byte, or of token ids.

Rows of token ids follow one another as they are: where documents end is said by an id of the tokenizer's, if by any.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import StudyError
from evenkeel.lab.training._layout import (
    CHUNK,
    SEPARATOR,
    Fill,
    Filled,
    Ids,
    Part,
    Progress,
    check_ids,
    plain_place,
)

if TYPE_CHECKING:
    from evenkeel.data.sources import Place

VALIDATION_DOCUMENTS = 10  # one in so many, by a hash of its content, so that copies stay together
FEW = 1000  # documents; of so many that differ, some fall on each side
ROWS = 1024  # of a table, turned into bytes at a time
PIECE = 1 << 23  # bytes of row groups that are read together; for each piece the file's end is read again
TABLES = {"Parquet", "Arrow"}
STRINGS = "(large_)?(string|binary)(_view)?"
# By unit: the types of its columns as Arrow writes them, and the names that need not be told.
UNITS = {
    "byte": (re.compile(rf"{STRINGS}|dictionary<values={STRINGS}, .*>"), ("text", "content")),
    "token": (re.compile(r"(large_|fixed_size_)?list<[^:<]*: u?int\d+( not null)?>(\[\d+\])?"), ("input_ids",)),
}
# What PyArrow raises about a broken file.
BROKEN = (OSError, ValueError, LookupError, ArithmeticError, NotImplementedError)


@dataclass(frozen=True)
class Column:
    """The column of a table that is learned, and in which unit: a byte or a token."""

    name: str
    unit: str


def table_paths(path: Place) -> list[Place] | None:
    """Return the Parquet or Arrow files that a place names: a file, a pattern with *, or a directory that has some.

    The one place that knows where tables lie.

    Raises:
        StudyError: a directory has other files too.
    """
    from evenkeel.data.sources import format_of, list_files

    plain, _ = plain_place(path)
    visible = sorted(key for key in keys_of(plain) if not any(part[0] in "._" for part in key.split("/")))
    tables = [key for key in visible if getattr(format_of(Path(key)), "name", None) in TABLES]
    if others := tables and sorted({*visible} - {*tables}):
        raise StudyError(
            f"{plain} holds tables ({tables[0]}) and other files ({others[0]}), which are not learned together; give "
            f"one kind, such as {str(plain).partition('*')[0].rstrip('/')}/*{Path(tables[0]).suffix}"
        )
    return list_files(plain).files if tables else None


def keys_of(place: Place) -> Iterable[str]:
    """Return the paths of all files of a directory or a URL, relative to it; of any other path its name."""
    from evenkeel.data.sources import key_of, list_objects

    if not isinstance(place, Path):
        files, root, *_ = list_objects(place)
        return [key_of(file, root) for file in files]
    if place.is_dir():
        return (
            Path(folder, name).relative_to(place).as_posix() for folder, _, names in os.walk(place) for name in names
        )
    return [place.name]


def choose_column(path: Place, asked: str) -> Column:
    """Return the column of a table that is learned: the one asked for, the only one, or the one of a known name."""
    from evenkeel.data.sources import format_of, read_schema

    kind = format_of(path)
    assert kind is not None
    schema = read_schema(path, kind)
    units = {field.name: unit for field in schema if (unit := unit_of(field.type))}
    known = [name for unit, (_, names) in UNITS.items() for name in names if units.get(name) == unit]
    if asked in units:
        return Column(asked, units[asked])
    if not asked and (len(units) == 1 or len({units[name] for name in known}) == 1):
        name = (known or list(units))[0]
        return Column(name, units[name])
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
    lacks = "does not say which column is the text, or the token ids"
    if asked or not units:
        lacks = f"has no column of text or of lists of token ids{f' called {asked!r}' if asked else ''}"
    fix = f"name it: {path}::COLUMN" if units else "give a table with one"
    raise StudyError(f"{path} {lacks} (its columns: {columns}); {fix}")


def unit_of(kind: Any) -> str | None:
    """Return what a column of an Arrow type is learned in, None where it holds neither text nor lists of ids."""
    return next((unit for unit, (types, _) in UNITS.items() if types.fullmatch(str(kind))), None)


def write_rows(files: Sequence[Place], column: Column, vocabulary: int | None, tell: Progress) -> Fill:
    """Return what writes the rows of tables, a document each, one in ten for validation.

    Args:
        files: the tables.
        column: of each.
        vocabulary: how many token ids there are; None means as many as the largest one says.
        tell: is told how many bytes are laid out.
    """

    def fill(train: Part, validation: Part) -> Filled:
        skipped, said = 0, 0
        seen = set[bytes]()  # of the hashes, as many as tell one document from several
        for document in (row for path in files for row in rows_of(path, column, vocabulary)):
            if not len(document):
                skipped += 1
                continue
            digest = hashlib.sha256(bytes(document)).digest()[:8]
            if len(seen) < FEW:
                seen.add(digest)
            held_out = int.from_bytes(digest, "little") % VALIDATION_DOCUMENTS == 0
            (validation if held_out else train).add(document)
            if train.size - said >= CHUNK:
                said = train.size
                tell(said)
        if not (train.documents and validation.documents):
            raise one_sided(files, column, train.documents + validation.documents, len(seen), skipped)
        if column.unit == "byte":
            return Filled(skipped)
        return Filled(skipped, 0, column.unit, vocabulary or max(len(part.counts()) for part in (train, validation)))

    return fill


def one_sided(files: Sequence[Place], column: Column, documents: int, different: int, skipped: int) -> StudyError:
    """Return the error of tables whose documents all fall on one side of the split, or that have none."""
    where = f"the column {column.name!r} of {files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}"
    if not documents:
        learned = "text" if column.unit == "byte" else "token id"
        nothing = f"only rows that are null, empty or binary ({skipped})" if skipped else "no rows"
        return StudyError(f"there is no {learned} in {where}: it has {nothing}; give another table or column")
    these = f"only {different} different documents" if different > 1 else f"only equal documents ({documents})"
    return StudyError(
        f"{where} has {'one document' if documents == 1 else these}, which all fall into one part: one document in "
        f"{VALIDATION_DOCUMENTS} is held out, by a hash of its content; give more that differ, or a file that is no "
        "table, which is split by position"
    )


def rows_of(path: Place, column: Column, vocabulary: int | None = None) -> Iterator[bytes | Ids]:
    """Yield the rows of a column, some row groups or a record batch in memory at a time; missing ones are empty."""
    from evenkeel.data.sources import format_of, grouped, opened

    kind = format_of(path)
    assert kind is not None
    assert kind.batches is not None
    first = 0
    try:
        with opened(path) as file:
            sizes = kind.part_sizes(file) if kind.part_sizes else []
            pieces: list[tuple[int, ...] | None] = [*grouped(sizes, PIECE)] or [None]
            for parts in pieces:
                for batch in kind.batches(file, [column.name], parts):
                    values = batch.column(column.name)
                    if unit_of(values.type) != column.unit:
                        raise StudyError(
                            f"{path}: its column {column.name!r} is of {values.type}, unlike the first file's"
                        )
                    for start in range(0, len(values), ROWS):
                        some = values.slice(start, ROWS)
                        numbered = enumerate(some, first + start)
                        yield from texts_of(some) if column.unit == "byte" else ids_of(numbered, path, vocabulary)
                    first += len(values)
    except BROKEN as error:
        reason = " ".join(str(error).split()).removeprefix(f"{path}: ")
        raise StudyError(f"text {path} cannot be read: {reason}") from error


def texts_of(values: Any) -> Iterator[bytes]:
    """Yield texts as bytes; those that hold what separates documents are none."""
    texts = (value.encode() if isinstance(value, str) else value or b"" for value in values.to_pylist())
    return (b"" if SEPARATOR in text else text for text in texts)


def ids_of(rows: Iterable[tuple[int, Any]], path: Place, vocabulary: int | None) -> Iterator[Ids]:
    """Yield the token ids of numbered rows.

    Raises:
        StudyError: a row has a null or an id that is negative or beyond the vocabulary.
    """
    for number, row in rows:
        where = f"{path}: row {number}, counted from 0,"
        if row.values is not None and row.values.null_count:
            raise StudyError(f"{where} has a null among its token ids; leave it out, or give an id for it")
        ids = np.empty(0, np.uint32) if row.values is None else row.values.to_numpy()
        yield check_ids(ids, where, vocabulary)
