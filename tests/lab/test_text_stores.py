"""Texts in an object store: the bytes of the same files on this machine, read once, by version."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import Refuse
from study_runs import TINY, measured

import evenkeel as ek
from evenkeel.cli import main
from evenkeel.data.sources import locate
from evenkeel.lab import StudySettings, load_corpus, run_study, study
from evenkeel.lab.training import _tables

ROWS = [f"row {i} is a document of its own\n" for i in range(300)]
SETTINGS = StudySettings(**TINY | {"arms": ("none", "pre-rms")})


@pytest.fixture
def folder(tmp_path):
    """Text files in directories, with a copy, a hidden one and two that are no text."""
    root = tmp_path / "texts"
    (root / "b").mkdir(parents=True)
    for i in range(12):
        (root / ("b" if i % 3 else "") / f"{i}.txt").write_text(f"file {i} \N{SNOWMAN} " * (20 + i))
    (root / "_copy.txt").write_text((root / "3.txt").read_text())
    (root / ".hidden.txt").write_text("hidden")
    (root / "b.bin").write_bytes(b"\0\1")
    (root / "latin.txt").write_bytes("é".encode("latin-1"))
    return root


def table(path, rows=ROWS):
    pq.write_table(pa.table({"n": range(len(rows)), "text": rows, "body": rows}), path, row_group_size=70)


def facts(corpus):
    return corpus.describe() | {"source": "", "frequency_loss": round(corpus.frequency_loss, 9)}


def reads(requests):
    """How often each object was read."""
    paths = [request.path for request in requests if request.method == "GET" and "list-type" not in request.path]
    return {path: paths.count(path) for path in paths if path.count("/") > 1}


def test_the_texts_of_a_store_are_those_of_a_directory_and_are_read_once(store, folder, tmp_path):
    url, local = store.upload(folder, "texts"), load_corpus(folder, context=8)
    options = {"context": 8, "folder": tmp_path / "out", "storage_options": store.options}
    with store.watched() as requests:
        corpus = load_corpus(url, **options)
    assert facts(corpus) == facts(local)
    assert corpus.source == url
    assert set(reads(requests).values()) == {1}
    assert len(reads(requests)) == 15
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["text"]
    with store.watched() as requests:
        assert facts(load_corpus(url, **options)) == facts(local)
    assert reads(requests) == {}
    store.put("texts/0.txt", b"another text of the same key " * 40)
    assert load_corpus(url, **options).digest != local.digest


@pytest.mark.parametrize("name", ["one.txt", "rows.parquet::body", "rows/", "*.parquet::text"])
def test_objects_and_patterns_are_read_as_paths_are(name, store, tmp_path):
    files = tmp_path / "files"
    (files / "rows").mkdir(parents=True)
    (files / "one.txt").write_text("one text of several lines\n" * 50)
    table(files / "rows.parquet", [*ROWS, "of this file alone"])
    table(files / "rows" / "0.parquet")
    url = f"{store.upload(files, 'files')}/{name}"
    if name.startswith("*"):
        files = files / "rows"
        url = url.replace("files/*", "files/rows/*")
    corpus = load_corpus(url, context=8, folder=tmp_path / "out", storage_options=store.options)
    assert facts(corpus) == facts(load_corpus(files / name, context=8, folder=tmp_path / "local"))


def test_of_a_large_table_the_column_travels_once_and_a_piece_at_a_time(store, tmp_path):
    rows = np.random.default_rng(0).bytes(30_000_000).hex()
    rows = [rows[at : at + 1000] for at in range(0, len(rows), 1000)]
    other = np.random.default_rng(1).normal(size=(len(rows), 40))
    columns = {"text": rows} | {f"n{i}": column for i, column in enumerate(other.T)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=len(rows) // 6)
    store.put("rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    size = sum(len(row) for row in rows)
    path = locate("s3://bucket/rows.parquet", store.options)
    with store.watched() as requests:
        least = pa.total_allocated_bytes()
        held = []
        for number, row in enumerate(_tables.rows_of(path, _tables.Column("text", "byte"))):
            assert row == rows[number].encode()
            if number % 5000 == 0:
                held.append(pa.total_allocated_bytes() - least)
    assert number == len(rows) - 1
    assert max(held) < size / 2
    assert sum(request.size for request in requests if request.method == "GET") < 1.02 * size


def test_a_large_object_travels_once(store, tmp_path):
    text = "".join(f"line {i} of a text that is read in several ranges\n" for i in range(150_000))
    store.put("large.txt", text.encode())
    with store.watched() as requests:
        corpus = load_corpus("s3://bucket/large.txt", context=8, folder=tmp_path, storage_options=store.options)
    assert bytes(corpus.train.numpy()) + bytes(corpus.validation.numpy()) == text.encode()
    assert sum(request.size for request in requests if request.method == "GET") < 1.01 * len(text)


def test_a_study_reads_the_store_once_and_keeps_no_secret(store, folder, tmp_path, capsys):
    url, out = store.upload(folder, "texts"), tmp_path / "out"
    run_study(SETTINGS, tmp_path / "local", text=folder)
    with store.watched() as requests:
        result = study(text=url, out=out, workers=2, storage_options=store.options, progress=False, **vars(SETTINGS))
    assert measured(out) == measured(tmp_path / "local") != {}
    assert result.summary["corpus"]["source"] == url
    assert set(reads(requests).values()) == {1}
    frozen = (out / "study.json").read_text()
    assert json.loads(frozen)["text"] == url
    assert "secret_key" not in frozen
    assert main(["study", "--out", str(out), "--resume", "--quiet", *store.typed]) == 0
    assert "pre-rms" in capsys.readouterr().out


def test_the_command_takes_a_url(store, tmp_path, capsys):
    table(tmp_path / "rows.parquet")
    store.upload(tmp_path, "files")
    sizes = [word for name in ("depth", "width", "heads", "context", "batch", "steps") for word in size(name)]
    options = ["--arms", "none", "--lr", "0.01", "--seeds", "1", "--quiet", *sizes, *store.typed]
    out = tmp_path / "out"
    assert main(["study", "--text", "s3://bucket/files/rows.parquet::body", "--out", str(out), *options]) == 0
    assert json.loads((out / "study.json").read_text())["text"] == "s3://bucket/files/rows.parquet::body"
    file = tmp_path / "study.toml"
    file.write_text(f'text = "s3://bucket/none.txt"\nstorage-option = {json.dumps(store.typed[1::2])}\n')
    assert main(["study", "--from", str(file), "--out", str(tmp_path / "other"), *sizes]) != 0
    assert "there is no object or directory s3://bucket/none.txt" in capsys.readouterr().err


def size(name):
    return f"--{name}", str(TINY[name])


def test_what_is_wrong_is_one_line(store, folder, tmp_path):
    options = {"context": 8, "folder": tmp_path, "storage_options": store.options}
    with pytest.raises(ek.SourceError, match=r"there is no object or directory s3://bucket/none\.txt"):
        load_corpus("s3://bucket/none.txt", **options)
    with pytest.raises(ek.SourceError, match=r"127\.0\.0\.1:1/x\.txt: the store cannot be reached"):
        load_corpus("https://127.0.0.1:1/x.txt", context=8, folder=tmp_path)
    store.put("binary/a.bin", b"\0\1")
    store.put("binary/b.bin", b"\xff")
    with pytest.raises(ek.StudyError, match="none of the 2 files is UTF-8 text"):
        load_corpus("s3://bucket/binary", **options)
    with pytest.raises(ek.StudyError, match=r"text s3://bucket/binary/a\.bin is binary"):
        load_corpus("s3://bucket/binary/a.bin", **options)
    table(tmp_path / "rows.parquet")
    store.put("rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    with pytest.raises(
        ek.StudyError,
        match=r"no column of text or of lists of token ids called 'n' .*name it: s3://.*/rows\.parquet::COLUMN",
    ):
        load_corpus("s3://bucket/rows.parquet::n", **options)
    with pytest.raises(ek.StudyError, match="in a store, which is laid out on the disk; give a folder"):
        load_corpus("s3://bucket/rows.parquet", context=8, storage_options=store.options)
    with pytest.raises(ek.InvalidArgumentError, match="storage_options are for URLs"):
        load_corpus(folder, **options)
    with pytest.raises(ek.InvalidArgumentError, match="storage_options are for the URL of a text"):
        load_corpus(None, **options)
    assert not (tmp_path / "text").exists()


def test_faults_of_the_store_are_overcome_and_a_replaced_object_is_told(store, tmp_path):
    rows, refused = tmp_path / "rows.parquet", []
    table(rows)
    store.put("rows.parquet", rows.read_bytes())

    def fault(request):
        if len(refused) < 2:
            refused.append(request)
            raise Refuse(503, "SlowDown")

    options = {"context": 8, "storage_options": store.options}
    with store.faults(fault):
        corpus = load_corpus("s3://bucket/rows.parquet", folder=tmp_path / "out", **options)
    assert len(refused) == 2
    assert corpus.digest == load_corpus(rows, context=8, folder=tmp_path / "local").digest

    def replace(request):
        if request.method == "GET" and request.path.endswith("rows.parquet"):
            store.put("rows.parquet", rows.read_bytes() + b" ")

    with store.faults(replace), pytest.raises(ek.EvenkeelError, match="the object was replaced while it was read"):
        load_corpus("s3://bucket/rows.parquet", folder=tmp_path / "other", **options)
    assert not (tmp_path / "other" / "text").exists()
