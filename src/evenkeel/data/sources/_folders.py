"""The images below a folder, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from evenkeel._errors import InvalidInputError
from evenkeel._threads import threads
from evenkeel.data.sources._images import IMAGES, read_image
from evenkeel.data.sources._listing import all_below, in_order, is_directory
from evenkeel.data.sources._stores import Place, StoredFile

READ_AHEAD = 8  # images of a store


def read_images(place: Place) -> Iterator[Any]:
    """Yield the images below a folder in the order of their paths; those of a store are read ahead.

    Raises:
        InvalidInputError: there is no such folder.
        SourceError: an image cannot be read.
    """
    files = image_files(place, IMAGES.suffixes)
    if isinstance(place, Path):
        yield from map(read_image, files)
        return
    with threads(READ_AHEAD) as pool:
        waiting: deque[Future[Any]] = deque()
        for file in files:
            waiting.append(pool.submit(read_image, file))
            if len(waiting) == READ_AHEAD:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def image_files(place: Place, suffixes: Sequence[str]) -> list[Place]:
    """The files below a directory whose names end so, in order; InvalidInputError where there is no such directory."""
    if not is_directory(place):
        raise InvalidInputError(f"{place} is not a folder of images; give the directory that holds them")
    if isinstance(place, StoredFile):
        return in_order([file for file in all_below(place, recursive=True) if file.suffix.lower() in suffixes], place)
    return sorted(path for path in place.rglob("*") if path.suffix.lower() in suffixes)
