"""Texts laid out in two files of bytes, training and validation, which are mapped: larger than memory, or in tables.

FOLDER/text/train.bin, validation.bin   the bytes, documents with a NUL byte between them
FOLDER/text/corpus.json                 what they were made from, and what a study says about its text

A text is read once, in bounded memory. A step's sequences are then drawn from all of it, as they are from a text in
memory, by the seed and the step alone: the order needs no buffer to shuffle in, and a resumed run no position.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from evenkeel._errors import StudyError

if TYPE_CHECKING:
    from evenkeel.data.sources import Place

FORMAT = 1
LARGE = 1 << 28  # bytes; a larger text is laid out
CHUNK = 1 << 22
VALIDATION_DOCUMENTS = 10  # one in so many, by a hash of its content, so that copies stay together
ROWS = 1024  # of a table, turned into bytes at a time
PIECE = 1 << 23  # bytes of row groups that are read together; for each piece the file's end is read again
TABLES = {"Parquet", "Arrow"}
TEXT_COLUMNS = ("text", "content")
SEPARATOR = b"\0"  # between documents; no text contains it
# What PyArrow raises about a broken file.
BROKEN = (OSError, ValueError, LookupError, ArithmeticError, NotImplementedError)
Progress = Callable[[int], None]  # is told how many bytes are laid out


class Laid(msgspec.Struct):
    """The content of corpus.json."""

    format: int
    signature: str
    train_bytes: int
    validation_bytes: int
    train_files: int
    validation_files: int
    skipped_files: int
    duplicate_files: int
    frequency_loss: float
    digest: str


@dataclass(frozen=True)
class Layout:
    """A text that is laid out: both parts, mapped, and what is known of them."""

    train: Tensor
    validation: Tensor
    facts: Laid


class Part:
    """One of the two files while it is written."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.size = self.documents = 0
        self.digest = hashlib.sha256()
        self.counts = np.zeros(256, np.int64)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self.file.write(data)
        self.size += len(data)
        self.digest.update(data)
        self.counts += np.bincount(np.frombuffer(data, np.uint8), minlength=256)

    def add(self, document: bytes) -> None:
        """Append a document."""
        self.write(document if self.documents == 0 else SEPARATOR + document)
        self.documents += 1

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self.file:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())


def lay_out(folder: Path, signature: str, fill: Callable[[Part, Part], tuple[int, int]]) -> Layout:
    """Return a text laid out in a folder; written now unless it is there already.

    Args:
        folder: gets the folder ``text``.
        signature: of what the text is made from; what is there with another one is replaced.
        fill: writes the training and the validation part, and returns how many files or documents were skipped, and how
            many were copies of others.
    """
    place = folder / "text"
    facts = read_facts(place)
    if facts is None or facts.signature != signature:
        unfinished = folder / ".text.tmp"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with Part(unfinished / "train.bin") as train, Part(unfinished / "validation.bin") as validation:
            skipped, copies = fill(train, validation)
        facts = Laid(
            FORMAT,
            signature,
            train.size,
            validation.size,
            train.documents,
            validation.documents,
            skipped,
            copies,
            cross_entropy(train.counts, validation.counts),
            joint_digest(train.digest.digest(), validation.digest.digest()),
        )
        (unfinished / "corpus.json").write_bytes(msgspec.json.encode(facts))
        if place.exists():
            shutil.rmtree(place)
        os.replace(unfinished, place)
    return map_layout(place, facts)


def map_layout(place: Path, facts: Laid) -> Layout:
    """Return a text that is there."""
    return Layout(mapped(place / "train.bin"), mapped(place / "validation.bin"), facts)


def read_facts(place: Path) -> Laid | None:
    """Return what is known of a text that is laid out, or None if there is none, or not all of it."""
    try:
        facts = msgspec.json.decode((place / "corpus.json").read_bytes(), type=Laid)
    except (OSError, msgspec.MsgspecError):
        return None
    sizes = [size_of(place / name) for name in ("train.bin", "validation.bin")]
    return facts if facts.format == FORMAT and sizes == [facts.train_bytes, facts.validation_bytes] else None


def size_of(path: Path) -> int:
    """Return the size of a file, -1 where there is none."""
    return path.stat().st_size if path.is_file() else -1


def mapped(path: Path) -> Tensor:
    """Return the bytes of a file, read as they are used."""
    if not path.stat().st_size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.memmap(path, np.uint8, mode="c"))


def cross_entropy(train: Any, validation: Any) -> float:
    """Return the cross-entropy, in nats, of bytes with these counts under the frequencies of others, plus one each."""
    counts, occurrences = torch.as_tensor(train).double() + 1, torch.as_tensor(validation).double()
    total = occurrences.sum().item()
    return -(occurrences * (counts / counts.sum()).log()).sum().item() / total if total else math.nan


def joint_digest(train: bytes, validation: bytes) -> str:
    """Return the digest of a text from those of its parts."""
    return hashlib.sha256(train + validation).hexdigest()


def signature_of(files: Iterable[Place], *about: object) -> str:
    """Return what changes when one of the files does, or the version that a store has of an object."""
    facts = [
        (str(path), *((path.stat().st_size, path.stat().st_mtime_ns) if isinstance(path, Path) else (path.version,)))
        for path in files
    ]
    return hashlib.sha256(json.dumps([facts, *map(str, about)]).encode()).hexdigest()


def plain_path(path: Path) -> Path:
    """Return the file of a path that may name a member of it."""
    return Path(str(path).partition("::")[0])


@contextmanager
def open_bytes(path: Place) -> Iterator[tuple[Any, int]]:
    """Open a file, or an object that is read ahead, with its size."""
    from evenkeel.data.sources import opened

    with opened(path) as item:
        size = item.stat().st_size if isinstance(item, Path) else item.size
        with item.open("rb") if isinstance(item, Path) else item.file(sequential=True) as file:
            yield file, size


def copy_file(path: Place, share: float, tell: Progress) -> Callable[[Part, Part], tuple[int, int]]:
    """Return what copies a text file, its last part for validation."""

    def fill(train: Part, validation: Part) -> tuple[int, int]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        at = 0
        with open_bytes(path) as (file, size):
            cut = size - round(size * share)
            while data := file.read(min(CHUNK, cut - at) if at < cut else CHUNK):
                check_text(path, data, at, decoder)
                (train if at < cut else validation).write(data)
                at += len(data)
                tell(at)
        check_text(path, b"", at, decoder, final=True)
        train.documents = validation.documents = 1
        return 0, 0

    return fill


def check_text(
    path: Place, data: bytes, start: int, decoder: codecs.IncrementalDecoder, *, final: bool = False
) -> None:
    """Raise `StudyError` unless the next bytes of a file go on as text."""
    if SEPARATOR in data:
        raise StudyError(
            f"text {path} is binary (a NUL byte at position {start + data.index(SEPARATOR)}); give a text file"
        )
    try:
        decoder.decode(data, final)
    except UnicodeDecodeError as error:
        where = f"near position {start + error.start}"
        raise StudyError(f"text {path} is not UTF-8 ({where}); convert it to UTF-8 or give another text") from error


def write_rows(files: Sequence[Place], column: str, tell: Progress) -> Callable[[Part, Part], tuple[int, int]]:
    """Return what writes the rows of tables, a document each, one in ten for validation."""

    def fill(train: Part, validation: Part) -> tuple[int, int]:
        skipped, said = 0, 0
        for document in (row for path in files for row in rows_of(path, column)):
            if not document or SEPARATOR in document:
                skipped += 1
                continue
            held_out = int.from_bytes(hashlib.sha256(document).digest()[:8], "little") % VALIDATION_DOCUMENTS == 0
            (validation if held_out else train).add(document)
            if train.size - said >= CHUNK:
                said = train.size
                tell(said)
        return skipped, 0

    return fill


def table_paths(path: Place) -> list[Place] | None:
    """Return the Parquet or Arrow files that a place names: a file, a pattern with *, or a directory that has some.

    The one place that knows where tables lie.
    """
    from evenkeel.data.sources import format_of, list_files

    plain = plain_path(path) if isinstance(path, Path) else replace(path, member="")
    visible = (key for key in keys_of(plain) if not any(part[0] in "._" for part in key.split("/")))
    kinds = {getattr(format_of(Path(key)), "name", None) for key in visible}
    return list_files(plain).files if kinds and kinds <= TABLES else None


def keys_of(place: Place) -> Iterable[str]:
    """Return the paths of all files of a directory or a URL, relative to it; of any other path its name."""
    from evenkeel.data.sources import key_of, list_objects

    if not isinstance(place, Path):
        files, root, _ = list_objects(place)
        return [key_of(file, root) for file in files]
    if place.is_dir():
        return (
            Path(folder, name).relative_to(place).as_posix() for folder, _, names in os.walk(place) for name in names
        )
    return [place.name]


def text_column(path: Place, asked: str) -> str:
    """Return the column of a table that holds the text: the one asked for, the only one of text, or ``text``."""
    from evenkeel.data.sources import format_of, read_schema

    kind = format_of(path)
    assert kind is not None
    schema = read_schema(path, kind)
    texts = [field.name for field in schema if str(field.type).removeprefix("large_") in ("string", "binary")]
    known = [name for name in TEXT_COLUMNS if name in texts]
    if asked in texts:
        return asked
    if not asked and (len(texts) == 1 or known):
        return known[0] if known else texts[0]
    columns = ", ".join(schema.names) or "none"
    lacks = f"has no column of text called {asked!r}" if asked else "does not say which column is the text"
    raise StudyError(f"{path} {lacks} (its columns: {columns}); name it: {path}::COLUMN")


def rows_of(path: Place, column: str) -> Iterator[bytes]:
    """Yield the rows of a column, some row groups or a record batch in memory at a time; missing ones are empty."""
    from evenkeel.data.sources import format_of, grouped, opened

    kind = format_of(path)
    assert kind is not None
    assert kind.batches is not None
    try:
        with opened(path) as file:
            sizes = kind.part_sizes(file) if kind.part_sizes else []
            pieces: list[tuple[int, ...] | None] = [*grouped(sizes, PIECE)] or [None]
            for parts in pieces:
                for batch in kind.batches(file, [column], parts):
                    for start in range(0, batch.num_rows, ROWS):
                        values = batch.column(column).slice(start, ROWS).to_pylist()
                        yield from (value.encode() if isinstance(value, str) else value or b"" for value in values)
    except BROKEN as error:
        reason = " ".join(str(error).split()).removeprefix(f"{path}: ")
        raise StudyError(f"text {path} cannot be read: {reason}") from error
