"""Token ids in Parquet and Arrow files: what is read, how it is laid out, and what a study makes of it."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from study_runs import TINY, InterruptAfter, measured

import evenkeel as ek
from evenkeel.lab import StudySettings, compare_studies, load_corpus, run_study, study
from evenkeel.lab.studies import read_study
from evenkeel.lab.training import _flat, _layout, _tables

DRAWN = np.random.default_rng(0)
ROWS = [DRAWN.integers(0, 300, length).tolist() for length in DRAWN.integers(5, 40, 200)]
SETTINGS = StudySettings(**TINY | {"arms": ("none", "pre-rms")})
EXACT = ("train_files", "train_tokens", "validation_tokens", "unit", "vocabulary", "digest")


def write(path, rows=ROWS, kind=None, **columns):
    ids = pa.array(rows, kind or pa.list_(pa.int32()))
    table = pa.table({"n": range(len(rows)), "input_ids": ids, **columns})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=70)
    elif path.suffix == ".arrows":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        feather.write_feather(table, path)
    return path


def held_out(row):
    digest = hashlib.sha256(np.array(row, np.uint32)).digest()
    return int.from_bytes(digest[:8], "little") % 10 == 0


def joined(rows):
    return [number for row in rows for number in row]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.feather", "rows.arrows"])
@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.uint16())], ids=str)
def test_rows_follow_one_another_and_one_in_ten_is_held_out(name, kind, tmp_path):
    corpus = load_corpus(write(tmp_path / name, kind=kind), context=8, folder=tmp_path / "out")
    assert corpus.train.tolist() == joined(row for row in ROWS if not held_out(row))
    assert corpus.validation.tolist() == joined(row for row in ROWS if held_out(row))
    assert (corpus.unit, corpus.vocabulary) == ("token", 1 + max(joined(ROWS)))
    assert (corpus.train_files, corpus.validation_files) == (200 - sum(map(held_out, ROWS)), sum(map(held_out, ROWS)))


def test_rows_of_a_fixed_length_and_many_files_give_the_same(tmp_path):
    rows = DRAWN.integers(0, 50, (60, 16)).tolist()
    folder = tmp_path / "rows"
    folder.mkdir()
    for number in range(3):
        write(folder / f"{number}.parquet", rows[number::3], pa.list_(pa.int16(), 16))
    ordered = [row for number in range(3) for row in rows[number::3]]
    one = load_corpus(write(tmp_path / "one.arrow", ordered), context=8, folder=tmp_path / "one")
    many = load_corpus(folder, context=8, folder=tmp_path / "many")
    assert [many.describe()[key] for key in EXACT] == [one.describe()[key] for key in EXACT]
    assert load_corpus(folder / "*.parquet", context=8, folder=tmp_path / "star").digest == one.digest


@pytest.mark.parametrize(
    ("largest", "dtype"), [(255, "uint8"), (256, "uint16"), (65_535, "uint16"), (65_536, "uint32")]
)
def test_ids_are_laid_out_in_the_narrowest_dtype_wherever_the_largest_stands(largest, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(_layout, "CHUNK", 100)
    rows = [*ROWS[:100], [1, 2, largest], *ROWS[100:]]
    rows = [[min(number, largest) for number in row] for row in rows]
    corpus = load_corpus(write(tmp_path / "rows.parquet", rows), context=8, folder=tmp_path)
    assert {str(part.dtype) for part in (corpus.train, corpus.validation)} == {f"torch.{dtype}"}
    assert corpus.train.tolist() == joined(row for row in rows if not held_out(row))
    assert sorted(path.name for path in (tmp_path / "text").iterdir()) == ["corpus.json", "train.bin", "validation.bin"]
    again = load_corpus(tmp_path / "rows.parquet", context=8, folder=tmp_path)
    assert again.describe() == corpus.describe()


def test_of_one_large_row_group_few_rows_are_in_memory_at_a_time(tmp_path):
    rows = DRAWN.integers(0, 1 << 24, (1000, 2000), np.int32)
    pq.write_table(pa.table({"input_ids": rows.tolist()}), tmp_path / "rows.parquet")
    before, held = pa.total_allocated_bytes(), []
    for number, row in enumerate(_tables.rows_of(tmp_path / "rows.parquet", _tables.Column("input_ids", "token"))):
        assert row.tolist() == rows[number].tolist()
        held.append(pa.total_allocated_bytes() - before)
    assert number == 999
    assert max(held) < 8 * rows.size / 2  # they were written as int64


def test_long_documents_are_counted_before_many_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(_layout, "CHUNK", 1000)
    with _layout.Part(tmp_path / "train.bin") as part:
        for document in np.arange(9000, dtype=np.uint32).reshape(10, 900):
            part.add(document)
            assert sum(map(len, part.uncounted)) < 1000
        assert part.counts().tolist() == [1] * 9000


def test_a_guess_from_frequencies_is_that_of_the_ids(tmp_path):
    corpus = load_corpus(write(tmp_path / "rows.parquet"), context=8, folder=tmp_path, vocabulary=400)
    counts = np.bincount(corpus.train.numpy(), minlength=400) + 1
    assert corpus.vocabulary == 400
    assert corpus.digest != load_corpus(tmp_path / "rows.parquet", context=8, folder=tmp_path, vocabulary=401).digest
    assert corpus.frequency_loss == pytest.approx(-np.log(counts / counts.sum())[corpus.validation.long()].mean())


def test_a_column_is_found_or_named(tmp_path):
    write(tmp_path / "masked.parquet", attention_mask=[[1] * len(row) for row in ROWS])
    assert load_corpus(tmp_path / "masked.parquet", context=8, folder=tmp_path / "out").vocabulary > 2
    named = load_corpus(tmp_path / "masked.parquet::attention_mask", context=8, folder=tmp_path / "out")
    assert named.vocabulary == 2
    write(tmp_path / "titled.parquet", title=[f"title {i}" for i in range(200)])
    assert load_corpus(tmp_path / "titled.parquet", context=8, folder=tmp_path / "out").unit == "token"
    write(tmp_path / "mixed.parquet", text=[f"text {i} of several words" for i in range(200)])
    with pytest.raises(ek.StudyError, match=r"text, or the token ids \(its columns: .*\); name it: .*::COLUMN"):
        load_corpus(tmp_path / "mixed.parquet", context=8, folder=tmp_path)
    for column, unit in (("input_ids", "token"), ("text", "byte")):
        corpus = load_corpus(tmp_path / f"mixed.parquet::{column}", context=2, folder=tmp_path / column)
        assert corpus.unit == unit


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([[1, 2], [3, -4]], pa.list_(pa.int64()), "row 1, counted from 0, has the token id -4; ids are whole numbers"),
        (
            [[1, 2], [2**40]],
            pa.list_(pa.int64()),
            "has the token id 1099511627776; .* the largest vocabulary, 16777216",
        ),
        ([[1, 2], [3, None]], pa.list_(pa.int32()), "row 1, counted from 0, has a null among its token ids"),
        (
            [[1.0, 2.5]],
            pa.list_(pa.float32()),
            r"has no column of text or of lists of token ids \(its columns: .*float>\)\); give",
        ),
        ([[[1], [2]]], pa.list_(pa.list_(pa.int32())), "has no column of text or of lists of token ids"),
        ([[], None, []], pa.list_(pa.int32()), "there is no token id in the column 'input_ids' of"),
        ([[1, 2, 3]], pa.list_(pa.int32()), "the column 'input_ids' of .* has one document, which"),
        ([[number] for number in range(40)], pa.list_(pa.int32()), "part has . tokens, but a context of 8 needs"),
    ],
)
def test_what_is_no_token_id_is_one_line(rows, kind, message, tmp_path):
    with pytest.raises(ek.StudyError, match=message) as caught:
        load_corpus(write(tmp_path / "rows.parquet", rows, kind), context=8, folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_rows_are_counted_over_the_whole_file(tmp_path):
    rows = [[1, 2]] * 2000 + [[7, 300]]
    with pytest.raises(ek.StudyError, match=r"row 2000, counted from 0, has the token id 300; .* vocabulary of 300"):
        load_corpus(write(tmp_path / "rows.parquet", rows), context=8, folder=tmp_path, vocabulary=300)


def test_empty_rows_are_counted_and_files_of_another_type_refused(tmp_path):
    corpus = load_corpus(write(tmp_path / "rows.arrow", [*ROWS, [], None]), context=8, folder=tmp_path / "out")
    assert (corpus.skipped_files, corpus.train_files + corpus.validation_files) == (2, 200)
    folder = tmp_path / "rows"
    folder.mkdir()
    write(folder / "0.parquet")
    pq.write_table(pa.table({"input_ids": ["words"] * 20}), folder / "1.parquet")
    with pytest.raises(
        ek.StudyError, match=r"1\.parquet: its column 'input_ids' is of string, unlike the first file's"
    ):
        load_corpus(folder, context=8, folder=tmp_path / "out")


def test_a_vocabulary_is_of_tokens(tmp_path, text):
    with pytest.raises(ek.StudyError, match="a vocabulary of 300 is for token ids, but this text is learned as bytes"):
        load_corpus(text, context=8, vocabulary=300)
    with pytest.raises(ek.StudyError, match="vocabulary must be from 1 to 16777216, but is 0"):
        StudySettings(vocabulary=0)
    with pytest.raises(ek.StudyError, match=r"for a vocabulary of 16000000 needs about \d+ GiB, but there are"):
        StudySettings(vocabulary=16_000_000, width=4096)
    write(tmp_path / "rows.parquet", [*ROWS, [15_999_999]])
    with pytest.raises(ek.StudyError, match=r"for a vocabulary of 16000000 needs about \d+ GiB, but there are"):
        run_study(StudySettings(**TINY | {"width": 4096}), tmp_path / "out", text=tmp_path / "rows.parquet")


@pytest.mark.parametrize("name", ["<i8.npy", ">u4.npy", "<u8.npy", "ids.bin::uint16", "ids.bin::uint32"])
def test_ids_in_one_flat_file_are_split_by_position(name, tmp_path, monkeypatch):
    monkeypatch.setattr(_flat, "CHUNK", 100)
    ids = np.array(joined(ROWS), np.int64)
    if name.endswith(".npy"):
        np.save(tmp_path / name, ids.astype(name.removesuffix(".npy")))
    else:
        ids.astype(name.partition("::")[2]).tofile(tmp_path / "ids.bin")
    corpus = load_corpus(tmp_path / name, context=8, folder=tmp_path / "out")
    cut = len(ids) - round(len(ids) * 0.1)
    assert (corpus.train.tolist(), corpus.validation.tolist()) == (ids[:cut].tolist(), ids[cut:].tolist())
    assert (corpus.unit, corpus.vocabulary, corpus.train_files) == ("token", 300, 1)
    with pytest.raises(ek.StudyError, match=r"position \d+ or later has the token id 2\d\d; .* a vocabulary of 200"):
        load_corpus(tmp_path / name, context=8, folder=tmp_path / "small", vocabulary=200)


def test_flat_files_that_hold_no_ids_are_one_line(tmp_path):
    np.save(tmp_path / "table.npy", np.zeros((3, 4), np.int32))
    np.save(tmp_path / "real.npy", np.zeros(30))
    (tmp_path / "words.npy").write_text("a text, not an array")
    (tmp_path / "odd.bin").write_bytes(b"\1\0\2\0\3" * 99)
    (tmp_path / "one.bin").write_bytes(b"\1")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "real.npy").read_bytes()[:-8].replace(b"<f8", b"<i8"))
    for name, message in {
        "table.npy": r"table\.npy is an array of int32 of shape \(3, 4\); give whole numbers in one dimension",
        "real.npy": "is an array of float64",
        "words.npy": r"words\.npy is no array that numpy\.save wrote",
        "odd.bin::uint16": r"odd\.bin does not end where the last id of uint16 does",
        "one.bin::uint32": r"one\.bin does not end where the last id of uint32 does",
        "cut.npy": r"cut\.npy does not end where the last id of int64 does",
        "odd.bin::int8": r"odd\.bin is no table, so that nothing in it is called 'int8'; .* ::uint16 or ::uint32",
        "odd.bin": "is binary .*if these are token ids, their type: path::uint16",
        "none.npy": "cannot read text .*: No such file or directory",
    }.items():
        with pytest.raises(ek.StudyError, match=message) as caught:
            load_corpus(tmp_path / name, context=8, folder=tmp_path / "out")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "text").exists()


def test_a_study_has_the_vocabulary_and_the_unit_of_its_tokens(tmp_path):
    result = study(text=write(tmp_path / "rows.parquet"), out=tmp_path / "out", progress=False, **vars(SETTINGS))
    vocabulary = 1 + max(joined(ROWS))
    corpus = read_study(tmp_path / "out")["corpus"]
    assert (corpus["unit"], corpus["vocabulary"]) == ("token", vocabulary)
    assert corpus["train_tokens"] + corpus["validation_tokens"] == len(joined(ROWS))
    plain = next(run for run in result.summary["arms"] if run["name"] == "none")
    assert plain["parameters"] == (2 * vocabulary + 8) * 8 + 12 * 8 * 8 + 9 * 8
    words = json.dumps([result.page().lead, result.table().title, [f.text for f in result.findings()]])
    assert "token-level transformer" in words
    assert "nats per token" in words
    assert "byte" not in words
    assert result.summary["arms"][0]["validation"]["loss"][0] > np.log(vocabulary)  # before the first step


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_study_of_tokens_resumes_with_the_records_of_one_that_was_not_interrupted(workers, tmp_path):
    path = write(tmp_path / "rows.parquet")
    out, settings = tmp_path / "out", StudySettings(**vars(SETTINGS) | {"vocabulary": 301})
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=path, observer=InterruptAfter(5), checkpoint_seconds=0.0)
    with pytest.raises(ek.StudyError, match="vocabulary was 301, now 302"):
        run_study(StudySettings(**vars(SETTINGS) | {"vocabulary": 302}), out, text=path, resume=True)
    run_study(settings, out, text=path, resume=True, workers=workers)
    run_study(settings, tmp_path / "serial", text=path)
    assert measured(out) == measured(tmp_path / "serial") != {}


def test_the_tokens_of_a_store_are_those_of_the_file(store, tmp_path):
    path = write(tmp_path / "rows.parquet")
    store.put("tokens/rows.parquet", path.read_bytes())
    options = {"context": 8, "storage_options": store.options}
    stored = load_corpus("s3://bucket/tokens/", folder=tmp_path / "stored", **options)
    assert stored.digest == load_corpus(path, context=8, folder=tmp_path / "local").digest
    with pytest.raises(
        ek.StudyError, match=r"s3://bucket/tokens/rows\.parquet: row 0, counted from 0, has the token id"
    ):
        load_corpus("s3://bucket/tokens/", folder=tmp_path / "small", vocabulary=2, **options)


def test_studies_of_other_units_or_vocabularies_are_not_compared(tmp_path, text):
    path = write(tmp_path / "rows.parquet")
    for name, size in (("data", None), ("stated", 512)):
        run_study(StudySettings(**vars(SETTINGS) | {"vocabulary": size}), tmp_path / name, text=path)
    run_study(SETTINGS, tmp_path / "bytes", text=text)
    with pytest.raises(
        ek.StudyError, match=r"data learned tokens of a vocabulary of 300 and stated tokens .* 512: losses"
    ):
        compare_studies(tmp_path / "data", tmp_path / "stated")
    with pytest.raises(ek.StudyError, match="bytes learned bytes of a vocabulary of 256 and data tokens"):
        compare_studies(tmp_path / "bytes", tmp_path / "data")
