"""Sources on disk: one file, several, or a directory, with hive partitions where its folders are named key=value."""

from __future__ import annotations

import glob
import os
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from evenkeel._errors import SourceError
from evenkeel.data import _formats
from evenkeel.data._columns import require_package, select_columns
from evenkeel.data._formats import (
    CHANNELS,
    ArrayFragment,
    FileFragment,
    ImagesFragment,
    format_of,
    open_array_file,
    reading,
)
from evenkeel.data._source_memory import arrow_numbers, open_array
from evenkeel.data._sources import Fragment, Skip, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenkeel.data._columns import Columns

__all__ = ["open_path", "open_paths", "schema_of", "signature_of", "table_files"]

# A larger file is read in several parts of at least this size, as its row groups or record batches allow.
PART_BYTES = 1 << 26
IMAGES_PER_FRAGMENT = 32


def open_path(path: Path, columns: Columns, on_error: str) -> Source:
    """Open a file, a directory, or the files that a pattern with * names."""
    files, root = table_files(path)
    return open_files(files, root, columns, on_error, str(path))


def open_paths(paths: Sequence[Path], columns: Columns, on_error: str) -> Source:
    """Open several files, in the order given, as one source."""
    files = [file for path in paths for file in table_files(path)[0]]
    repeated = (
        next((file for number, file in enumerate(files) if file in files[:number]), None) if len(files) < 1000 else None
    )
    if repeated:
        raise SourceError(f"{repeated} is given twice; its rows would count twice")
    root = Path(os.path.commonpath([file.parent.absolute() for file in files]))
    return open_files([file.absolute() for file in files], root, columns, on_error, f"{len(files)} files")


def table_files(path: Path) -> tuple[list[Path], Path]:
    """The files of a path in a stable order, and the directory that their keys are relative to."""
    plain = Path(str(path).partition("::")[0])
    if plain.is_dir():
        return directory_files(plain), plain
    if "*" in path.name and not plain.exists():
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
        if not found:
            raise SourceError(f"no file matches {path}")
        return found, path.parent
    if not plain.exists():
        raise SourceError(f"there is no file or directory {plain}")
    if format_of(path) is None:
        raise SourceError(f"{path}: the name tells no format; it must end in one of {', '.join(_formats.FORMATS)}")
    return [path], plain.parent


def directory_files(root: Path) -> list[Path]:
    """The data files below a directory, sorted; hidden ones and those whose names begin with _ do not count."""
    found, seen = [], 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        plain = [name for name in names if not name.startswith((".", "_"))]
        seen += len(plain)
        found += [Path(folder, name) for name in plain if format_of(Path(name))]
    if not found:
        what = f"none of its {seen} files ends in one of {', '.join(_formats.FORMATS)}" if seen else "it is empty"
        raise SourceError(f"the directory {root} holds no data: {what}")
    kinds = sorted({str(format_of(path)) for path in found})
    if len(kinds) > 1:
        pattern = f"{root}/*{found[0].suffix}"
        raise SourceError(f"the directory {root} mixes {' and '.join(kinds)} files; give one kind, such as {pattern}")
    return sorted(found)


def open_files(files: list[Path], root: Path, columns: Columns, on_error: str, description: str) -> Source:
    """Open files of one format."""
    kinds = sorted({str(format_of(path)) for path in files})
    if len(kinds) > 1:
        raise SourceError(f"the files are of different formats, {' and '.join(kinds)}; fit them apart and merge")
    if kinds == ["image"]:
        return open_images(files, root, columns, description)
    if kinds == ["NumPy"]:
        return open_arrays(files, root, columns, on_error, description)
    skipped: list[Skip] = []
    while True:
        try:
            with reading(str(files[len(skipped)])):
                schema = schema_of(files[len(skipped)], kinds[0])
            break
        except SourceError as error:
            if on_error != "skip" or len(skipped) + 1 == len(files):
                raise
            skipped.append(Skip(str(files[len(skipped)]), str(error)))
    found = list(schema.names)
    constants = partition_values(files[len(skipped)], root)
    asked = {c for c in ([columns] if isinstance(columns, str) else columns or ()) if isinstance(c, str)}
    extra = [name for name in constants if name in asked and name not in found]
    other = arrow_numbers(schema) | {name: "text" for name in extra if isinstance(constants[name], str)}
    wanted = tuple(select_columns([*found, *extra], other, columns))
    parts: list[Fragment] = []
    for path in files[len(skipped) :]:
        parts += file_fragments(path, root, wanted, kinds[0], on_error, extra)
    dtypes = tuple("int64" if name in extra else str(schema.field(name).type) for name in wanted)
    return Source(description, wanted, parts, reads=True, skipped=skipped, dtypes=dtypes)


def schema_of(path: Path, kind: str) -> Any:
    """The Arrow schema of a file."""
    if kind == "Parquet":
        return require_package("pyarrow.parquet").read_schema(path)
    if kind == "CSV":
        return _formats.csv_schema(path)
    arrow = require_package("pyarrow")
    with arrow.memory_map(str(path)) as mapped:
        opened = arrow.ipc.open_stream if _formats.is_arrow_stream(path) else arrow.ipc.open_file
        return opened(mapped).schema


def signature_of(path: Path) -> tuple[int, int]:
    """Size and time of modification of a file: what tells that it changed."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def key_of(path: Path, root: Path) -> str:
    """A file's name within its source."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def partition_values(path: Path, root: Path) -> dict[str, Any]:
    """The columns that the folders between root and file name: key=value, a whole number or text."""
    values: dict[str, Any] = {}
    for folder in Path(key_of(path, root)).parts[:-1]:
        name, equals, text = folder.partition("=")
        if equals:
            values[name] = int(text) if text.lstrip("-").isdigit() else unquote(text)
    return values


def file_fragments(
    path: Path, root: Path, names: tuple[str, ...], kind: str, on_error: str, extra: Sequence[str]
) -> Iterator[FileFragment]:
    """The parts in which a file is read."""
    constants = tuple((n, v) for n, v in partition_values(path, root).items() if n in extra)
    key, signature = key_of(path, root), signature_of(path)
    whole = FileFragment(path, key, signature, names, kind, constants=constants)
    sizes: list[int] = []
    if signature[0] > 2 * PART_BYTES:
        try:
            with reading(str(path)):
                sizes = part_sizes(path, kind, signature[0])
        except SourceError:
            if on_error != "skip":
                raise  # otherwise reading the whole file will say so once more, and be counted
    bundles = list(bundled(sizes))
    if len(bundles) < 2:
        yield whole
        return
    for parts in bundles:
        yield FileFragment(path, f"{key}#{parts[0]}-{parts[-1]}", signature, names, kind, parts, constants)


def part_sizes(path: Path, kind: str, size: int) -> list[int]:
    """The bytes of each row group (Parquet) or record batch (Arrow, about) of a file; none where it has no parts."""
    if kind == "Parquet":
        with require_package("pyarrow.parquet").ParquetFile(path) as file:
            groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
            return [sum(g.column(i).total_compressed_size for i in range(g.num_columns)) for g in groups]
    if kind == "Arrow" and not _formats.is_arrow_stream(path):
        arrow = require_package("pyarrow")
        with arrow.memory_map(str(path)) as mapped:
            count = arrow.ipc.open_file(mapped).num_record_batches
        return [size // count] * count if count else []
    return []


def bundled(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Neighbouring parts, together at least PART_BYTES each."""
    bundle: list[int] = []
    held = 0
    for index, size in enumerate(sizes):
        bundle.append(index)
        held += size
        if held >= PART_BYTES:
            yield tuple(bundle)
            bundle, held = [], 0
    if bundle:
        yield tuple(bundle)


def open_images(files: list[Path], root: Path, columns: Columns, description: str) -> Source:
    """Open images: the rows are the pixels of all of them, the columns are red, green and blue."""
    if columns is not None and columns != "numeric" and tuple(columns) != CHANNELS:
        raise SourceError("images have the columns red, green and blue, all of them; leave columns out")
    parts: list[Fragment] = []
    for start in range(0, len(files), IMAGES_PER_FRAGMENT):
        paths = tuple(files[start : start + IMAGES_PER_FRAGMENT])
        state = repr([(key_of(path, root), signature_of(path)) for path in paths]).encode()
        parts.append(ImagesFragment(paths, f"{key_of(paths[0], root)} and {len(paths) - 1} more", (zlib.crc32(state),)))
    return Source(description, CHANNELS, parts, reads=True, dtypes=("uint8",) * len(CHANNELS))


def open_arrays(files: list[Path], root: Path, columns: Columns, on_error: str, description: str) -> Source:
    """Open .npy and .npz files: the rows of all of them."""
    opened: Source | None = None
    parts: list[Fragment] = []
    skipped: list[Skip] = []
    for path in files:
        plain, _, member = str(path).partition("::")
        try:
            with reading(plain):
                file = Path(plain)
                cut = partial(ArrayFragment, file, key_of(file, root), signature_of(file), member)
                found = open_array(open_array_file(file, member), columns, fragment=cut)
            opened = opened or found
            parts += found.fragments or ()
        except SourceError as error:
            if on_error != "skip":
                raise
            skipped.append(Skip(plain, str(error)))
    if opened is None:
        raise SourceError(f"none of the {len(files)} files of {description} can be read: {skipped[0].error}")
    return Source(description, None, parts, reads=True, skipped=skipped, dtypes=opened.dtypes)
