"""CSV files, 1 MB of text at a time; compressed ones are read as they are unpacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evenkeel._errors import SourceError
from evenkeel.data._packages import require_package
from evenkeel.data.sources._columns import require_columns
from evenkeel.data.sources._format import BatchWriter, Format, Parts

TEXT_BLOCK = 1 << 20
DELIMITERS = ",;\t|"


def read_schema(path: Path) -> Any:
    """The columns of a CSV file, judged by its first megabyte; whole numbers count as float64, as later rows may be."""
    arrow = require_package("pyarrow")
    with open_csv(path) as reader:
        whole = (arrow.types.is_integer, arrow.types.is_null)
        fields = [(f.name, arrow.float64() if any(test(f.type) for test in whole) else f.type) for f in reader.schema]
        return arrow.schema(fields)


def read_batches(path: Path, names: Sequence[str], parts: Parts) -> Iterator[Any]:
    """Yield the record batches of a CSV file's columns."""
    schema = read_schema(path)
    require_columns(names, schema.names)
    with open_csv(path, {name: schema.field(name).type for name in names}, list(names)) as reader:
        yield from reader


def open_csv(path: Path, types: dict[str, Any] | None = None, names: list[str] | None = None) -> Any:
    """Open a CSV file for streaming; its delimiter and whether it has a header are read off its first line."""
    arrow, csv = require_package("pyarrow"), require_package("pyarrow.csv")
    with arrow.input_stream(str(path), compression="detect") as file:
        first = file.read(TEXT_BLOCK).partition(b"\n")[0].decode("utf-8", "replace").strip()
    if not first:
        raise SourceError(f"{path}: the file is empty")
    delimiter = max(DELIMITERS, key=first.count)
    headless = all(is_number(cell) for cell in first.split(delimiter))
    return csv.open_csv(
        str(path),
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


def open_writer(path: Path, schema: Any) -> BatchWriter:
    """Open a CSV file for writing."""
    return BatchWriter(require_package("pyarrow.csv").CSVWriter(str(path), schema))


CSV = Format(
    name="CSV",
    suffixes=(".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.zst"),
    schema=read_schema,
    batches=read_batches,
    written=(".csv",),
    writer=open_writer,
)
