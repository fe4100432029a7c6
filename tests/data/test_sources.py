"""Every kind of source gives the same statistics as the table it holds, and says in one line what it cannot read."""

import itertools
import json
import os
from contextlib import contextmanager

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from evenkeel import InvalidTypeError, SourceError
from evenkeel.data import _parquet, fit, fit_statistics
from evenkeel.data._formats import open_array_file
from evenkeel.data._sources import open_source

NAMES = ["a", "b", "c"]
ROWS = 1000


@pytest.fixture
def table():
    """(rows, 3) float64, with two missing values."""
    x = np.random.default_rng(0).normal([0, 100, -5], [1, 10, 0.1], (ROWS, 3))
    x[3, 1] = x[7, 1] = np.nan
    return x


def as_arrow(x):
    return pa.table({name: pa.array(column, from_pandas=True) for name, column in zip(NAMES, x.T, strict=True)})


def chunks(x):
    return np.array_split(x, 7)


def saved(path, write):
    write(path)
    return path


def filled(path, content):
    path.write_bytes(content)
    return path


def touched(path):
    return filled(path, b"")


MEMORY = {
    "array": lambda x: x,
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: x[::-1],
    "list": lambda x: x.tolist(),
    "tensor": lambda x: torch.from_numpy(x).requires_grad_(),
    "pandas": lambda x: pd.DataFrame(x, columns=NAMES),
    "pandas mixed": lambda x: pd.DataFrame(x, columns=NAMES).astype({"a": "float64", "b": "Float64"}),
    "polars": lambda x: pl.DataFrame(x, schema=NAMES),
    "arrow": as_arrow,
    "arrow chunks": lambda x: pa.concat_tables([as_arrow(part) for part in chunks(x)]),
    "record batch": lambda x: as_arrow(x).to_batches()[0],
    "structured": lambda x: np.rec.fromarrays(x.T, names=NAMES),
}
STREAMS = {
    "generator": lambda x: iter(chunks(x)),
    "list of arrays": chunks,
    "loader": lambda x: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(x)), batch_size=64),
    "loader with targets": lambda x: torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.arange(len(x))), batch_size=64
    ),
    "tuples": lambda x: ((part, np.zeros(len(part))) for part in chunks(x)),
    "dicts": lambda x: (dict(zip(NAMES, part.T, strict=True)) for part in chunks(x)),
    "dict of a table": lambda x: ({"x": torch.from_numpy(part)} for part in chunks(x)),
    "frames": lambda x: (pd.DataFrame(part, columns=NAMES) for part in chunks(x)),
    "reader": lambda x: iter(as_arrow(x).to_reader(max_chunksize=100)),
}
FILES = {
    "x.npy": lambda path, x: np.save(path, x),
    "fortran.npy": lambda path, x: np.save(path, np.asfortranarray(x)),
    "x.npz": lambda path, x: np.savez(path, x=x),
    "packed.npz": lambda path, x: np.savez_compressed(path, x=x),
    "x.parquet": lambda path, x: pq.write_table(as_arrow(x), path, row_group_size=300),
    "x.csv": lambda path, x: pa.csv.write_csv(as_arrow(x), path),
    "x.feather": lambda path, x: pa.feather.write_feather(as_arrow(x), path, chunksize=100),
    "plain.arrow": lambda path, x: pa.feather.write_feather(as_arrow(x), path, compression="uncompressed"),
    "stream.arrows": lambda path, x: write_stream(path, as_arrow(x)),
    "x.tsv": lambda path, x: pd.DataFrame(x, columns=NAMES).to_csv(path, sep="\t", index=False),
    "semicolon.csv": lambda path, x: pd.DataFrame(x, columns=NAMES).to_csv(path, sep=";", index=False),
    "x.csv.gz": lambda path, x: pd.DataFrame(x, columns=NAMES).to_csv(path, index=False),
    "headless.csv": lambda path, x: pd.DataFrame(x).to_csv(path, index=False, header=False),
}


def write_stream(path, table):
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def agree(found, x):
    """The two-pass float64 answer, to the last digits; text formats keep 17 of them."""
    np.testing.assert_array_equal(found.count, (~np.isnan(x)).sum(0))
    np.testing.assert_array_equal(found.missing, np.isnan(x).sum(0))
    np.testing.assert_allclose(found.mean, np.nanmean(x, 0), rtol=1e-13)
    np.testing.assert_allclose(found.variance(), np.nanvar(x, 0), rtol=1e-12)
    np.testing.assert_array_equal(found.minimum, np.nanmin(x, 0))
    np.testing.assert_array_equal(found.maximum, np.nanmax(x, 0))
    assert found.rows == len(x)


def test_columns_in_a_dict(table):
    columns = dict(zip(NAMES, table.T, strict=True))
    halves = [dict(zip(NAMES, half.T, strict=True)) for half in np.array_split(table, 2)]
    for source in (columns, [columns], halves, tuple(halves)):
        found = fit_statistics(source)
        assert found.names == tuple(NAMES)
        agree(found, table)


@pytest.mark.parametrize("kind", {**MEMORY, **STREAMS})
def test_what_is_in_memory(kind, table):
    agree(fit_statistics({**MEMORY, **STREAMS}[kind](table)), table)


@pytest.mark.parametrize("name", FILES)
def test_files(name, table, tmp_path):
    FILES[name](tmp_path / name, table)
    agree(fit_statistics(tmp_path / name), table)
    agree(fit_statistics(str(tmp_path)), table)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "feather", "npy"])
def test_a_directory_a_pattern_and_a_list(suffix, table, tmp_path):
    write = FILES[f"x.{suffix}"]
    paths = []
    for number, part in enumerate(chunks(table)):
        paths.append(tmp_path / f"deep{number % 2}" / f"part-{number}.{suffix}")
        paths[-1].parent.mkdir(exist_ok=True)
        write(paths[-1], part)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "README.txt").write_text("not data")
    (tmp_path / f".hidden.{suffix}").write_bytes(b"")
    agree(fit_statistics(tmp_path), table)
    agree(fit_statistics(tmp_path / "**" / f"*.{suffix}"), table)
    agree(fit_statistics(paths), table)


@pytest.mark.parametrize("kind", ["array", "fortran", "strided", "tensor", "pandas", "arrow column"])
def test_memory_is_read_where_it_is(kind, table):
    source = MEMORY[kind](table) if kind in MEMORY else pa.table({"a": table[:, 0].copy()})
    (block,) = next(iter(open_source(source).fragments)).blocks(None)
    held = {
        "tensor": lambda: source.detach().numpy(),
        "pandas": source.to_numpy if kind == "pandas" else None,
        "arrow column": lambda: source.column(0).chunk(0).to_numpy(),
    }.get(kind, lambda: source)()
    assert np.shares_memory(block.tensor().detach().numpy(), held)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_array_files_are_mapped(name, table, tmp_path):
    FILES[name](tmp_path / name, table)
    found = open_array_file(tmp_path / name)
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, table)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "uint32", "int64", "bool", "float16", "float32"])
@pytest.mark.parametrize("form", ["array", "arrow", "parquet"])
def test_dtypes(dtype, form, tmp_path):
    x = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 100, (50, 2)).astype(dtype)
    source = x
    if form != "array":
        source = pa.table({"a": x[:, 0], "b": x[:, 1]})
    if form == "parquet":
        pq.write_table(source, tmp_path / "x.parquet")
        source = tmp_path / "x.parquet"
    agree(fit_statistics(source), x.astype(float))


def test_nulls_of_every_type_are_missing(tmp_path):
    columns = {
        "int": pa.array([1, None, 3]),
        "bool": pa.array([True, None, False]),
        "float": pa.array([1.5, None, float("nan")]),
        "decimal": pa.array(["1.25", None, "2.75"]).cast(pa.decimal128(6, 2)),
        "dictionary": pa.array([1.0, None, 5.0]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    for source in (pa.table(columns), tmp_path / "x.parquet"):
        found = fit_statistics(source)
        assert found.missing.tolist() == [1, 1, 2, 1, 1]
        assert found.mean.tolist() == [2.0, 0.5, 1.5, 2.0, 3.0]
        assert found.names == tuple(columns)


@pytest.mark.parametrize("quantiles", [False, True])
def test_copied_columns_are_taken_in_pieces(quantiles, tmp_path, monkeypatch):
    monkeypatch.setattr("evenkeel.data._columns.COPIED_ROWS", (7, 7))
    values = np.arange(100.0)
    columns = {"a": pa.array([None, *values[1:]]), "b": pa.array(values), "c": pa.array(values.astype("u2"))}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    (fragment,) = open_source(tmp_path / "x.parquet").fragments
    assert [block.rows for block in fragment.blocks(None)] == [7] * 14 + [2]
    found = fit_statistics(tmp_path / "x.parquet", quantiles=quantiles)
    assert found.missing.tolist() == [1, 0, 0]
    assert found.mean.tolist() == [50, 49.5, 49.5]
    if quantiles:
        assert found.quantile(0.5).tolist() == [50, 49.5, 49.5]


# (row groups of so many rows, rows of a piece at most) -> the rows of the pieces: groups cut, alone and together
@pytest.mark.parametrize(
    ("group", "most", "expected"),
    [(5000, 4000, [2000, 2000, 1000]), (1000, 1000, [1000] * 5), (1000, 2500, [2000, 2000, 1000])],
)
def test_parquet_is_read_a_few_columns_at_a_time(group, most, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(_parquet, "PIECE_ROWS", most)
    monkeypatch.setattr(_parquet, "PIECE_BYTES", 2 * 8 * most)
    values = np.random.default_rng(0).normal(1e6, 1, (5000, 5))
    values[::7, 3] = np.nan
    columns = dict(zip("abcde", values.T, strict=True))
    nulls = pa.array(columns["e"], mask=np.arange(5000) % 5 == 0)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns | {"e": nulls, "word": ["x"] * 5000}), path, row_group_size=group)
    with _parquet.opened(path, "edcba", 2, None) as (file, sizes):
        bunches = list(_parquet.column_bunches(file.schema_arrow, "edcba", 5000))
        assert bunches == [["e", "d"], ["c", "b"], ["a"]]
        for names in bunches:
            found = [(batch.num_columns, batch.num_rows) for batch in _parquet.pieces(file, names, sizes)]
            assert found == [(len(names), rows) for rows in expected]
    values[::5, 4] = np.nan
    found = fit_statistics(path, columns=list("edcba"))
    agree(found, values[:, ::-1])
    assert found.missing.tolist() == np.isnan(values[:, ::-1]).sum(0).tolist()
    assert found.dtypes == ("float64",)


def test_whole_numbers_in_csv_may_turn_into_fractions(tmp_path):
    text = "a,b\n" + "1,2\n" * 300_000 + "1.5,\n"  # more than the first megabyte, from which types are guessed
    (tmp_path / "x.csv").write_text(text)
    found = fit_statistics(tmp_path / "x.csv")
    assert found.maximum.tolist() == [1.5, 2.0]
    assert found.missing.tolist() == [0, 1]


@pytest.mark.parametrize("form", ["arrow", "pandas", "parquet", "csv", "feather", "dicts"])
@pytest.mark.parametrize(("columns", "kept"), [(["c", "a"], [2, 0]), ([2, 0], [2, 0]), ("b", [1]), ([-1], [2])])
def test_columns_by_name_and_position(form, columns, kept, table, tmp_path):
    if form in ("parquet", "csv", "feather"):
        FILES[f"x.{form}"](source := tmp_path / f"x.{form}", table)
    else:
        source = {**MEMORY, **STREAMS}[form](table)
    found = fit_statistics(source, columns=columns)
    assert found.names == tuple(NAMES[i] for i in kept)
    agree(found, table[:, kept])


@pytest.mark.parametrize("columns", [[2, 0], [1], [0, 2], [1, 2], ["2", "0"], [2, 1, 0]])
def test_columns_of_arrays(columns, table, tmp_path):
    np.save(tmp_path / "x.npy", table)
    kept = [int(c) for c in columns]
    for source in (table, torch.from_numpy(table), tmp_path / "x.npy", iter(chunks(table))):
        agree(fit_statistics(source, columns=columns), table[:, kept])


def test_words_are_refused_by_name_or_left_out_when_asked(table, tmp_path):
    words = as_arrow(table).append_column("city", pa.array(["x"] * ROWS))
    pq.write_table(words, tmp_path / "x.parquet")
    pa.csv.write_csv(words, tmp_path / "x.csv")
    for source in (words, words.to_pandas(), pl.from_arrow(words), tmp_path / "x.parquet", tmp_path / "x.csv"):
        with pytest.raises(SourceError, match=r'not numbers: city \(.+\); name the columns.*columns="numeric"'):
            fit_statistics(source)
        agree(fit_statistics(source, columns="numeric"), table)
        with pytest.raises(SourceError, match=r"not numbers: city .*name numeric columns only"):
            fit_statistics(source, columns=["a", "city"])


def test_hive_partitions_are_columns_when_named(table, tmp_path):
    for year, part in zip((2023, 2024), np.array_split(table, 2), strict=True):
        folder = tmp_path / f"year={year}" / "city=x%20y"
        folder.mkdir(parents=True)
        pq.write_table(as_arrow(part), folder / "x.parquet")
    assert fit_statistics(tmp_path).names == tuple(NAMES)
    found = fit_statistics(tmp_path, columns=["a", "year"])
    assert found.mean[1] == 2023.5
    with pytest.raises(SourceError, match=r"not numbers: city \(text\)"):
        fit_statistics(tmp_path, columns=["city"])


def test_columns_of_other_files_are_found_by_name(tmp_path):
    pq.write_table(pa.table({"a": [1.0], "b": [10]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [20.0], "x": ["z"], "a": [3]}), tmp_path / "2.parquet")
    found = fit_statistics(tmp_path)
    assert found.mean.tolist() == [2.0, 15.0]
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "3.parquet")
    with pytest.raises(SourceError, match=r"3\.parquet: lacks the column 'b'"):
        fit_statistics(tmp_path)


def test_images_are_tables_of_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number:02}.png")
    found = fit_statistics(tmp_path, quantiles=True)
    assert found.names == ("red", "green", "blue")
    agree(found, pixels.reshape(-1, 3).astype(float))
    np.testing.assert_array_equal(found.quantile(0.5), np.median(pixels.reshape(-1, 3), 0))  # counted exactly
    Image.fromarray(pixels[0, :, :, 0]).save(tmp_path / "grey.png")
    assert fit_statistics(tmp_path / "grey.png").mean.tolist() == pytest.approx([pixels[0, :, :, 0].mean()] * 3)


def test_quantiles_of_mixed_columns(tmp_path):
    x = np.arange(101)
    source = pa.table({"a": x.astype("int32"), "b": x.astype("float32") / 2})
    assert fit_statistics(source, quantiles=True).quantile(0.5).tolist() == [50.0, 25.0]


BAD = {
    "missing": (lambda d: d / "none.csv", "there is no file or directory"),
    "pattern": (lambda d: d / "*.csv", "no file matches"),
    "empty directory": (lambda d: d, "holds no data: it is empty"),
    "strange directory": (
        lambda d: touched(d / "x.txt").parent,
        "none of its 1 files ends in",
    ),
    "mixed": (
        lambda d: touched(touched(d / "a.csv").with_suffix(".npy")).parent,
        "mixes CSV and NumPy files; give one kind",
    ),
    "extension": (
        lambda d: touched(d / "x.xlsx"),
        "the name tells no format; it must end in one of .parquet",
    ),
    "empty csv": (lambda d: touched(d / "x.csv"), "the file is empty"),
    "empty npy": (lambda d: touched(d / "x.npy"), "the file is empty"),
    "empty parquet": (lambda d: touched(d / "x.parquet"), "cannot be read: Parquet file size is 0"),
    "broken parquet": (
        lambda d: filled(d / "x.parquet", b"PAR1" * 9),
        "x.parquet: cannot be read",
    ),
    "broken feather": (
        lambda d: filled(d / "x.feather", b"ARROW1" * 9),
        "x.feather: cannot be",
    ),
    "broken npz": (lambda d: filled(d / "x.npz", b"PK" * 90), "x.npz: cannot be read"),
    "broken image": (lambda d: filled(d / "x.png", b"x"), "x.png: cannot be read"),
    "broken csv": (lambda d: saved(d / "x.csv", lambda p: p.write_text("a,b\n1,2\n1\n")), "Expected 2 columns, got 1"),
    "header only": (lambda d: saved(d / "x.csv", lambda p: p.write_text("a,b\n")), "has no rows"),
    "late word": (
        lambda d: filled(d / "x.csv", b"a\n" + b"1\n" * 600_000 + b"x\n"),
        "conversion error to double: invalid value 'x'",
    ),
    "several arrays": (
        lambda d: saved(d / "x.npz", lambda p: np.savez(p, u=1, v=2)),
        "holds 2 arrays: u, v; choose one",
    ),
    "objects": (
        lambda d: saved(d / "x.npy", lambda p: np.save(p, np.array([[None]]), allow_pickle=True)),
        "x.npy: cannot be read: Array can't be memory-mapped",
    ),
    "vector file": (lambda d: saved(d / "x.npy", lambda p: np.save(p, np.ones(3))), r"the shape is \(3,\)"),
    "vector": (lambda d: np.ones(3), r"the shape is \(3,\); use x.reshape\(-1, 1\)"),
    "no rows": (lambda d: np.ones((0, 3)), "has no rows"),
    "no columns": (lambda d: np.ones((3, 0)), "has no columns"),
    "ragged": (lambda d: [[1.0], [1.0, 2.0]], "one length"),
    "complex": (lambda d: np.ones((2, 2), complex), "expected real numbers, but the dtype is complex128"),
    "text": (lambda d: np.array([["a"]]), "expected real numbers"),
    "empty iterable": (lambda d: iter([]), "gives no batches"),
    "samples": (lambda d: iter([np.ones(3)]), r"expected batches of shape \(rows, columns\)"),
    "no numbers": (lambda d: pa.table({"a": ["x"]}), r"not numbers: a \(string\); there is no numeric column"),
    "twice": (lambda d: [saved(d / "x.csv", lambda p: p.write_text("a\n1\n"))] * 2, "is given twice"),
    "ragged dict": (lambda d: iter([{"a": np.ones(2), "b": np.ones(3)}]), "differ in length: a 2, b 3"),
    "changing dicts": (lambda d: iter([{"a": np.ones(2)}, {"b": np.ones(2)}]), "a batch lacks the column 'a'"),
    "other width": (lambda d: iter([np.ones((2, 2)), np.ones((2, 3))]), "batch 2: expected 2 features"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_sources_say_so_in_one_line(kind, tmp_path):
    make, message = BAD[kind]
    with pytest.raises((SourceError, ValueError), match=message) as caught:
        fit_statistics(make(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["aa"], "there is no column 'aa'; did you mean 'a'"),
        (["zzz"], "there is no column 'zzz'; there are a, b, c"),
        ([3], "there is no column 3: the source has 3"),
        (["a", "a"], "'a' occurs more than once"),
        ([], "no column is left"),
        ([1.5], "expected names or positions"),
    ],
)
def test_bad_columns(columns, message, table):
    with pytest.raises(ValueError, match=message):
        fit_statistics(as_arrow(table), columns=columns)


@pytest.mark.parametrize("source", [3, None, object()])
def test_what_holds_no_rows(source):
    with pytest.raises(InvalidTypeError, match="cannot read rows from a"):
        fit_statistics(source)


def test_a_dataset_of_samples_asks_for_a_loader(table):
    class Samples(torch.utils.data.Dataset):
        def __getitem__(self, index):
            return torch.ones(3)

    with pytest.raises((InvalidTypeError, SourceError), match="DataLoader"):
        fit_statistics(Samples())


def test_the_source_is_written_down(table, tmp_path):
    FILES["x.parquet"](tmp_path / "x.parquet", table)
    note = fit(tmp_path / "x.parquet").contract_.source
    assert json.loads(json.dumps(note)) == note
    assert note["rows"] == ROWS
    assert note["skipped"] == []
    again = fit(tmp_path / "x.parquet").contract_.source
    assert again == note
    FILES["x.parquet"](tmp_path / "x.parquet", table[: ROWS // 2])
    assert fit(tmp_path / "x.parquet").contract_.source["fingerprint"] != note["fingerprint"]


def test_large_files_are_read_in_parts(table, tmp_path, monkeypatch):
    monkeypatch.setattr("evenkeel.data._source_files.PART_BYTES", 2000)
    for name in ("x.parquet", "x.feather"):
        FILES[name](tmp_path / name, table)
        source = open_source(tmp_path / name)
        assert len(source.fragments) > 2
        assert len({fragment.key for fragment in source.fragments}) == len(source.fragments)
        agree(fit_statistics(source), table)


def test_streams_are_cut_by_values_not_batches(monkeypatch, table):
    monkeypatch.setattr("evenkeel.data._fit.STREAM_ELEMENTS", 600)
    agree(fit_statistics(itertools.chain(chunks(table))), table)


@pytest.mark.parametrize("quantiles", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_parquet_file_cut_short_while_it_is_read_is_an_error(on_error, quantiles, tmp_path, monkeypatch):
    monkeypatch.setattr(_parquet, "PIECE_ROWS", 100_000)
    for name, rows in (("a", 300_000), ("b", 400_000)):
        table = pa.table({"a": np.random.default_rng(0).normal(size=rows)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=100_000, compression="none")
    opened, cut = _parquet.opened, []

    @contextmanager
    def opened_and_cut(path, *arguments):
        with opened(path, *arguments) as found:
            if path.name == "b.parquet":
                os.truncate(path, 1_000_000)  # a mapped file would end the process here
                cut.append(path)
            yield found

    monkeypatch.setattr(_parquet, "opened", opened_and_cut)
    if on_error == "raise":
        with pytest.raises(SourceError, match=r"b\.parquet: cannot be read"):
            fit(tmp_path, quantiles=quantiles)
    else:
        assert fit(tmp_path, on_error="skip", quantiles=quantiles).statistics_.rows == 300_000
    assert cut
