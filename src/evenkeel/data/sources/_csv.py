"""CSV files, 1 MB of text at a time; compressed ones are read as they are unpacked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evenkeel._errors import SourceError
from evenkeel._packages import require_package
from evenkeel.data.sources._columns import require_columns
from evenkeel.data.sources._format import BatchWriter, Format, Parts, Sink
from evenkeel.data.sources._objects import Readable, StoredObject

TEXT_BLOCK = 1 << 20
# Where a schema keeps what stands among a column's numbers; what PyArrow reads as no value; and what it says of a word.
WORD = b"word"
NULLS = ("", "#N/A", "#NA", "N/A", "NA", "NULL", "NaN", "nan", "null", "n/a")
LOOKED = 1000
CONVERSION = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to \w+: invalid value '(.*)'")
DELIMITERS = ",;\t|"
PACKINGS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def read_schema(path: Readable) -> Any:
    """The columns of a CSV file, judged by its first megabyte; whole numbers count as float64, as later rows may be.

    A column of text whose values are mostly numbers notes its first word as metadata.
    """
    arrow = require_package("pyarrow")
    with open_csv(path) as reader:
        whole = (arrow.types.is_integer, arrow.types.is_null)
        fields = [f.with_type(arrow.float64()) if any(test(f.type) for test in whole) else f for f in reader.schema]
        if not any(arrow.types.is_string(field.type) for field in fields):
            return arrow.schema(fields)
        first = next(iter(reader), None)
    return arrow.schema([field if first is None else note_word(field, first, first_row(path)) for field in fields])


def note_word(field: Any, first: Any, row: int) -> Any:
    """A column's field, with the first word among its numbers as metadata; `row` is the number of the first row."""
    word = first_word(first.column(field.name)) if first.schema.names.count(field.name) == 1 else None
    return field.with_metadata({WORD: f"{word[1]!r} in row {word[0] + row} among numbers"}) if word else field


def first_word(column: Any) -> tuple[int, str] | None:
    """The position and the text of the first value of a column of text that is no number, where most are numbers.

    Whether most are is judged by the first thousand, so that a column of names need not be parsed.
    """
    if not require_package("pyarrow").types.is_string(column.type):
        return None
    looked = [is_number(text) for text in column.slice(0, LOOKED).to_pylist() if not is_missing(text)]
    if 2 * sum(looked) <= len(looked):
        return None
    texts = ((place, value.as_py()) for place, value in enumerate(column))
    return next(((place, text) for place, text in texts if not is_missing(text) and not is_number(text)), None)


def is_missing(text: str | None) -> bool:
    """Whether a cell of a CSV file stands for no value."""
    return text is None or text.strip() in NULLS


def first_row(path: Readable) -> int:
    """The number of the first row of data: 2 below a header."""
    first = read_first_line(path)
    return 1 if all(is_number(cell) for cell in first.split(max(DELIMITERS, key=first.count))) else 2


def read_batches(path: Readable, names: Sequence[str], parts: Parts) -> Iterator[Any]:
    """Yield the record batches of a CSV file's columns."""
    schema = read_schema(path)
    require_columns(names, schema.names)
    types = {name: schema.field(name).type for name in names}
    try:
        with open_csv(path, types, list(names)) as reader:
            yield from reader
    except ValueError as error:  # PyArrow's, which counts the columns that were asked for
        if not (wrong := CONVERSION.search(str(error))):
            raise
        column, row, word = wrong.groups()
        raise SourceError(
            f"{path}: {word!r} in row {row} of the column {column_of(path, int(column))!r} is no number; write the "
            "number, or leave the cell empty"
        ) from error


def column_of(path: Readable, place: int) -> str:
    """The name of a file's column."""
    return str(read_schema(path).names[place])


def read_first_line(path: Readable) -> str:
    """The first line of a file, unpacked."""
    arrow = require_package("pyarrow")
    with arrow.input_stream(str(path), compression="detect") if isinstance(path, Path) else unpacked(path) as file:
        line: str = file.read(TEXT_BLOCK).partition(b"\n")[0].decode("utf-8", "replace").strip()
    return line


def unpacked(item: StoredObject, *, sequential: bool = False) -> Any:
    """The text of an object, unpacked as its name says."""
    file = item.arrow_file(sequential=sequential)
    packing = next((name for suffix, name in PACKINGS.items() if item.name.lower().endswith(suffix)), None)
    return require_package("pyarrow").CompressedInputStream(file, packing) if packing else file


def open_csv(path: Readable, types: dict[str, Any] | None = None, names: list[str] | None = None) -> Any:
    """Open a CSV file for streaming; its delimiter and whether it has a header are read off its first line."""
    csv = require_package("pyarrow.csv")
    first = read_first_line(path)
    if not first:
        raise SourceError(f"{path}: the file is empty")
    delimiter = max(DELIMITERS, key=first.count)
    headless = all(is_number(cell) for cell in first.split(delimiter))
    return csv.open_csv(
        str(path) if isinstance(path, Path) else unpacked(path, sequential=True),
        read_options=csv.ReadOptions(block_size=TEXT_BLOCK, use_threads=False, autogenerate_column_names=headless),
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=csv.ConvertOptions(column_types=types, include_columns=names),
    )


def is_number(text: str) -> bool:
    """Whether a cell of a CSV file is a number."""
    try:
        float(text.strip().strip('"'))
    except ValueError:
        return False
    return True


def open_writer(sink: Sink, schema: Any) -> BatchWriter:
    """Open a CSV file for writing."""
    target = str(sink) if isinstance(sink, Path) else sink
    return BatchWriter(require_package("pyarrow.csv").CSVWriter(target, schema))


CSV = Format(
    name="CSV",
    schema=read_schema,
    batches=read_batches,
    writer=open_writer,
)
