"""NumPy's .npy and .npz files: mapped while they are read, and written block by block."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from evenkeel._errors import InvalidArgumentError, SourceError
from evenkeel._options.names import nearest
from evenkeel._packages import require_package
from evenkeel.data._packages import reading
from evenkeel.data.sources._columns import Block, Columns, block_rows, take_columns
from evenkeel.data.sources._format import BatchWriter, File, Format, Parts
from evenkeel.data.sources._memory import open_array
from evenkeel.data.sources._objects import (
    Readable,
    StoredObject,
    current_version,
    opened,
    python_file,
    read_ranges,
    size_of,
    version_of,
)
from evenkeel.data.sources._source import Fragment, Skip, Source
from evenkeel.data.sources._stores import Place, StoredFile
from evenkeel.data.statistics import Statistics

HEADER_BYTES = 128
# NumPy's own limit for the text of a header.
MOST_HEADER = 10_000
# The fixed part of a zip member's header, and the flag of one with a password.
LOCAL_HEADER, ENCRYPTED = 30, 1
# The most that deflate makes of a byte, and about the most that bzip2 and LZMA do.
DEFLATE_RATIO, OTHER_RATIO = 1032, 50_000


@dataclass(frozen=True)
class ArrayFragment(Fragment):
    """Some rows of a .npy file or of a member of a .npz file, mapped while they are read."""

    path: Place
    start: int
    stop: int
    columns: tuple[int, ...] | None

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the rows as one block; the map ends with it, and the pages go back."""
        with opened(self.path) as path:
            yield self._block(path)

    def add_to(self, statistics: Statistics, skipped: list[Skip] | None) -> str:
        """Update statistics with the rows."""
        with opened(self.path) as path:
            self._block(path).add_to(statistics)
            return version_of(path)

    def version(self) -> str:
        """The version of the object in its store."""
        return current_version(self.path)

    def _block(self, path: Readable) -> Block:
        return Block.of_array(take_columns(open_array_file(path)[self.start : self.stop], self.columns))


@dataclass(frozen=True)
class StoredArray:
    """An array in an object of a store: rows are read when they are asked for, the bytes of those alone.

    Attributes:
        item: the object.
        offset: of its first value.
        shape: of the array.
        fortran: whether its columns lie one after the other.
        dtype: of its values.
    """

    item: StoredObject
    offset: int
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        runs = math.prod(self.shape[1:]) if self.fortran else 1
        row = self.dtype.itemsize * (1 if self.fortran else math.prod(self.shape[1:]))
        first = [self.offset + (run * len(self) + start) * row for run in range(runs)]
        values = np.empty((runs, (stop - start) * row), np.uint8)
        ranges = [(at, at + values.shape[1]) for at in first]
        for line, data in zip(values, read_ranges(self.item, ranges), strict=True):
            line[:] = np.frombuffer(data, np.uint8)
        shape = (stop - start, *self.shape[1:])
        return values.reshape(-1).view(self.dtype).reshape(shape, order="F" if self.fortran else "C")


def open_arrays(files: list[File], description: str, columns: Columns, skip: bool) -> Source:
    """Open .npy and .npz files: the rows of all of them."""
    dtypes: tuple[str, ...] | None = None
    parts: list[Fragment] = []
    skipped: list[Skip] = []
    for file in files:
        try:
            with reading(plain_name(file.path)), opened(file.path) as path:
                place = file.path
                if isinstance(place, StoredFile):  # all parts must be of one version
                    file = replace(file, path=replace(place, version=version_of(path)))
                source = open_array(open_array_file(path), columns, fragment=partial(rows_of, file))
            dtypes = source.dtypes if dtypes is None else dtypes
            parts += source.fragments or ()
        except SourceError as error:
            if not skip:
                raise
            skipped.append(Skip(plain_name(file.path), str(error)))
    if dtypes is None:
        raise SourceError(f"none of the {len(files)} files of {description} can be read: {skipped[0].error}")
    return Source(description, None, parts, reads=True, skipped=skipped, dtypes=dtypes)


def rows_of(file: File, start: int, stop: int, columns: tuple[int, ...] | None) -> ArrayFragment:
    """The fragment of some rows of a file."""
    return ArrayFragment(f"{file.key}#{start}", plain_name(file.path), file.signature, file.path, start, stop, columns)


def plain_name(place: Place) -> str:
    """The name of a file without the array in it."""
    return str(place).partition("::")[0]


def open_array_file(source: Readable) -> Any:
    """Map a .npy file, or an array of a .npz file (read whole where it is compressed), which x.npz::name chooses.

    Of an object in a store the array is read as its rows are asked for.
    """
    if isinstance(source, Path):
        file, _, member = str(source).partition("::")
        path: Readable = Path(file)
    else:
        path, member = source, source.member
    if path.suffix.lower() == ".npy":
        if size_of(path) == 0:
            raise SourceError(f"{path}: the file is empty")
        with python_file(path) as opened_file:
            return map_array(path, opened_file, size_of(path))
    with zipfile.ZipFile(path if isinstance(path, Path) else path.file()) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        if not member and len(members) != 1:
            raise SourceError(f"{path} holds {len(members)} arrays: {', '.join(members)}; choose one as {path}::NAME")
        if member and member not in members:
            raise SourceError(f"{path} holds no array {member!r}; did you mean {nearest(member, members)}?")
        info = archive.getinfo(f"{member or members[0]}.npy")
        if info.flag_bits & ENCRYPTED:
            raise SourceError(f"{path}: the array {member or members[0]} is encrypted; save it without a password")
        if info.compress_type != zipfile.ZIP_STORED:
            return unpack_member(archive, info)
        others = [other.header_offset for other in archive.infolist() if other.header_offset > info.header_offset]
        return map_member(path, info, min(others, default=archive.start_dir))


def unpack_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """Read a compressed array whole; it is no larger than the packed bytes can be."""
    ratio = DEFLATE_RATIO if info.compress_type == zipfile.ZIP_DEFLATED else OTHER_RATIO
    with archive.open(info) as file:
        read_header(file, min(info.file_size, info.compress_size * ratio))
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def map_member(path: Readable, info: zipfile.ZipInfo, limit: int) -> Any:
    """Map an array that is stored uncompressed in a zip archive, before the place where its neighbour begins."""
    with python_file(path) as file:
        file.seek(info.header_offset)
        local = file.read(LOCAL_HEADER)
        if local[:4] != b"PK\x03\x04":
            raise SourceError("the archive's directory names a place where no array is; write it again")
        # The local header ends with the lengths of name and extra field, and these.
        file.seek(int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little"), os.SEEK_CUR)
        return map_array(path, file, min(file.tell() + min(info.file_size, info.compress_size), limit))


def map_array(path: Readable, file: IO[bytes], end: int) -> Any:
    """Map the array whose header comes next in a file, and whose values end before this place."""
    shape, fortran, dtype = read_header(file, end)
    if not isinstance(path, Path):
        array = StoredArray(path, file.tell(), shape, fortran, dtype)
        return array[:] if dtype.names else array
    return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def read_header(file: IO[bytes], end: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of the array that comes next in a file.

    Raises:
        SourceError: it holds Python objects, or more values than there are bytes up to this place.
    """
    major, _ = np.lib.format.read_magic(file)
    size = file.read(2 if major == 1 else 4)
    length = int.from_bytes(size, "little")
    if length > min(MOST_HEADER, end - file.tell()):
        raise SourceError(f"cannot be read: its header says that it has {length} bytes itself; write it again")
    header = io.BytesIO(size + file.read(length))  # of the length that it says, lest more is allocated
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(header)
    if dtype.hasobject:
        raise SourceError("holds Python objects; save numbers")
    needed, available = math.prod(shape) * dtype.itemsize, end - file.tell()
    if min(shape, default=0) < 0 or needed > available:
        raise SourceError(
            f"cannot be read: its header says {dtype} of shape {shape}, {needed} bytes, but only {available} follow; "
            "was it cut short?"
        )
    return shape, fortran, dtype


def open_table(path: Readable) -> Any:
    """Map the (rows, columns) numbers of a file."""
    array = open_array_file(path)
    if array.ndim != 2 or array.dtype.kind not in "buif":
        raise SourceError(f"expected numbers of shape (rows, columns), but got {array.dtype} of {array.shape}")
    return array


def read_schema(path: Readable) -> Any:
    """The columns of an array as an Arrow schema; their names are their positions."""
    arrow, array = require_package("pyarrow"), open_table(path)
    kind = arrow.from_numpy_dtype(array.dtype)
    return arrow.schema([(str(index), kind) for index in range(array.shape[1])])


def read_batches(path: Readable, names: Sequence[str], parts: Parts) -> Iterator[Any]:
    """Yield the rows of an array as record batches."""
    arrow, array = require_package("pyarrow"), open_table(path)
    step = block_rows(array.shape[1])
    for start in range(0, len(array), step):
        columns = np.ascontiguousarray(array[start : start + step].T)
        yield arrow.record_batch([arrow.array(columns[int(name)]) for name in names], names=list(names))


class ArrayWriter(BatchWriter):
    """Writes a (rows, columns) .npy file whose number of rows is known at the end only."""

    def __init__(self, path: Path, schema: Any) -> None:
        dtypes = {field.name: np.dtype(field.type.to_pandas_dtype()) for field in schema}
        if other := [name for name, dtype in dtypes.items() if dtype.kind not in "buif"]:
            raise InvalidArgumentError(f".npy holds numbers only, not the columns {', '.join(other)}; write .parquet")
        self.dtype = np.result_type(*dtypes.values())
        self.columns, self.rows = len(schema), 0
        super().__init__(path.open("wb"))
        self.writer.write(bytes(HEADER_BYTES))

    def write(self, batch: Any) -> None:
        """Append rows."""
        table = np.empty((batch.num_rows, self.columns), self.dtype)
        for index, column in enumerate(batch.columns):
            table[:, index] = column.to_numpy(zero_copy_only=False)
        self.writer.write(table.data)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Write the header and finish the file."""
        shape = f"({self.rows}, {self.columns})"
        text = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
        header = text.ljust(HEADER_BYTES - 11) + "\n"
        self.writer.seek(0)
        self.writer.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("ascii"))
        super().close()


NUMPY = Format(
    name="NumPy",
    schema=read_schema,
    batches=read_batches,
    open=open_arrays,
    named=False,
    writer=ArrayWriter,
    rewinds=True,
)
