"""How each kind of file is read: in parts, in bounded memory, as numbers only.

What a reader holds at a time is a piece of some columns (Parquet), about two million values of all (Arrow), 1 MB of
text (CSV) or one image; and the mapped pages of a part (Arrow, NumPy), which go back after it.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import EvenkeelError, SourceError
from evenkeel.data._columns import Block, arrow_blocks, block_rows, require_columns, require_package
from evenkeel.data._parquet import column_by_column, read_parquet
from evenkeel.data._source_memory import chosen
from evenkeel.data._sources import Fragment, Skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenkeel.data._statistics import Statistics

__all__ = ["FORMATS", "FileFragment", "format_of", "open_array_file", "reading"]

TEXT_BLOCK = 1 << 20
DELIMITERS = ",;\t|"
CHANNELS = ("red", "green", "blue")

# Format by the end of a file's name. Compressed CSV is read as it is unpacked.
FORMATS = {
    **dict.fromkeys((".parquet", ".pq"), "Parquet"),
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.zst"), "CSV"),
    **dict.fromkeys((".feather", ".arrow", ".ipc", ".arrows"), "Arrow"),
    ".npy": "NumPy",
    ".npz": "NumPy",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"), "image"),
}


def format_of(path: Path) -> str | None:
    """The format that a file's name ends in, or None."""
    name = path.name.partition("::")[0].lower()
    return next((kind for suffix, kind in FORMATS.items() if name.endswith(suffix)), None)


@contextlib.contextmanager
def reading(label: str) -> Iterator[None]:
    """Turn whatever the libraries raise about a broken file into a SourceError that names it."""
    try:
        yield
    except EvenkeelError as error:
        if str(error).startswith(label):
            raise
        raise type(error)(f"{label}: {error}") from error
    except (OSError, ValueError, LookupError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        line = next(iter(" ".join(reason.split()).split(". Is this")), "")
        raise SourceError(f"{label}: cannot be read: {line or type(error).__name__}") from error


@dataclass(frozen=True)
class FileFragment(Fragment):
    """A file of a table format, or some of its row groups or record batches.

    Attributes:
        path: the file.
        key: its path within the source.
        signature: its size and time of modification.
        names: the wanted columns; those of `constants` come from the directories' names.
        kind: the format.
        parts: the row groups or record batches to read; None for all.
        constants: values of columns that the directories' names give.
    """

    path: Path
    key: str
    signature: tuple[int, ...]
    names: tuple[str, ...]
    kind: str
    parts: tuple[int, ...] | None = None
    constants: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:  # type: ignore[override]
        """The path."""
        return str(self.path)

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield Arrow record batches of the wanted columns, or of others that are named."""
        constants = dict(self.constants)
        stored = [name for name in (self.names if names is None else names) if name not in constants]
        yield from READERS[self.kind](self.path, stored, self.parts)

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the wanted columns block by block."""
        arrow = require_package("pyarrow")
        constants = dict(self.constants)
        for batch in self.batches():
            for name, value in constants.items():
                if name in self.names:
                    batch = batch.append_column(name, arrow.repeat(value, batch.num_rows))
            yield from arrow_blocks(batch, self.names)

    def add_to(self, statistics: Statistics, skipped: list[Skip] | None) -> None:
        """Update statistics with the rows; the columns of Parquet files one after the other, where that will do."""
        if self.kind != "Parquet" or statistics.keeps_quantiles or self.constants:
            super().add_to(statistics, skipped)
            return
        moments, rows, dtypes = column_by_column(self.path, self.names, self.parts)
        statistics.add_moments(moments, rows=rows, dtypes=dtypes)


def read_arrow(path: Path, names: Sequence[str], parts: tuple[int, ...] | None) -> Iterator[Any]:
    """Yield the record batches of an Arrow file or stream (Feather is an Arrow file), mapped and not read."""
    arrow = require_package("pyarrow")
    with arrow.memory_map(str(path)) as mapped:
        if is_arrow_stream(path):
            reader = arrow.ipc.open_stream(mapped)
            found = iter(reader)
        else:
            reader = arrow.ipc.open_file(mapped)
            found = (reader.get_batch(i) for i in (range(reader.num_record_batches) if parts is None else parts))
        require_columns(names, reader.schema.names)
        for batch in found:
            wanted = batch.select(list(names))
            rows = block_rows(len(names))
            yield from (wanted.slice(start, rows) for start in range(0, wanted.num_rows, rows))


def is_arrow_stream(path: Path) -> bool:
    """Whether an Arrow file is of the streaming kind, which has no magic bytes."""
    with path.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"FEA1"):
        raise SourceError(f"{path}: cannot be read: Feather version 1; write it again with a newer library")
    return start != b"ARROW1"


def read_csv(path: Path, names: Sequence[str], parts: tuple[int, ...] | None) -> Iterator[Any]:
    """Yield the record batches of a CSV file's columns; whole numbers are read as float64, as later rows may be."""
    schema = csv_schema(path)
    require_columns(names, schema.names)
    with open_csv(path, {name: schema.field(name).type for name in names}, list(names)) as reader:
        yield from reader


def csv_schema(path: Path) -> Any:
    """The columns of a CSV file, judged by its first megabyte."""
    arrow = require_package("pyarrow")
    with open_csv(path) as reader:
        whole = (arrow.types.is_integer, arrow.types.is_null)
        fields = [(f.name, arrow.float64() if any(test(f.type) for test in whole) else f.type) for f in reader.schema]
        return arrow.schema(fields)


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


READERS = {"Parquet": read_parquet, "Arrow": read_arrow, "CSV": read_csv}


@dataclass(frozen=True)
class ArrayFragment(Fragment):
    """Some rows of a .npy file or of a member of a .npz file, mapped while they are read."""

    path: Path
    file_key: str
    signature: tuple[int, ...]
    member: str
    start: int
    stop: int
    columns: tuple[int, ...] | None

    @property
    def key(self) -> str:  # type: ignore[override]
        """The file within its source, and the first row."""
        return f"{self.file_key}#{self.start}"

    @property
    def label(self) -> str:  # type: ignore[override]
        """The path."""
        return str(self.path)

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the rows as one block; the map ends with it, and the pages go back."""
        array = open_array_file(self.path, self.member)
        yield Block.of_array(chosen(array[self.start : self.stop], self.columns))


def open_array_file(path: Path, member: str = "") -> np.ndarray[Any, Any]:
    """Map a .npy file, or an array of a .npz file (read whole where it is compressed)."""
    if path.suffix.lower() == ".npy":
        if os.path.getsize(path) == 0:
            raise SourceError(f"{path}: the file is empty")
        return np.load(path, mmap_mode="r", allow_pickle=False)
    with zipfile.ZipFile(path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        if not member and len(members) != 1:
            raise SourceError(f"{path} holds {len(members)} arrays: {', '.join(members)}; choose one as {path}::NAME")
        if member and member not in members:
            raise SourceError(f"{path} holds no array {member!r}; there are {', '.join(members)}")
        info = archive.getinfo(f"{member or members[0]}.npy")
        if info.compress_type != zipfile.ZIP_STORED:
            with archive.open(info) as file:
                return np.lib.format.read_array(file, allow_pickle=False)
    return map_member(path, info.header_offset)


def map_member(path: Path, offset: int) -> np.ndarray[Any, Any]:
    """Map an array that is stored uncompressed in a zip archive."""
    with path.open("rb") as file:
        file.seek(offset + 26)  # the local header ends with the lengths of name and extra field, and these
        file.seek(int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little"), os.SEEK_CUR)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise SourceError("holds Python objects; save numbers")
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


@dataclass(frozen=True)
class ImagesFragment(Fragment):
    """Some images of a folder: each pixel is a row, each channel a column."""

    paths: tuple[Path, ...]
    key: str
    signature: tuple[int, ...]

    @property
    def label(self) -> str:  # type: ignore[override]
        """The first path."""
        return str(self.paths[0])

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the pixels of one image at a time."""
        for path in self.paths:
            try:
                with reading(str(path)):
                    pixels = read_image(path)
            except SourceError as error:
                if skipped is None:
                    raise
                skipped.append(Skip(str(path), str(error)))
                continue
            yield Block.of_array(pixels)


def read_image(path: Path) -> np.ndarray[Any, Any]:
    """The (pixels, 3) colours of an image, 0 to 255; grey and palette images become RGB."""
    with require_package("PIL.Image").open(path) as image:
        if image.mode.startswith(("I", "F")):
            raise SourceError(
                f"{path}: holds {image.mode} values, not 8 bits a channel; convert it, or read it as an array"
            )
        return np.asarray(image.convert("RGB")).reshape(-1, len(CHANNELS))
