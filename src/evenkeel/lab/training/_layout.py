"""Texts laid out in two files, training and validation, which are mapped: larger than memory, or in tables.

FOLDER/text/train.bin, validation.bin   bytes, documents with a NUL byte between them; or token ids, rows as they are
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evenkeel._errors import StudyError
from evenkeel._options.study import BYTES, MOST_TOKENS

if TYPE_CHECKING:
    from evenkeel.data.sources import Place

FORMAT = 1
LARGE = 1 << 28  # bytes; a larger text is laid out
CHUNK = 1 << 22
# How files begin that are often taken for texts, and what to do with them.
KNOWN = {
    b"\xff\xfe": "is UTF-16; convert it to UTF-8",
    b"\xfe\xff": "is UTF-16; convert it to UTF-8",
    b"\x1f\x8b": "is compressed (gzip); unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed (Zstandard); unpack it",
    b"PK\x03\x04": "is a ZIP archive; unpack it and give the directory",
}
COUNTED = 1024  # documents whose bytes or tokens are counted at a time, where they are not more than CHUNK
SEPARATOR = b"\0"  # between documents; no text contains it
Ids = np.ndarray[Any, np.dtype[np.integer[Any]]]
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
    unit: str = "byte"
    vocabulary: int = BYTES


class Filled(NamedTuple):
    """What both parts of a text were made of.

    Attributes:
        skipped: files or documents that were left out.
        copies: files that were left out because another has their content.
        unit: what is learned: a byte or a token.
        vocabulary: how many of them there are.
    """

    skipped: int = 0
    copies: int = 0
    unit: str = "byte"
    vocabulary: int = BYTES


Fill = Callable[["Part", "Part"], Filled]


@dataclass(frozen=True)
class Layout:
    """A text that is laid out: both parts, mapped, and what is known of them."""

    train: Tensor
    validation: Tensor
    facts: Laid


class Part:
    """One of the two files while it is written, in the narrowest dtype that holds what it got so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.documents = path, 0
        self.counted = np.zeros(0, np.int64)
        self.uncounted: list[Ids] = []
        self.pending = 0  # bytes or tokens in `uncounted`
        self.begin(np.dtype(np.uint8))

    def begin(self, dtype: np.dtype[Any]) -> None:
        """Begin an empty file."""
        self.dtype, self.size = dtype, 0
        self.digest = hashlib.sha256()
        self.file = self.path.open("wb")

    def append(self, data: bytes) -> None:
        """Append what is encoded."""
        self.file.write(data)
        self.size += len(data)
        self.digest.update(data)

    def write(self, data: bytes | Ids) -> None:
        """Append bytes, or token ids."""
        if isinstance(data, bytes):
            self.append(data)
        else:
            self.make_room(int(data.max(initial=0)) + 1)
            self.append(data.astype(self.dtype).tobytes())
        self.uncounted.append(np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data)
        self.pending += len(data)
        if len(self.uncounted) >= COUNTED or self.pending >= CHUNK:
            self.counts()

    def add(self, document: bytes | Ids) -> None:
        """Append a document: a text, or token ids."""
        if isinstance(document, bytes) and self.documents:
            document = SEPARATOR + document
        self.write(document)
        self.documents += 1

    def counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return how often each byte or token was written, up to the largest."""
        if self.uncounted:
            counts = np.bincount(np.concatenate(self.uncounted), minlength=len(self.counted))
            counts[: len(self.counted)] += self.counted
            self.counted, self.uncounted, self.pending = counts, [], 0
        return self.counted

    def make_room(self, vocabulary: int) -> None:
        """Write the file anew where the ids of a vocabulary need a wider dtype."""
        if (dtype := narrowest(vocabulary)).itemsize > self.dtype.itemsize:
            self.file.close()
            narrow = mapped(self.path.replace(self.path.with_suffix(".narrow")), self.dtype)
            self.begin(dtype)
            for part in narrow.split(CHUNK):
                self.append(part.numpy().astype(dtype).tobytes())
            self.path.with_suffix(".narrow").unlink()

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self.file:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())


def lay_out(folder: Path, signature: str, fill: Fill) -> Layout:
    """Return a text laid out in a folder; written now unless it is there already.

    Args:
        folder: gets the folder ``text``.
        signature: of what the text is made from; what is there with another one is replaced.
        fill: writes the training and the validation part, and returns what they were made of.
    """
    place = folder / "text"
    facts = read_facts(place)
    if facts is None or facts.signature != signature:
        unfinished = folder / ".text.tmp"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with Part(unfinished / "train.bin") as train, Part(unfinished / "validation.bin") as validation:
            filled = fill(train, validation)
            for part in (train, validation):
                part.make_room(filled.vocabulary)
        facts = Laid(
            FORMAT,
            signature,
            train.size,
            validation.size,
            train.documents,
            validation.documents,
            filled.skipped,
            filled.copies,
            cross_entropy(train.counts(), validation.counts(), filled.vocabulary),
            joint_digest(train.digest.digest(), validation.digest.digest(), filled.unit, filled.vocabulary),
            filled.unit,
            filled.vocabulary,
        )
        (unfinished / "corpus.json").write_bytes(msgspec.json.encode(facts))
        if place.exists():
            shutil.rmtree(place)
        os.replace(unfinished, place)
    return map_layout(place, facts)


def map_layout(place: Path, facts: Laid) -> Layout:
    """Return a text that is there."""
    dtype = narrowest(facts.vocabulary)
    return Layout(mapped(place / "train.bin", dtype), mapped(place / "validation.bin", dtype), facts)


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


def narrowest(vocabulary: int) -> np.dtype[Any]:
    """Return the dtype that a vocabulary is laid out in: uint8 for bytes."""
    return np.min_scalar_type(max(vocabulary, 1) - 1)


def mapped(path: Path, dtype: np.dtype[Any]) -> Tensor:
    """Return the numbers of a file, read as they are used."""
    if not path.stat().st_size:
        return torch.from_numpy(np.empty(0, dtype))
    return torch.from_numpy(np.memmap(path, dtype, mode="c"))


def frequency_loss(train: Tensor, validation: Tensor, vocabulary: int) -> float:
    """Return the cross-entropy, in nats, of the validation part under the training part's counts, each plus one."""
    return cross_entropy(count(train, vocabulary), count(validation, vocabulary), vocabulary)


def count(text: Tensor, vocabulary: int) -> Tensor:
    """Return how often each byte or token occurs."""
    counts = torch.zeros(vocabulary, dtype=torch.long)
    for part in text.split(CHUNK):  # bincount knows uint8, and no wider unsigned ones
        counts += torch.bincount(part if part.dtype == torch.uint8 else part.long(), minlength=vocabulary)
    return counts


def cross_entropy(train: Any, validation: Any, vocabulary: int) -> float:
    """Return the cross-entropy, in nats, of what has these counts under the frequencies of others, plus one each."""
    counts, occurrences = (F.pad(torch.as_tensor(part), (0, vocabulary - len(part))) for part in (train, validation))
    counts, occurrences = counts.double() + 1, occurrences.double()
    total = occurrences.sum().item()
    return -(occurrences * (counts / counts.sum()).log()).sum().item() / total if total else math.nan


def joint_digest(train: bytes, validation: bytes, unit: str = "byte", vocabulary: int = BYTES) -> str:
    """Return the digest of a text from those of its parts: the same ids of another vocabulary are another text."""
    about = "" if unit == "byte" else f"{unit} {vocabulary}"
    return hashlib.sha256(train + validation + about.encode()).hexdigest()


def signature_of(files: Iterable[Place], *about: object) -> str:
    """Return what changes when one of the files does, or the version that a store has of an object."""
    facts = [
        (str(path), *((path.stat().st_size, path.stat().st_mtime_ns) if isinstance(path, Path) else (path.version,)))
        for path in files
    ]
    return hashlib.sha256(json.dumps([facts, *map(str, about)]).encode()).hexdigest()


def plain_place(path: Place) -> tuple[Place, str]:
    """Return the file of a place, and what ``::`` names in it."""
    plain, _, member = str(path).partition("::")
    return (Path(plain) if isinstance(path, Path) else replace(path, member="")), member


def check_ids(ids: Ids, where: str, vocabulary: int | None) -> Ids:
    """Return token ids as uint32; `StudyError` where they are negative or beyond the vocabulary."""
    most = vocabulary or MOST_TOKENS
    wrong = [end for end in (ids.min(initial=0), ids.max(initial=0)) if not 0 <= end < most]
    if wrong:
        stated = "a vocabulary of" if vocabulary else "the largest vocabulary,"
        raise StudyError(
            f"{where} has the token id {wrong[0]}; ids are whole numbers from 0 and less than {stated} {most}"
        )
    return ids.astype(np.uint32, copy=False)


@contextmanager
def open_bytes(path: Place) -> Iterator[tuple[Any, int]]:
    """Open a file, or an object that is read ahead, with its size."""
    from evenkeel.data.sources import opened

    with opened(path) as item:
        size = item.stat().st_size if isinstance(item, Path) else item.size
        with item.open("rb") if isinstance(item, Path) else item.file(sequential=True) as file:
            yield file, size


def copy_file(path: Place, share: float, tell: Progress) -> Fill:
    """Return what copies a text file, its last part for validation."""

    def fill(train: Part, validation: Part) -> Filled:
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
        return Filled()

    return fill


def refuse_known(path: Place, data: bytes) -> None:
    """Raise `StudyError` where a file begins as one of another kind does."""
    if (kind := next((kind for start, kind in KNOWN.items() if data.startswith(start)), None)) is not None:
        raise StudyError(f"text {path} {kind}")


def binary(path: Place, position: int) -> StudyError:
    """Return the error of a file that is no text."""
    return StudyError(
        f"text {path} is binary (a NUL byte at position {position}); give a text file, or, if these are token ids, "
        "their type: path::uint16 or path::uint32"
    )


def check_text(
    path: Place, data: bytes, start: int, decoder: codecs.IncrementalDecoder, *, final: bool = False
) -> None:
    """Raise `StudyError` unless the next bytes of a file go on as text."""
    if start == 0:
        refuse_known(path, data)
    if SEPARATOR in data:
        raise binary(path, start + data.index(SEPARATOR))
    try:
        decoder.decode(data, final)
    except UnicodeDecodeError as error:
        where = f"near position {start + error.start}"
        raise StudyError(f"text {path} is not UTF-8 ({where}); convert it to UTF-8 or give another text") from error
