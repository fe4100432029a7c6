"""The text a study learns: read from a file, a directory or the Python standard library, and split in two."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evenkeel._errors import InvalidArgumentError, StudyError
from evenkeel._files import path_as_text
from evenkeel._options.study import BYTES
from evenkeel._threads import side_by_side
from evenkeel.lab.training._corpus import Corpus
from evenkeel.lab.training._flat import copy_ids, is_flat
from evenkeel.lab.training._layout import (
    LARGE,
    SEPARATOR,
    Fill,
    Filled,
    Layout,
    Part,
    Progress,
    binary,
    copy_file,
    frequency_loss,
    joint_digest,
    lay_out,
    map_layout,
    open_bytes,
    plain_place,
    read_facts,
    refuse_known,
    signature_of,
)
from evenkeel.lab.training._tables import choose_column, table_paths, write_rows

if TYPE_CHECKING:
    from evenkeel.data.sources import Place, StoredFile

VALIDATION_SHARE = 0.1  # of the bytes
COPIED_AT_ONCE = 16  # objects of a store
STANDARD_LIBRARY_LEAVES_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


def load_corpus(
    path: str | os.PathLike[str] | None,
    *,
    context: int,
    folder: Path | None = None,
    tell: Progress = lambda size: None,
    storage_options: Mapping[str, Any] | None = None,
    vocabulary: int | None = None,
) -> Corpus:
    """Read a text and split it into training and validation parts.

    A directory is read recursively, without hidden files, files that are not UTF-8 text, repetitions of a file and the
    directories of studies, and split by files: in an order given by a hash of their relative paths, files go to
    validation until it has a tenth of the bytes. A single file is split by position: its last tenth is validation. Of
    Parquet and Arrow files (one, a pattern with ``*``, a directory), the rows of a column of text or of lists of token
    ids are documents: one in ten goes to validation, by a hash of its content; ``path::column`` names the column where
    that is not clear. The split is the same on every machine. Between texts stands a NUL byte; rows of token ids follow
    one another as they are.

    Tables, and texts of more than 256 MiB, are laid out on the disk and mapped, so that they may be larger than memory;
    so is every text of a store, which is read once, and token ids in one file: a one-dimensional ``.npy``, or bare ones
    whose type ``path::uint16`` or ``path::uint32`` names, split by position.

    Args:
        path: a text file, a directory, tables or token ids, or the URL of such in a store (``s3://bucket/texts/``);
            None means the source of the Python standard library that is running, without its tests.
        context: the sequence length that both parts must be able to fill.
        folder: where texts are laid out, in the folder ``text``; those that are there already are mapped as they are.
        tell: is told how many bytes are laid out.
        storage_options: for the client of the store that a URL names; see `evenkeel.data.fit`.
        vocabulary: how many token ids there are; None means as many as the largest one says.

    Returns:
        The corpus.

    Raises:
        StudyError: the text is missing, unreadable, empty, binary or too short, or needs a folder; a row of token ids
            has a null, a negative id or one beyond the vocabulary.
        SourceError: the store cannot be reached, or has nothing under the URL.

    Example:
        >>> from evenkeel.lab import load_corpus
        >>> load_corpus(None, context=64).train_files > 100
        True
    """
    place = locate_text(path, storage_options)
    if vocabulary is not None and (place is None or not holds_tokens(place)):
        raise StudyError(
            f"a vocabulary of {vocabulary} is for token ids, but this text is learned as bytes; leave it out"
        )
    if place is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        source = f"Python {sysconfig.get_python_version()} standard library"
        return split(source, *read_directory(root, leaves_out=is_not_library_source), context)
    try:
        if is_laid_out_text(place):
            if folder is None:
                raise StudyError(
                    f"text {place} is large, a table or in a store, which is laid out on the disk; give a folder"
                )
            return laid_out(place, folder, tell, context, vocabulary)
        assert isinstance(place, Path)
        path = place
        if path.is_dir():
            return split(path_as_text(path), *read_directory(path, leaves_out=holds_study), context)
        if path.is_file():
            return split(path_as_text(path), {path.name: read_text(path)}, 0, context)
        plain, member = plain_place(path)
        if member and Path(str(plain)).exists():
            raise no_member(plain, member)
        problem = "is not a file or directory" if path.exists() else "does not exist"
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StudyError(f"cannot read text {path}: {error.strerror}; check the path and its permissions") from error
    raise StudyError(f"text {path} {problem}; give a text file or a directory of text files")


def locate_text(path: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None) -> Place | None:
    """Return the place of a text, None for the default one."""
    from evenkeel.data.sources import locate

    if path is None and storage_options:
        raise InvalidArgumentError("storage_options are for the URL of a text, but none is given")
    return None if path is None else locate(path, storage_options)


def is_laid_out_text(path: Place | None) -> bool:
    """Whether a text is laid out on the disk: tables, more than fits well into memory, and all that a store has."""
    if path is None:
        return False
    if not isinstance(path, Path):
        return True
    if table_paths(path) is not None or is_flat(path):
        return True
    if path.is_dir():
        return sum(entry.stat().st_size for _, entry in text_entries(path, holds_study)) > LARGE
    return path.is_file() and path.stat().st_size > LARGE


def holds_tokens(path: Place) -> bool:
    """Whether a place has token ids."""
    tables = table_paths(path)
    return is_flat(path) if tables is None else choose_column(tables[0], plain_place(path)[1]).unit == "token"


def no_member(plain: Place, member: str) -> StudyError:
    """Return the error of a file that has no parts to name."""
    return StudyError(
        f"text {plain} is no table, so that nothing in it is called {member!r}; leave it out, or, if these are bare "
        "token ids, name their type: ::uint16 or ::uint32"
    )


def laid_out(path: Place, folder: Path, tell: Progress, context: int, vocabulary: int | None) -> Corpus:
    """Return a text that is laid out below a folder."""
    from evenkeel.data.sources import pinned

    plain, member = plain_place(path)
    stated = [] if vocabulary is None else [vocabulary]
    if (tables := table_paths(path)) is not None:
        tables = pinned(tables)
        column = choose_column(tables[0], member)
        fill = write_rows(tables, column, vocabulary, tell)
        layout = lay_out(folder, signature_of(tables, column.name, *stated), fill)
    elif is_flat(path):
        (plain,) = pinned([plain])
        fill = copy_ids(plain, member, VALIDATION_SHARE, vocabulary, tell)
        layout = lay_out(folder, signature_of([plain], member, *stated), fill)
    elif not isinstance(path, Path):
        if member:
            raise no_member(plain, member)
        layout = laid_out_objects(path, folder, tell)
    elif path.is_dir():
        entries = dict(text_entries(path, holds_study))
        layout = lay_out(folder, signature_of(entries.values()), join_files(entries, tell))
    else:
        layout = lay_out(folder, signature_of([path]), copy_file(path, VALIDATION_SHARE, tell))
    return corpus_of(path_as_text(path) if isinstance(path, Path) else str(path), layout, context)


def laid_out_before(folder: Path, digest: str, source: str, context: int) -> Corpus | None:
    """Return the text with a digest that is laid out below a folder, wherever it came from; None if there is none."""
    place = folder / "text"
    facts = read_facts(place)
    return None if facts is None or facts.digest != digest else corpus_of(source, map_layout(place, facts), context)


def laid_out_objects(place: StoredFile, folder: Path, tell: Progress) -> Layout:
    """Return the texts of a store, laid out below a folder: the bytes that the same files of this machine give."""
    from evenkeel.data.sources import key_of, list_objects, pinned

    files, root, *_ = list_objects(place)
    keys = {file: key_of(file, root).split("/") for file in files}
    # as text_entries yields them: without hidden ones, the files of a directory before its directories
    files = [file for file in files if not any(part.startswith(".") for part in keys[file])]
    files = pinned(sorted(files, key=lambda file: [*((1, part) for part in keys[file][:-1]), (0, keys[file][-1])]))
    fill = (
        copy_file(files[0], VALIDATION_SHARE, tell)
        if len(files) == 1
        else join_objects({"/".join(keys[file]): file for file in files}, tell)
    )
    return lay_out(folder, signature_of(files), fill)


def join_objects(entries: Mapping[str, Place], tell: Progress) -> Fill:
    """Return what writes the texts of a store; each is read from there once, into a copy that is there meanwhile."""

    def fill(train: Part, validation: Part) -> Filled:
        copies = Path(train.file.name).with_name("copies")
        copies.mkdir()
        names = {name: copies / str(number) for number, name in enumerate(entries)}

        def copy(name: str) -> None:
            with open_bytes(entries[name]) as (source, _), names[name].open("wb") as target:
                shutil.copyfileobj(source, target)

        side_by_side(copy, entries, COPIED_AT_ONCE)
        filled = join_files(names, tell)(train, validation)
        shutil.rmtree(copies)
        return filled

    return fill


def corpus_of(source: str, layout: Layout, context: int) -> Corpus:
    """Return the corpus of a text that is laid out."""
    facts = layout.facts
    sizes = {"training": len(layout.train), "validation": len(layout.validation)}
    check_length(source, sizes, context, facts.unit)
    parts: dict[str, Any] = {"source": source, "train": layout.train, "validation": layout.validation}
    return Corpus(**parts, **{one.name: getattr(facts, one.name) for one in fields(Corpus) if one.name not in parts})


def join_files(entries: dict[str, Path], tell: Progress) -> Fill:
    """Return what writes text files, split as those of a directory in memory; each is read twice, alone."""

    def fill(train: Part, validation: Part) -> Filled:
        names: dict[bytes, str] = {}
        sizes: dict[str, int] = {}
        for name, entry in entries.items():
            with contextlib.suppress(StudyError, OSError):
                data = read_text(entry)
                names[hashlib.sha256(data).digest()] = name
                sizes[name] = len(data)
        kept = {name: sizes[name] for name in names.values()}
        if not kept:
            raise StudyError(f"none of the {len(entries)} files is UTF-8 text; give others")
        held_out = choose_validation(kept)
        for name in kept:
            (validation if name in held_out else train).add(read_text(entries[name]))
            tell(train.size)
        return Filled(len(entries) - len(sizes), len(sizes) - len(kept))

    return fill


def is_not_library_source(entry: Path) -> bool:
    """Whether a file or directory below the standard library is no library source."""
    return entry.name in STANDARD_LIBRARY_LEAVES_OUT or (entry.suffix != ".py" and entry.is_file())


def holds_study(entry: Path) -> bool:
    """Whether an entry is the directory of a study, whose records and report are no text to learn."""
    try:
        frozen = json.loads((entry / "study.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(frozen, dict) and {"format", "settings", "corpus"} <= frozen.keys()


def read_text(path: Path) -> bytes:
    """Return the bytes of one file that must be non-empty UTF-8 text."""
    data = path.read_bytes()
    if not data:
        raise StudyError(f"text {path} is empty; give a text of at least a few thousand bytes")
    refuse_known(path, data)
    if SEPARATOR in data:
        raise binary(path, data.index(SEPARATOR))
    try:
        data.decode()
    except UnicodeDecodeError as error:
        seen = f"byte 0x{data[error.start]:02x} at position {error.start}"
        raise StudyError(f"text {path} is not UTF-8 ({seen}); convert it to UTF-8 or give another text") from error
    return data


def text_entries(root: Path, leaves_out: Callable[[Path], bool]) -> Iterator[tuple[str, Path]]:
    """Yield the files below a directory that may be texts, by relative path, in a stable order."""
    for folder, subfolders, names in os.walk(root):
        here = Path(folder)
        subfolders[:] = sorted(name for name in subfolders if name[0] != "." and not leaves_out(here / name))
        for name in sorted(names):
            entry = here / name
            if not (name[0] == "." or leaves_out(entry)) and entry.is_file():
                yield entry.relative_to(root).as_posix(), entry


def read_directory(root: Path, *, leaves_out: Callable[[Path], bool]) -> tuple[dict[str, bytes], int]:
    """Return the text files below a directory by relative path, in a stable order, and how many others there were."""
    files: dict[str, bytes] = {}
    skipped = 0
    for name, entry in text_entries(root, leaves_out):
        try:
            files[name] = read_text(entry)
        except (StudyError, OSError):
            skipped += 1
    if not files:
        seen = f"{skipped} other files" if skipped else "nothing"
        raise StudyError(f"text directory {root} holds no UTF-8 text files ({seen} found); give another directory")
    return files, skipped


def split(source: str, files: dict[str, bytes], skipped: int, context: int) -> Corpus:
    """Split files into training and validation text, a single one by position."""
    # One file of each content: a copy in the other part would be validation text that was learned.
    names = {data: name for name, data in files.items()}
    duplicates = len(files) - len(names)
    files = {name: data for data, name in names.items()}
    if len(files) == 1:
        (data,) = files.values()
        cut = len(data) - round(len(data) * VALIDATION_SHARE)
        train, validation = data[:cut], data[cut:]
        counts = (1, 1)
    else:
        held_out = choose_validation({name: len(data) for name, data in files.items()})
        train = SEPARATOR.join(data for name, data in files.items() if name not in held_out)
        validation = SEPARATOR.join(data for name, data in files.items() if name in held_out)
        counts = (len(files) - len(held_out), len(held_out))
    check_length(source, {"training": len(train), "validation": len(validation)}, context, "byte")
    parts = to_tensor(train), to_tensor(validation)
    return Corpus(
        source=source,
        train=parts[0],
        validation=parts[1],
        train_files=counts[0],
        validation_files=counts[1],
        skipped_files=skipped,
        duplicate_files=duplicates,
        frequency_loss=frequency_loss(*parts, BYTES),
        digest=joint_digest(hashlib.sha256(train).digest(), hashlib.sha256(validation).digest()),
    )


def check_length(source: str, sizes: Mapping[str, int], context: int, unit: str) -> None:
    """Raise `StudyError` where a part of a text cannot fill a sequence."""
    for part, size in sizes.items():
        if size <= context:
            raise StudyError(
                f"text {source} is too short: its {part} part has {size} {unit}s, but a context of {context} needs "
                f"more than {context}; give a longer text or a smaller context"
            )


def choose_validation(sizes: Mapping[str, int]) -> set[str]:
    """Return the files to hold out: about a tenth of the bytes, and none of more than a fifth if there are others."""
    total = sum(sizes.values())
    by_hash = sorted(sizes, key=lambda name: hashlib.sha256(name.encode(errors="surrogatepass")).digest())
    held_out: set[str] = set()
    taken = 0
    for name in by_hash:
        if taken < VALIDATION_SHARE * total and taken + sizes[name] <= 2 * VALIDATION_SHARE * total:
            held_out.add(name)
            taken += sizes[name]
    return held_out or {min(by_hash, key=lambda name: sizes[name])}


def to_tensor(data: bytes) -> Tensor:
    """Return bytes as a uint8 tensor of its own memory."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
