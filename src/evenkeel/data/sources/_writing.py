"""Writing to a path or into a store, so that nothing appears under its name before all of it is there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenkeel._errors import EvenkeelError, InvalidArgumentError, SourceError
from evenkeel._files import reason_of, replace_file, unwritable
from evenkeel._options.urls import AMAZON, AZURE, GOOGLE, HADOOP, HTTP
from evenkeel.data.sources._format import BatchWriter, Format
from evenkeel.data.sources._formats import FORMATS
from evenkeel.data.sources._listing import all_below, asked, is_directory, place_exists
from evenkeel.data.sources._stores import Place, StoredFile
from evenkeel.data.sources._transfers import one_line, refusal

WRITERS = {suffix: kind for kind in FORMATS for suffix in kind.written}
# The most that one request copies within S3, and what is read at a time where more is copied.
MOST_COPIED, COPIED = 5 << 30, 1 << 24
NO_FOLDERS = (*AMAZON, *GOOGLE, *AZURE)  # stores in which a name with a slash needs no folder
# Those in which an object gets its name when it is whole; PyArrow's client of Azure begins with an empty one.
AT_ONCE = (*AMAZON, *GOOGLE)


def inside(folder: Place, key: str) -> Place:
    """The place of a file in a directory that is being written."""
    if isinstance(folder, StoredFile):
        return folder.child(f"{folder.path.rstrip('/')}/{key}")
    place = folder / key
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


@contextlib.contextmanager
def writing(place: Place) -> Iterator[Place]:
    """Give a temporary name beside a place; what is written there gets the place's name, on an error nothing."""
    name = f".{place.name}.tmp"
    temporary = place.with_name(name) if isinstance(place, Path) else place.beside(name)
    try:
        remove(temporary)  # what a killed run left
        yield temporary
        move(temporary, place)
    except OSError as error:
        raise unwritten(place, error) from error
    finally:
        with contextlib.suppress(EvenkeelError, OSError):
            remove(temporary)


def unwritten(place: Place, error: OSError) -> EvenkeelError:
    """The error about a place that cannot be written; the clients name the temporary file."""
    if isinstance(place, StoredFile):
        return EvenkeelError(f"cannot write {place}: {refusal(error) or 'the store failed'} ({one_line(error)})")
    return unwritable(place, error)


def check_bucket(place: StoredFile) -> None:
    """Raise `EvenkeelError` where the bucket of an object to write is not there, as far as its store tells."""
    bucket = replace(place, path=place.path.partition("/")[0])
    try:
        missing = place.store.scheme in NO_FOLDERS and not place_exists(bucket)
    except SourceError as error:
        if "access denied" not in str(error):  # who may write an object may be forbidden to ask for the bucket
            raise
        return
    if missing:
        raise EvenkeelError(f"cannot write {place}: there is no such bucket; check its name, the region and endpoint")


def move(temporary: Place, place: Place) -> None:
    """Give a file or directory its name; in a store object by object, each at once."""
    if isinstance(temporary, Path) or isinstance(place, Path):
        os.replace(str(temporary), str(place))
        return
    if not is_directory(temporary):
        copy_object(temporary, place)
        return
    for file in all_below(temporary, recursive=True):
        copy_object(file, place.child(place.path.rstrip("/") + file.path[len(temporary.path.rstrip("/")) :]))


def copy_object(file: StoredFile, target: StoredFile) -> None:
    """Copy an object within its store; one that is too large for a request by way of this machine."""
    filesystem = file.store.filesystem
    make_folder(target)
    if file.store.scheme in HADOOP:
        filesystem.move(file.path, target.path)
        return
    if filesystem.get_file_info([file.path])[0].size < MOST_COPIED:
        filesystem.copy_file(file.path, target.path)
        return
    try:
        with (
            filesystem.open_input_stream(file.path, compression=None) as source,
            filesystem.open_output_stream(target.path, compression=None) as sink,
        ):
            while data := source.read(COPIED):
                sink.write(data)
    except BaseException:  # closing completes the object, a part of one too
        filesystem.delete_file(target.path)
        raise


def make_folder(place: StoredFile) -> None:
    """Make the folder of an object, in stores that have folders."""
    if place.store.scheme not in NO_FOLDERS:
        place.store.filesystem.create_dir(place.path.rpartition("/")[0] or "/", recursive=True)


def remove(place: Place) -> None:
    """Remove a file or directory, as far as that is possible."""
    if isinstance(place, StoredFile):
        if place_exists(place):
            delete = "delete_dir" if is_directory(place) else "delete_file"
            asked(place, lambda filesystem: getattr(filesystem, delete)(place.path))
        return
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.unlink(missing_ok=True)


class StoredWriter(BatchWriter):
    """Writes record batches to an object.

    Args:
        writer: of the format.
        stream: of the object, which the last byte completes.
    """

    def __init__(self, writer: BatchWriter, stream: Any) -> None:
        super().__init__(writer)
        self.stream = stream

    def write(self, batch: Any) -> None:
        """Append rows."""
        self.writer.write(batch)

    def close(self) -> None:
        """Finish the object."""
        self.writer.close()
        self.stream.close()


class UploadedWriter(BatchWriter):
    """Writes record batches to a file of this machine, which becomes an object when it is whole.

    For formats that say at the beginning how much follows; a store takes an object from the first byte to the last.

    Args:
        kind: the format.
        place: of the object.
        schema: of the record batches.
    """

    def __init__(self, kind: Format, place: StoredFile, schema: Any) -> None:
        assert kind.writer
        self.place, self.folder = place, tempfile.TemporaryDirectory(prefix="evenkeel-")
        self.file = Path(self.folder.name) / place.name
        super().__init__(kind.writer(self.file, schema))

    def write(self, batch: Any) -> None:
        """Append rows."""
        with self.telling_where():
            self.writer.write(batch)

    def close(self) -> None:
        """Finish the file and upload it."""
        with self.folder:
            with self.telling_where():
                self.writer.close()
            with self.file.open("rb") as source, open_stream(self.place) as sink:
                shutil.copyfileobj(source, sink, COPIED)

    def abandon(self) -> None:
        """Remove the file."""
        with self.folder, contextlib.suppress(OSError):
            self.writer.close()

    @contextlib.contextmanager
    def telling_where(self) -> Iterator[None]:
        """Tell that this machine's file cannot be written, not the store's."""
        try:
            yield
        except OSError as error:
            folder = Path(self.folder.name).parent
            raise EvenkeelError(
                f"cannot keep {self.place} in {folder} until it is whole: {reason_of(error)}; TMPDIR names "
                "another directory"
            ) from error


def open_writer(place: Place, suffix: str, schema: Any) -> BatchWriter:
    """The writer of a file whose name will end so.

    Raises:
        InvalidArgumentError: no format ends so, or a store cannot hold it.
    """
    if (kind := WRITERS.get(suffix)) is None:
        raise InvalidArgumentError(
            f"cannot write {suffix or 'a file without an ending'}; the name must end in {', '.join(WRITERS)}"
        )
    assert kind.writer
    if isinstance(place, Path):
        return kind.writer(place, schema)
    if kind.rewinds:
        return UploadedWriter(kind, place, schema)
    stream = open_stream(place)
    return StoredWriter(kind.writer(stream, schema), stream)


def open_stream(place: StoredFile) -> Any:
    """An object to write from the first byte to the last."""
    if place.store.scheme in HTTP:
        raise InvalidArgumentError(f"{place}: web addresses are read, not written; name a store or a path")
    make_folder(place)
    return place.store.filesystem.open_output_stream(place.path, compression=None)


def write_bytes(place: Place, data: bytes) -> None:
    """Write a small file, so that its name is that of what was there or of all of it.

    Raises:
        EvenkeelError: it cannot be written.
    """
    if isinstance(place, Path):
        try:
            replace_file(place, data)
        except OSError as error:
            raise unwritable(place, error) from error
        return
    at_once = place.store.scheme in (*AT_ONCE, *HTTP)  # the web takes none
    with contextlib.nullcontext(place) if at_once else writing(place) as target:
        assert isinstance(target, StoredFile)
        try:
            with open_stream(target) as stream:
                stream.write(data)
        except OSError as error:
            raise unwritten(place, error) from error
