"""Objects of stores while they are read: one version, in ranges, some of them ahead of the reader."""

from __future__ import annotations

import contextlib
import io
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from evenkeel._errors import SourceError
from evenkeel._options.urls import HTTP
from evenkeel._packages import require_package
from evenkeel._threads import side_by_side
from evenkeel.data.sources._stores import Place, StoredFile, beneath, missing, refused_options
from evenkeel.data.sources._transfers import retried

Range = tuple[int, int]  # first byte, and the one after the last

# A smaller object is read whole, at once: a second request would take longer than its bytes.
SMALL = 1 << 20
# What a request reads, and what a file reads ahead of its reader: 16 MB took twice the memory, and as long.
BLOCK, AHEAD = 1 << 22, 1 << 23
# Bytes that nobody needs are read where they cost less than a request more.
HOLE = 1 << 16
REQUESTS = 32  # under way in a process
VERSIONS = ("ETag", "VersionId", "etag", "generation")


class StoredObject:
    """An object that was opened: all its reads are of the version that it had then, or they fail.

    Args:
        place: of the object; one that names a version must be that version still.

    Attributes:
        size: in bytes.
        version: the ETag or version, or size and time where the store knows neither.
    """

    def __init__(self, place: StoredFile) -> None:
        self.place = place
        self.size, self.version, self._handle = probe(place)
        if place.version not in ("", self.version) or place.size not in (None, self.size):
            raise self._replaced()
        self.content = self._read(0, self.size) if self.size <= SMALL else None

    def __str__(self) -> str:
        return str(self.place)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.place.name

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return self.place.suffix

    @property
    def member(self) -> str:
        """The array of a .npz file that is meant."""
        return self.place.member

    def read(self, start: int, stop: int) -> bytes:
        """The bytes of a range."""
        return self._read(start, stop) if self.content is None else self.content[start:stop]

    def read_bytes(self) -> bytes:
        """All of it."""
        return bytes(self.read(0, self.size))

    def file(self, *, sequential: bool = False, views: bool = False) -> RangedFile:
        """The object as a Python file; `sequential` reads ahead from the first byte on, `views` as in `RangedFile`."""
        file = RangedFile(self, views=views)
        if sequential:
            file.plan([(0, self.size)])
        return file

    def arrow_file(self, *, sequential: bool = False) -> Any:
        """The object as a file of PyArrow."""
        return require_package("pyarrow").PythonFile(self.file(sequential=sequential, views=True), mode="r")

    def verify(self) -> None:
        """Raise `SourceError` where the object was replaced since; what one request read is of one version anyway."""
        if self.content is None and probe(self.place)[1] != self.version:
            raise self._replaced()

    def _replaced(self) -> SourceError:
        return SourceError(f"{self.place.url}: the object was replaced while it was read; start again")

    def _read(self, start: int, stop: int) -> bytes:
        """The bytes of a range from the store, all of them; in memory of PyArrow, whose pages are used again."""

        def request() -> bytes:
            if self._handle is None:
                data = bytes(self.place.store.files.cat_file(self.place.path, start=start, end=stop))
            else:
                data = self._handle.get_stream(start, stop - start).read_buffer(stop - start)
            if len(data) > stop - start:
                raise whole_only(self.place)
            if len(data) < stop - start:
                raise EOFError(f"a range of {stop - start} bytes ended early, after {len(data)}")
            return data

        return retried(request, self.place.url) if stop > start else b""


Readable = Path | StoredObject


def probe(place: StoredFile) -> tuple[int, str, Any]:
    """Ask a store for an object's size and version; gives PyArrow's file too, or None where fsspec reads."""
    return retried(lambda: probed(place), place.url)


def probed(place: StoredFile) -> tuple[int, str, Any]:
    """The answer to one request; see `probe`."""
    filesystem = place.store.filesystem
    if files := beneath(filesystem):
        web = place.store.scheme in HTTP
        info = web_facts(place) if web else files.info(place.path)
        if (size := info.get("size")) is None or info.get("partial") is False:
            raise whole_only(place)
        # fsspec takes an address of the web for a version.
        instead = f"{info.get('Last-Modified', '')} {size}" if web else ""
        return int(size), version_in(info) or instead or str(files.ukey(place.path)), None
    try:
        handle = filesystem.open_input_file(place.path)
    except FileNotFoundError as error:
        raise missing(place) from error
    facts = {name: value.decode() for name, value in handle.metadata().items()}
    version = version_in(facts) or str(filesystem.get_file_info([place.path])[0].mtime_ns)
    return handle.size(), version, handle


def web_facts(place: StoredFile) -> dict[str, Any]:
    """What a server of the web says of an object; its errors as they are, which fsspec tells as a missing file."""
    try:
        return dict(place.store.files.info(place.path))
    except FileNotFoundError as error:
        if isinstance(error.__cause__, TypeError):
            raise refused_options(place.store, error.__cause__) from error
        cause = error.__cause__ or error
    raise cause  # not within the handler, where each would become the other's context


def whole_only(place: StoredFile) -> SourceError:
    """The error about a web server that knows no ranges."""
    return SourceError(f"{place.url}: the server does not serve parts of files; download it first")


def version_in(facts: dict[str, Any]) -> str:
    """The version among what a store says of an object."""
    return " ".join(str(facts[name]) for name in VERSIONS if facts.get(name))


@contextlib.contextmanager
def opened(place: Place) -> Iterator[Readable]:
    """Open a place for reading: a path stays one; an object must be of one version from here to the end.

    Raises:
        SourceError: there is no such object, or it was replaced meanwhile.
    """
    if isinstance(place, Path):
        yield place
        return
    item = StoredObject(place)
    try:
        yield item
    except Exception:
        item.verify()  # a part of one version and a part of another seem broken
        raise
    item.verify()


def version_of(path: Readable) -> str:
    """The version of what is being read; nothing for a file, of which size and time tell."""
    return "" if isinstance(path, Path) else path.version


def current_version(place: Place) -> str:
    """The version that a store has now of what a place names; nothing for a file."""
    if isinstance(place, Path):
        return ""
    return place.version or probe(place)[1]


def pinned(places: Sequence[Place]) -> list[Place]:
    """Places with the versions that stores have now of them, which then must be read; paths stay as they are."""

    def pin(place: Place) -> Place:
        return place if isinstance(place, Path) else replace(place, version=current_version(place))

    if len(places) == 1:
        return [pin(places[0])]
    return side_by_side(pin, places, REQUESTS)


def size_of(path: Readable) -> int:
    """The bytes of what is being read."""
    return path.stat().st_size if isinstance(path, Path) else path.size


def python_file(path: Readable) -> Any:
    """What is being read as an open Python file."""
    return path.open("rb") if isinstance(path, Path) else path.file()


@cache
def requests() -> ThreadPoolExecutor:
    """The threads that wait for the stores."""
    return ThreadPoolExecutor(REQUESTS, thread_name_prefix="evenkeel-store")


@dataclass
class Block:
    """A range that is read in one request, and dropped when so many bytes of it were used."""

    start: int
    stop: int
    needed: int
    future: Future[bytes] | None = None
    used: int = 0


class RangedFile(io.RawIOBase):
    """An object as a file: of the ranges that are planned, the next ones are read while the reader works.

    Args:
        item: the object.
        views: whether reads may give views of what was read ahead, as PyArrow takes them, and not bytes.
    """

    def __init__(self, item: StoredObject, *, views: bool = False) -> None:
        super().__init__()
        self.item, self.views, self.position = item, views, 0
        self.blocks: list[Block] = []  # in the order of the plan
        self.places: list[Block] = []  # in the order of the file
        self.starts: list[int] = []
        self.following = 0  # the first block of the plan that is not requested yet

    def plan(self, ranges: Iterable[Range], most: int = BLOCK) -> None:
        """Say which ranges will be read next, in this order; what was planned before is forgotten.

        Args:
            ranges: in the order in which they are read.
            most: bytes of a request: what is read at once, and was requested in parts, has to be copied together.
        """
        for block in self.blocks:
            if block.future is not None:
                block.future.cancel()
        self.blocks = [] if self.item.content is not None else joined(ranges, most)
        self.places = sorted(self.blocks, key=lambda block: block.start)
        self.starts = [block.start for block in self.places]
        self.following = 0
        self._request_ahead()

    def _request_ahead(self) -> None:
        """Request the next blocks of the plan: two, or as many as fit in."""
        held = [block.stop - block.start for block in self.blocks[: self.following] if block.future is not None]
        while self.following < len(self.blocks):
            block = self.blocks[self.following]
            held.append(block.stop - block.start)
            if len(held) > 2 and sum(held) > AHEAD:
                return
            if block.future is None and block.used < block.needed:
                block.future = requests().submit(self.item.read, block.start, block.stop)
            self.following += 1

    def _some(self, start: int, stop: int) -> bytes | memoryview:
        """The bytes from a place on, at most to another: of one block, or of what lies before the next."""
        index = bisect_right(self.starts, start) - 1
        block = self.places[index] if index >= 0 else None
        if block is None or start >= block.stop or block.used >= block.needed:
            return self.item.read(start, min([stop, *self.starts[index + 1 : index + 2]]))
        if block.future is None:
            block.future = requests().submit(self.item.read, block.start, block.stop)
        data = block.future.result()
        stop = min(stop, block.stop)
        block.used += stop - start
        if block.used >= block.needed:
            block.future = None
            self._request_ahead()
        whole = start == block.start and stop == block.stop
        return data if whole else memoryview(data)[start - block.start : stop - block.start]

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer only at the end."""
        stop = self.item.size if size is None or size < 0 else min(self.position + size, self.item.size)
        parts: list[bytes | memoryview] = []
        while self.position < stop:
            parts.append(self._some(self.position, stop))
            self.position += len(parts[-1])
        whole = len(parts) == 1 and (self.views or isinstance(parts[0], bytes))
        return parts[0] if whole else b"".join(parts)  # type: ignore[return-value]

    def readall(self) -> bytes:
        """The rest."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; gives their number."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.item.size}[whence]
        self.position = base + offset
        return self.position

    def tell(self) -> int:
        """The place of the next byte."""
        return self.position

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Forget what is under way."""
        if not self.closed:
            self.plan([])
        super().close()


def joined(ranges: Iterable[Range], most: int) -> list[Block]:
    """The blocks of ranges in their order: those of more than `most` bytes cut, neighbours read together."""
    blocks: list[Block] = []
    for start, stop in ranges:
        for first in range(start, stop, most):
            last = min(first + most, stop)
            before = blocks[-1] if blocks else None
            if before and 0 <= first - before.stop <= HOLE and last - before.start <= BLOCK:
                before.stop, before.needed = last, before.needed + last - first
            else:
                blocks.append(Block(first, last, last - first))
    return blocks


def read_ranges(item: StoredObject, ranges: Sequence[Range]) -> Iterator[bytes]:
    """Yield the bytes of ranges, several requests under way."""
    file = item.file()
    file.plan(ranges)
    for start, stop in ranges:
        file.seek(start)
        yield file.read(stop - start)
