"""The files that a path, a directory or a pattern stands for, on this machine or in a store, in a stable order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from evenkeel._errors import SourceError
from evenkeel._options.formats import format_name, known_endings, without_data
from evenkeel._options.patterns import HIDDEN, fixed_folder, is_pattern, matches, matching_paths
from evenkeel._options.urls import GOOGLE, HTTP
from evenkeel._packages import require_package
from evenkeel._threads import side_by_side
from evenkeel.data.sources._format import Format
from evenkeel.data.sources._formats import FORMATS
from evenkeel.data.sources._stores import Place, StoredFile, missing
from evenkeel.data.sources._tables import DELTA_LOG, delta_files, refuse_splits
from evenkeel.data.sources._transfers import retried

# Up to so many directories are listed each on its own, so many at a time; more are listed in one go, a thousand objects
# a request, since most hold few.
MOST_LISTED, LISTED_AT_ONCE = 64, 16


class Listing(NamedTuple):
    """The files of a place.

    Attributes:
        files: in their order.
        root: the directory that their keys are relative to.
        whole: the place is that directory.
        schema: the columns of a table whose files may lack some of them; None where the files tell.
    """

    files: list[Place]
    root: Place
    whole: bool
    schema: Any = None


def list_files(place: Place) -> Listing:
    """The files of a place.

    Raises:
        SourceError: there is nothing, or no data in it, or its name tells no format.
    """
    return stored_files(place) if isinstance(place, StoredFile) else local_files(place)


def local_files(path: Path) -> Listing:
    """The files of a path of this machine."""
    plain = Path(str(path).partition("::")[0])
    if plain.is_dir() and not is_table(plain):
        names = os.listdir(plain)
        refuse_splits(names, plain)
        if DELTA_LOG in names:
            keys, schema = delta_files(plain)
            return Listing([plain / key for key in keys], plain, True, schema)
        return Listing(list(directory_files(plain)), plain, True)
    if is_pattern(str(path)) and not plain.exists():
        matching = sorted(map(Path, matching_paths(str(path))))
        return Listing(data_matching(matching, path), Path(fixed_folder(str(path))), False)
    if not plain.exists():
        raise SourceError(f"there is no file or directory {plain}")
    require_format(path)
    return Listing([path], plain.parent, False)


def directory_files(root: Path) -> list[Path]:
    """The data files below a directory, sorted; hidden ones and those whose names begin with _ do not count."""
    files: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(HIDDEN))
        files += [Path(folder, name) for name in names if not name.startswith(HIDDEN)]
    return sorted(data_files(files, root))


def data_files(files: Sequence[Any], root: Place) -> list[Any]:
    """The files of a directory that hold data, of one format."""
    data = [path for path in files if format_of(path)]
    if not data:
        raise SourceError(without_data(root, len(files)))
    if len(kinds := format_names(data)) > 1:
        pattern = f"{str(root).removesuffix('/')}/*{data[0].suffix}"
        raise SourceError(f"the directory {root} mixes {' and '.join(kinds)} files; give one kind, such as {pattern}")
    return data


def data_matching(files: Sequence[Any], pattern: Place) -> list[Any]:
    """The files that a pattern stands for and that hold data."""
    data = [path for path in files if format_of(path)]
    if not data:
        seen = f": the names of {len(files)} that match end in none of {known_endings()}" if files else ""
        raise SourceError(f"no {'file' if isinstance(pattern, Path) else 'object'} matches {pattern}{seen}")
    return data


def stored_files(place: StoredFile) -> Listing:
    """The files of a URL."""
    if stands_for_some(place):
        matching = matching_files(place)
        return matching._replace(files=data_matching(matching.files, place))
    if place.store.scheme in HTTP:  # which has no directories
        require_format(place)
        return Listing([place], place.beside(""), False)
    info = info_of(place)
    kinds = require_package("pyarrow.fs").FileType
    if info.type == kinds.Directory and not is_table(place):
        below = {key_of(file, place): file for file in all_below(place, recursive=True)}
        names = {key.partition("/")[0] for key in below}
        refuse_splits(names, place)
        if DELTA_LOG in names:
            keys, schema = delta_files(place)
            return Listing([below[key] for key in keys], place, True, schema)
        files = [file for key, file in below.items() if not is_hidden(key)]
        return Listing(in_order(data_files(files, place), place), place, True)
    if info.type == kinds.NotFound:
        raise missing(place)
    require_format(place)
    return Listing([described(place, info)], place.beside(""), False)


def list_objects(place: StoredFile) -> Listing:
    """All objects of a URL, whatever they hold: the one that it names, those of a directory or of a pattern.

    Raises:
        SourceError: there is nothing.
    """
    if stands_for_some(place):
        return matching_files(place)
    if is_directory(place):
        return Listing(in_order(all_below(place, recursive=True), place), place, True)
    if place.store.scheme not in HTTP and not place_exists(place):  # of a web address reading tells more
        raise missing(place)
    return Listing([place], place.beside(""), False)


def stands_for_some(place: StoredFile) -> bool:
    """Whether a URL is a pattern; ? and brackets, which names may have too, are asked for by name first."""
    if "*" in place.path or place.store.scheme in HTTP:
        return "*" in place.path
    return is_pattern(place.path) and not place_exists(place)


def matching_files(place: StoredFile) -> Listing:
    """The files that a pattern in a URL stands for."""
    fixed = fixed_folder(place.path)
    rest = place.path[len(fixed) :].lstrip("/")
    url = place.url.rstrip("/").removesuffix(rest)
    root = replace(place, url=url if url.endswith("://") else url.rstrip("/"), path=fixed)
    parts = rest.split("/")
    below = all_below(root, recursive=len(parts) > 1 or "**" in parts)
    files = [file for file in below if matches(parts, key_of(file, root).split("/"))]
    if not files:
        raise SourceError(f"no object matches {place}")
    return Listing(in_order(files, root), root, False)


def all_below(root: StoredFile, *, recursive: bool) -> list[StoredFile]:
    """All objects of a directory; those of its directories are listed side by side."""
    fs = require_package("pyarrow.fs")

    def below(path: str, deep: bool) -> list[Any]:
        selector = fs.FileSelector(path, recursive=deep)
        return list(asked(root, lambda filesystem: filesystem.get_file_info(selector)))

    # Of Google's store PyArrow lists only those folders that are objects, too.
    at_once = recursive and root.store.scheme in GOOGLE
    infos = below(root.path, at_once)
    folders = [] if at_once else [info.path for info in infos if info.type == fs.FileType.Directory]
    if recursive and len(folders) > MOST_LISTED:
        infos = below(root.path, True)
    elif recursive and folders:
        listed = side_by_side(lambda path: below(path, True), folders, LISTED_AT_ONCE)
        infos += [info for found in listed for info in found]
    return [described(root.child(info.path), info) for info in infos if info.type == fs.FileType.File]


def asked(place: StoredFile, question: Callable[[Any], Any]) -> Any:
    """What a store answers; asked again after transient errors."""
    filesystem = place.store.filesystem
    return retried(lambda: question(filesystem), place.url)


def info_of(place: StoredFile) -> Any:
    """What a store says of a path: PyArrow's record with the type, the size and the time."""
    return asked(place, lambda filesystem: filesystem.get_file_info([place.path])[0])


def is_directory(place: Place) -> bool:
    """Whether a place is a directory, or what a store shows as one."""
    if isinstance(place, Path):
        return place.is_dir()
    if place.store.scheme in HTTP or "*" in place.path:
        return False
    return bool(info_of(place).type == require_package("pyarrow.fs").FileType.Directory)


def place_exists(place: Place) -> bool:
    """Whether there is a file, a directory or an object."""
    if isinstance(place, Path):
        return place.exists()
    return bool(info_of(place).type != require_package("pyarrow.fs").FileType.NotFound)


def described(file: StoredFile, info: Any) -> StoredFile:
    """A file with the size and the time that a listing gives."""
    return replace(file, size=info.size, modified=info.mtime_ns or 0)


def in_order(files: Sequence[StoredFile], root: StoredFile) -> list[Place]:
    """Files as their paths would be sorted on this machine: folder by folder."""
    return sorted(files, key=lambda file: key_of(file, root).split("/"))


def key_of(file: Place, root: Place) -> str:
    """The path of a file within a directory, or the whole path of one that lies elsewhere."""
    if isinstance(file, StoredFile):
        folder = f"{root.url.rstrip('/')}/" if isinstance(root, StoredFile) else ""
        return file.url[len(folder) :].lstrip("/") if folder and file.url.startswith(folder) else file.url
    plain = Path(str(file).partition("::")[0])
    return (
        plain.relative_to(root).as_posix()
        if isinstance(root, Path) and plain.is_relative_to(root)
        else plain.as_posix()
    )


def is_hidden(key: str) -> bool:
    """Whether a file, or a directory that holds it, has a name that begins with . or _."""
    return any(part.startswith(HIDDEN) for part in key.split("/"))


def format_names(paths: Sequence[Place]) -> list[str]:
    """The names of the formats of files, sorted."""
    return sorted({kind.name if (kind := format_of(path)) else "None" for path in paths})


def format_of(path: Place) -> Format | None:
    """The format that a file's name ends in, or None."""
    name = format_name(path.name)
    return next((kind for kind in FORMATS if kind.name == name), None)


def is_table(directory: Place) -> bool:
    """Whether the name of a directory is that of one table, such as Lance's."""
    kind = format_of(directory)
    return kind is not None and kind.directory


def require_format(path: Place) -> None:
    """Raise `SourceError` where a name tells no format."""
    if format_of(path) is None:
        raise SourceError(f"{path}: the name tells no format; it must end in one of {known_endings()}")
