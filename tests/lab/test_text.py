"""Reading and splitting text, and what is wrong with bad text."""

import gzip
import math
import os

import pytest
import torch

import evenkeel as ek
from evenkeel.lab import Corpus, load_corpus


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_a_file_is_split_by_position(tmp_path):
    text = bytes(32 + i % 90 for i in range(1000))
    corpus = load_corpus(write(tmp_path, text=text) / "text", context=8)
    assert isinstance(corpus, Corpus)
    assert bytes(corpus.train) + bytes(corpus.validation) == text
    assert len(corpus.validation) == 100
    assert (corpus.train_files, corpus.validation_files) == (1, 1)


def test_a_directory_is_split_by_files(tmp_path):
    files = {f"part{i}": f"file number {i} " * 20 for i in range(40)}
    corpus = load_corpus(write(tmp_path, **files), context=8)
    train, validation = (bytes(part).decode().split("\0") for part in (corpus.train, corpus.validation))
    assert sorted(train + validation) == sorted(files.values())
    assert (len(train), len(validation)) == (corpus.train_files, corpus.validation_files)
    assert 0.1 <= sum(map(len, validation)) / sum(map(len, files.values())) <= 0.2


def test_the_split_depends_on_relative_paths_alone(tmp_path):
    files = {f"folder__part{i}": f"file number {i} " * 20 for i in range(20)}
    one, two = (load_corpus(write(tmp_path / name, **files), context=8) for name in ("one", "two"))
    assert one.digest == two.digest
    assert torch.equal(one.validation, two.validation)


def test_one_large_file_is_not_held_out(tmp_path):
    corpus = load_corpus(write(tmp_path, large="x" * 10_000, small="y" * 100), context=8)
    assert bytes(corpus.validation) == b"y" * 100


def test_hidden_binary_and_empty_files_are_left_out(tmp_path):
    write(tmp_path, a="a" * 100, b="b" * 100, image=b"\x89PNG\0", empty="", latin="caf\xe9".encode("latin-1"))
    write(tmp_path, **{".git__config": "c" * 100, ".hidden": "d" * 100})
    corpus = load_corpus(tmp_path, context=8)
    assert sorted(bytes(corpus.train) + bytes(corpus.validation)) == sorted(b"a" * 100 + b"b" * 100)
    assert corpus.skipped_files == 3


@pytest.mark.parametrize(
    ("content", "learned"),
    [
        ('{"format": 1, "settings": {}, "corpus": {}}', False),
        ('{"format": 2, "settings": {}, "corpus": {}}', False),
        ('{"title": "a study of something else"}', True),
        ("[1, 2]", True),
        ("no JSON", True),
        ("[" * 100_000, True),
    ],
)
def test_directories_of_studies_are_left_out(tmp_path, content, learned):
    write(tmp_path, a="a" * 100, b="b" * 100, **{"runs__s__study.json": content, "runs__s__arms__none__r": "e" * 100})
    corpus = load_corpus(tmp_path, context=1)
    assert (b"e" * 100 in bytes(corpus.train) + b"\0" + bytes(corpus.validation)) is learned
    assert corpus.train_files + corpus.validation_files == (4 if learned else 2)


def test_copies_of_a_file_are_counted_and_left_out(tmp_path):
    files = {f"part{i}": f"file number {i} " * 20 for i in range(20)}
    copies = {f"{folder}__{name}": text for name, text in files.items() for folder in ("a", "z")}
    corpus = load_corpus(write(tmp_path, **files, **copies), context=8)
    train, validation = (bytes(part).decode().split("\0") for part in (corpus.train, corpus.validation))
    assert sorted(train + validation) == sorted(files.values())
    assert corpus.describe()["duplicate_files"] == corpus.duplicate_files == 40
    assert (len(train), len(validation)) == (corpus.train_files, corpus.validation_files)


def test_a_file_and_its_copy_are_one_file(tmp_path):
    corpus = load_corpus(write(tmp_path, one="abc " * 100, two="abc " * 100), context=8)
    assert (len(corpus.train), len(corpus.validation), corpus.duplicate_files) == (360, 40, 1)


def test_names_that_are_not_utf8(tmp_path):
    folder = tmp_path / os.fsdecode(b"d\xff")
    names = [os.fsdecode(b"%d\xff" % i) for i in range(20)]
    corpus = load_corpus(write(folder, **{name: f"{i} " * 50 for i, name in enumerate(names)}), context=8)
    assert corpus.train_files + corpus.validation_files == 20
    assert corpus.source == f"{tmp_path}/d\N{REPLACEMENT CHARACTER}"


def test_the_standard_library_is_the_default_text():
    corpus = load_corpus(None, context=64)
    assert len(corpus.train) > 1_000_000
    assert corpus.train_files > 100
    assert corpus.source.startswith("Python 3.")
    assert corpus.describe()["train_bytes"] == len(corpus.train)


def test_the_loss_of_byte_frequencies(tmp_path):
    """900 bytes of a and b in equal parts: each costs ln(2) but for the count of one added to all 256 bytes."""
    corpus = load_corpus(write(tmp_path, text="ab" * 500) / "text", context=8)
    assert corpus.frequency_loss == pytest.approx(-math.log(451 / (900 + 256)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"abc\0def" * 100, "is binary (a NUL byte at position 3)"),
        (b"abc\xff" * 100, "is not UTF-8 (byte 0xff at position 3)"),
        ("a text".encode("utf-16"), "is UTF-16; convert it to UTF-8"),
        (gzip.compress(b"a text", mtime=0), "is compressed (gzip); unpack it"),
        (b"abc", "is too short: its training part has 3 bytes, but a context of 8 needs more than 8"),
        (b"a" * 50, "is too short: its validation part has 5 bytes"),
    ],
)
def test_bad_text_is_named_with_what_was_seen(tmp_path, content, message):
    path = write(tmp_path, text=content) / "text"
    with pytest.raises(ek.StudyError) as caught:
        load_corpus(path, context=8)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_that_is_no_file(tmp_path):
    with pytest.raises(ek.StudyError, match="does not exist; give a text file or a directory"):
        load_corpus(tmp_path / "missing", context=8)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ek.StudyError, match="is not a file or directory"):
        load_corpus(tmp_path / "pipe", context=8)
    with pytest.raises(ek.StudyError, match=r"cannot read text .*: File name too long"):
        load_corpus(tmp_path / ("x" * 300), context=8)


def test_a_directory_without_text(tmp_path):
    write(tmp_path, image=b"\x89PNG\0")
    with pytest.raises(ek.StudyError, match=r"holds no UTF-8 text files \(1 other files found\)"):
        load_corpus(tmp_path, context=8)
