"""NumPy's .npy and .npz files: mapped while they are read, and written block by block."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from evenkeel._errors import InvalidArgumentError, SourceError
from evenkeel._options.names import nearest
from evenkeel.data._packages import reading, require_package
from evenkeel.data.sources._columns import Block, Columns, block_rows, take_columns
from evenkeel.data.sources._format import BatchWriter, File, Format, Parts
from evenkeel.data.sources._memory import open_array
from evenkeel.data.sources._source import Fragment, Skip, Source

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

    path: Path
    member: str
    start: int
    stop: int
    columns: tuple[int, ...] | None

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the rows as one block; the map ends with it, and the pages go back."""
        array = open_array_file(self.path, self.member)
        yield Block.of_array(take_columns(array[self.start : self.stop], self.columns))


def open_arrays(files: list[File], description: str, columns: Columns, skip: bool) -> Source:
    """Open .npy and .npz files: the rows of all of them."""
    dtypes: tuple[str, ...] | None = None
    parts: list[Fragment] = []
    skipped: list[Skip] = []
    for file in files:
        path, member = split_member(file.path)
        try:
            with reading(str(path)):
                source = open_array(open_array_file(path, member), columns, fragment=partial(rows_of, file))
            dtypes = source.dtypes if dtypes is None else dtypes
            parts += source.fragments or ()
        except SourceError as error:
            if not skip:
                raise
            skipped.append(Skip(str(path), str(error)))
    if dtypes is None:
        raise SourceError(f"none of the {len(files)} files of {description} can be read: {skipped[0].error}")
    return Source(description, None, parts, reads=True, skipped=skipped, dtypes=dtypes)


def rows_of(file: File, start: int, stop: int, columns: tuple[int, ...] | None) -> ArrayFragment:
    """The fragment of some rows of a file."""
    path, member = split_member(file.path)
    return ArrayFragment(f"{file.key}#{start}", str(path), file.signature, path, member, start, stop, columns)


def split_member(path: Path) -> tuple[Path, str]:
    """The file and the name of the array in x.npz::name."""
    file, _, member = str(path).partition("::")
    return Path(file), member


def open_array_file(path: Path, member: str = "") -> np.ndarray[Any, Any]:
    """Map a .npy file, or an array of a .npz file (read whole where it is compressed)."""
    if path.suffix.lower() == ".npy":
        if os.path.getsize(path) == 0:
            raise SourceError(f"{path}: the file is empty")
        with path.open("rb") as file:
            return map_array(path, file, os.path.getsize(path))
    with zipfile.ZipFile(path) as archive:
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


def map_member(path: Path, info: zipfile.ZipInfo, limit: int) -> np.ndarray[Any, Any]:
    """Map an array that is stored uncompressed in a zip archive, before the place where its neighbour begins."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(LOCAL_HEADER)
        if local[:4] != b"PK\x03\x04":
            raise SourceError("the archive's directory names a place where no array is; write it again")
        # The local header ends with the lengths of name and extra field, and these.
        file.seek(int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little"), os.SEEK_CUR)
        return map_array(path, file, min(file.tell() + min(info.file_size, info.compress_size), limit))


def map_array(path: Path, file: IO[bytes], end: int) -> np.ndarray[Any, Any]:
    """Map the array whose header comes next in a file, and whose values end before this place."""
    shape, fortran, dtype = read_header(file, end)
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


def open_table(path: Path) -> np.ndarray[Any, Any]:
    """Map the (rows, columns) numbers of a file."""
    array = open_array_file(*split_member(path))
    if array.ndim != 2 or array.dtype.kind not in "buif":
        raise SourceError(f"expected numbers of shape (rows, columns), but got {array.dtype} of {array.shape}")
    return array


def read_schema(path: Path) -> Any:
    """The columns of an array as an Arrow schema; their names are their positions."""
    arrow, array = require_package("pyarrow"), open_table(path)
    kind = arrow.from_numpy_dtype(array.dtype)
    return arrow.schema([(str(index), kind) for index in range(array.shape[1])])


def read_batches(path: Path, names: Sequence[str], parts: Parts) -> Iterator[Any]:
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
    suffixes=(".npy", ".npz"),
    schema=read_schema,
    batches=read_batches,
    open=open_arrays,
    named=False,
    written=(".npy",),
    writer=ArrayWriter,
)
