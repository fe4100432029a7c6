"""Image files: each pixel is a row, each of red, green and blue a column."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenkeel._errors import SourceError
from evenkeel._packages import require_package
from evenkeel.data._packages import reading
from evenkeel.data.sources._columns import Block, Columns
from evenkeel.data.sources._format import File, Format
from evenkeel.data.sources._objects import Readable, current_version, opened, python_file, version_of
from evenkeel.data.sources._source import Fragment, Skip, Source
from evenkeel.data.sources._stores import Place
from evenkeel.data.statistics import Statistics

SHOWN = 8  # bytes of a file that is no image
CHANNELS = ("red", "green", "blue")
IMAGES_PER_FRAGMENT = 32
# By Pillow's names. It looks at the content, not at the ending, and knows formats that run other programs.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "DIB", "TIFF", "GIF", "PPM")


@dataclass(frozen=True)
class ImagesFragment(Fragment):
    """Some images of a folder."""

    paths: tuple[Place, ...]

    def blocks(self, skipped: list[Skip] | None) -> Iterator[Block]:
        """Yield the pixels of one image at a time."""
        yield from (block for _, block in self._versions(skipped))

    def add_to(self, statistics: Statistics, skipped: list[Skip] | None) -> str:
        """Update statistics with the pixels."""
        versions = []
        for version, block in self._versions(skipped):
            versions.append(version)
            block.add_to(statistics)
        return joined_versions(versions) if len(versions) == len(self.paths) else ""

    def version(self) -> str:
        """The versions of the objects in their store."""
        return joined_versions([current_version(path) for path in self.paths])

    def _versions(self, skipped: list[Skip] | None) -> Iterator[tuple[str, Block]]:
        """Yield the version and the pixels of one image at a time."""
        for path in self.paths:
            try:
                version, pixels = read_pixels(path)
            except SourceError as error:
                if skipped is None:
                    raise
                skipped.append(Skip(str(path), str(error)))
                continue
            yield version, Block.of_array(pixels)


def joined_versions(versions: list[str]) -> str:
    """A digest of the versions of several objects; nothing for files, which have none."""
    return f"{zlib.crc32(repr(versions).encode()):08x}" if any(versions) else ""


def open_images(files: list[File], description: str, columns: Columns, skip: bool) -> Source:
    """Open images: the rows are the pixels of all of them."""
    if columns is not None and columns != "numeric" and tuple(columns) != CHANNELS:
        raise SourceError("images have the columns red, green and blue, all of them; leave columns out")
    parts: list[Fragment] = []
    for start in range(0, len(files), IMAGES_PER_FRAGMENT):
        some = files[start : start + IMAGES_PER_FRAGMENT]
        state = repr([(file.key, file.signature) for file in some]).encode()
        key = f"{some[0].key} and {len(some) - 1} more"
        paths = tuple(file.path for file in some)
        # Errors name one image of several, so they must not begin with another.
        label = str(paths[0]) if len(some) == 1 else str(paths[0]).removesuffix(some[0].key).rstrip("/")
        parts.append(ImagesFragment(key, label, (zlib.crc32(state),), paths))
    return Source(description, CHANNELS, parts, reads=True, dtypes=("uint8",) * len(CHANNELS))


def read_image(place: Place) -> Any:
    """Read a file as a Pillow image, the first picture where it holds several; SourceError where it is broken."""
    with reading(str(place)), opened(place) as path:
        return decoded(path)


def decoded(path: Readable) -> Any:
    """The Pillow image of a file."""
    pillow = require_package("PIL.Image")
    file = path if isinstance(path, Path) else path.file(sequential=True)
    try:
        with broken_image(), pillow.open(file, formats=FORMATS) as image:
            image.load()
            return image
    except require_package("PIL").UnidentifiedImageError as error:  # which names the file by its object
        with python_file(path) as unknown:
            beginning = unknown.read(SHOWN)
        reason = f"no image is recognized; it begins with {beginning!r}" if beginning else "the file is empty"
        raise SourceError(f"cannot be read: {reason}") from error


@contextmanager
def broken_image() -> Iterator[None]:
    """Turn whatever Pillow raises into a SourceError: its decoders meet a broken file with errors of every kind."""
    try:
        yield
    except OSError:
        raise  # `reading` words it
    except Exception as error:
        raise SourceError(f"cannot be read: {' '.join(str(error).split()) or type(error).__name__}") from error


def read_pixels(place: Place) -> tuple[str, np.ndarray[Any, Any]]:
    """The version of an image and its (pixels, 3) colours, 0 to 255; grey and palette images become RGB."""
    with reading(str(place)), opened(place) as path:
        image = decoded(path)
        if image.mode.startswith(("I", "F")):
            raise SourceError(f"holds {image.mode} values, not 8 bits a channel; convert it, or read it as an array")
        with broken_image():
            return version_of(path), np.asarray(image.convert("RGB")).reshape(-1, len(CHANNELS))


IMAGES = Format(
    name="image",
    open=open_images,
)
