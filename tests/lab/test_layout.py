"""Texts laid out on the disk: tables, and those larger than memory; the same bytes as in memory, read once."""

import json
import os

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from study_runs import TINY, measured

import evenkeel as ek
from evenkeel.lab import Observer, StudySettings, load_corpus, run_study
from evenkeel.lab.training import _layout, _tables, _text

ROWS = [f"row {i} is a document of its own\n" for i in range(300)]


@pytest.fixture
def large(monkeypatch):
    """Every text counts as larger than memory."""
    monkeypatch.setattr(_text, "LARGE", 0)
    monkeypatch.setattr(_layout, "CHUNK", 1000)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": range(300), "text": ROWS}), path, row_group_size=70)
    return path


def facts(corpus):
    return {**corpus.describe(), "frequency_loss": round(corpus.frequency_loss, 9)}


def directory(tmp_path):
    root = tmp_path / "texts"
    root.mkdir()
    for i in range(25):
        (root / f"{i}.txt").write_text(f"file {i} \N{SNOWMAN} " * (20 + i))
    (root / "copy.txt").write_text((root / "3.txt").read_text())
    (root / "binary.bin").write_bytes(b"\0\1")
    (root / "latin.txt").write_bytes("é".encode("latin-1"))
    return root


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_large_text_is_split_as_one_in_memory(kind, tmp_path, text, monkeypatch):
    path = text if kind == "file" else directory(tmp_path)
    memory = load_corpus(path, context=8)
    monkeypatch.setattr(_text, "LARGE", 0)
    monkeypatch.setattr(_layout, "CHUNK", 1000)
    laid = load_corpus(path, context=8, folder=tmp_path / "out")
    assert facts(laid) == facts(memory)
    assert laid.train.equal(memory.train)
    assert laid.validation.equal(memory.validation)
    assert (tmp_path / "out" / "text" / "train.bin").stat().st_size == len(memory.train)


def test_a_study_of_a_large_text_has_the_records_of_one_in_memory(tmp_path, text, monkeypatch):
    settings = StudySettings(**TINY | {"arms": ("none", "pre-rms")})
    run_study(settings, tmp_path / "memory", text=text)
    monkeypatch.setattr(_text, "LARGE", 0)
    run_study(settings, tmp_path / "laid", text=text)
    assert measured(tmp_path / "laid") == measured(tmp_path / "memory") != {}


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.arrows", "folder", "*.parquet"])
def test_rows_of_tables_are_documents(name, tmp_path, table):
    path = tmp_path / name
    if name == "rows.arrow":
        feather.write_feather(pq.read_table(table), path)
    elif name == "rows.arrows":
        with pa.ipc.new_stream(path, pq.read_schema(table)) as writer:
            writer.write_table(pq.read_table(table))
    elif name == "folder":
        path.mkdir()
        table.rename(path / "part-0.parquet")
    corpus = load_corpus(path, context=8, folder=tmp_path / "out")
    parts = [bytes(part.numpy()).decode().split("\0") for part in (corpus.train, corpus.validation)]
    assert sorted(parts[0] + parts[1]) == sorted(ROWS)
    assert (corpus.train_files, corpus.validation_files) == tuple(map(len, parts))
    assert 10 < corpus.validation_files < 60
    assert parts[0] == [row for row in ROWS if row in set(parts[0])]


def test_rows_without_text_are_counted_and_left_out(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [*ROWS, None, "", "a\0b"]}), path)
    corpus = load_corpus(path, context=8, folder=tmp_path)
    assert corpus.skipped_files == 3
    assert corpus.train_files + corpus.validation_files == len(ROWS)


def test_texts_as_categories_and_views_are_texts(tmp_path, table):
    whole = load_corpus(table, context=8, folder=tmp_path / "whole")
    kinds = {kind: pa.array(ROWS).cast(kind) for kind in (pa.string_view(), pa.large_string(), pa.large_binary())}
    for number, rows in enumerate([*kinds.values(), pa.array(ROWS).dictionary_encode()]):
        path = tmp_path / f"{number}.arrow"
        with pa.ipc.new_file(path, pa.schema([("text", rows.type)])) as writer:
            writer.write_table(pa.table({"text": rows}))
        assert load_corpus(path, context=8, folder=tmp_path / str(number)).digest == whole.digest
    pq.write_table(pa.table({"text": pa.array(ROWS).dictionary_encode()}), table)
    assert load_corpus(table, context=8, folder=tmp_path / "categories").digest == whole.digest


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:1], "has one document, which all fall into one part: one document in 10 is held out"),
        (ROWS[:3], "has only 3 different documents, which"),
        (ROWS[:1] * 500, r"has only equal documents \(500\), which"),
        ([], "there is no text in the column 'text' of .*: it has no rows; give another"),
        ([None, None], r"it has only rows that are null, empty or binary \(2\); give another"),
    ],
)
def test_documents_that_cannot_be_split_are_told(rows, message, tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": pa.array(rows, pa.string())}), path)
    with pytest.raises(ek.StudyError, match=message):
        load_corpus(path, context=8, folder=tmp_path)
    assert not (tmp_path / "text").exists()


def test_tables_beside_texts_are_refused_and_not_left_out(tmp_path, table):
    folder = tmp_path / "mixed"
    folder.mkdir()
    table.rename(folder / "rows.parquet")
    (folder / "notes.txt").write_text("some words " * 100)
    with pytest.raises(
        ek.StudyError, match=r"holds tables \(rows.parquet\) and other files \(notes.txt\), .*/\*.parquet"
    ):
        load_corpus(folder, context=8, folder=tmp_path)
    assert load_corpus(folder / "*.parquet", context=8, folder=tmp_path).train_files > 200


def test_columns_are_named_where_they_are_not_clear(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"title": ROWS, "body": ROWS, "n": range(300)}), path)
    with pytest.raises(
        ek.StudyError,
        match=r"does not say which column is the text, or the token ids \(its columns: title .*, body .*, n",
    ):
        load_corpus(path, context=8, folder=tmp_path)
    with pytest.raises(
        ek.StudyError,
        match=r"has no column of text or of lists of token ids called 'n' .*; name it: .*rows\.parquet::COLUMN",
    ):
        load_corpus(tmp_path / "rows.parquet::n", context=8, folder=tmp_path)
    assert load_corpus(tmp_path / "rows.parquet::body", context=8, folder=tmp_path).train_files > 200


def test_what_is_laid_out_is_not_read_again_unless_it_changed(tmp_path, table, monkeypatch):
    said = []
    first = load_corpus(table, context=8, folder=tmp_path / "out")
    monkeypatch.setattr(_tables, "rows_of", lambda *_: pytest.fail("read again"))
    again = load_corpus(table, context=8, folder=tmp_path / "out", tell=said.append)
    assert (facts(again), said) == (facts(first), [])
    monkeypatch.undo()
    pq.write_table(pa.table({"text": ROWS[:250]}), table)
    changed = load_corpus(table, context=8, folder=tmp_path / "out")
    assert changed.train_files + changed.validation_files == 250
    (tmp_path / "out" / "text" / "train.bin").write_bytes(b"cut short")
    assert facts(load_corpus(table, context=8, folder=tmp_path / "out")) == facts(changed)


def test_a_layout_that_was_killed_is_begun_again(tmp_path, table):
    unfinished = tmp_path / "out" / ".text.tmp"
    unfinished.mkdir(parents=True)
    (unfinished / "train.bin").write_bytes(b"half")
    load_corpus(table, context=8, folder=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["text"]


class Interrupted(Observer):
    def text_laid_out(self, size):
        raise KeyboardInterrupt


def test_a_study_on_a_table_resumes_and_its_processes_map_the_same_bytes(tmp_path, table, monkeypatch):
    monkeypatch.setattr(_tables, "CHUNK", 1000)
    settings = StudySettings(**TINY | {"arms": ("none", "pre-rms")})
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=table, observer=Interrupted())
    run_study(settings, out, text=table, resume=True, workers=2)
    run_study(settings, tmp_path / "serial", text=table)
    assert measured(out) == measured(tmp_path / "serial") != {}
    assert json.loads((out / "summary.json").read_text())["corpus"]["source"] == str(table)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"line\n" * 300 + b"\xff", r"is not UTF-8 \(near position 1500\)"),
        (b"line\n" * 300 + "\N{SNOWMAN}".encode()[:2], r"is not UTF-8"),
        (b"line\n" * 300 + b"\0", r"is binary \(a NUL byte at position 1500\)"),
    ],
)
def test_a_large_file_that_is_no_text(content, message, tmp_path, large):
    path = tmp_path / "big.txt"
    path.write_bytes(content)
    with pytest.raises(ek.StudyError, match=message):
        load_corpus(path, context=8, folder=tmp_path)
    assert not (tmp_path / "text").exists()


def test_damaged_tables_and_missing_folders_are_one_line(tmp_path, table):
    with pytest.raises(ek.StudyError, match="is laid out on the disk; give a folder"):
        load_corpus(table, context=8)
    with pytest.raises(ek.StudyError, match="too short: its training part"):
        load_corpus(table, context=10**6, folder=tmp_path)
    data = bytearray(table.read_bytes())
    data[len(data) // 3 : len(data) // 2] = os.urandom(len(data) // 2 - len(data) // 3)
    table.write_bytes(data)
    with pytest.raises(ek.EvenkeelError, match=r"rows\.parquet") as caught:
        load_corpus(table, context=8, folder=tmp_path / "new")
    assert "\n" not in str(caught.value)


def test_no_space_for_the_text_is_one_line_and_loses_nothing(tmp_path, table, monkeypatch):
    def full(descriptor):
        raise OSError(28, os.strerror(28))

    settings = StudySettings(**TINY | {"arms": ("none",)})
    with monkeypatch.context() as patch:
        patch.setattr(_layout.os, "fsync", full)
        with pytest.raises(ek.StudyError, match=r"cannot write to .*: No space left on device"):
            run_study(settings, tmp_path / "out", text=table)
    assert run_study(settings, tmp_path / "out", text=table, resume=True)["arms"][0]["status"] == "finished"
