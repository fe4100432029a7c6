"""Every kind of source gives the same statistics as the table it holds."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from data_sources import FILES, MEMORY, ROWS, STREAMS, agree, chunks
from PIL import Image

from evenkeel.data import fit, fit_statistics
from evenkeel.data.sources import FORMATS, _parquet, open_source
from evenkeel.data.sources._numpy import open_array_file


@pytest.mark.parametrize("kind", {**MEMORY, **STREAMS})
def test_what_is_in_memory(kind, gappy):
    agree(fit_statistics({**MEMORY, **STREAMS}[kind](gappy)), gappy)


@pytest.mark.parametrize("name", FILES)
def test_files(name, gappy, tmp_path):
    FILES[name](tmp_path / name, gappy)
    agree(fit_statistics(tmp_path / name), gappy)
    agree(fit_statistics(str(tmp_path)), gappy)


def test_a_files_ending_belongs_to_one_format():
    suffixes = [suffix for kind in FORMATS for suffix in kind.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    for kind in FORMATS:
        assert set(kind.written) <= set(kind.suffixes)
        assert bool(kind.written) == (kind.writer is not None)
        assert kind.open or (kind.schema and kind.batches), f"{kind.name}: nothing reads it"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "feather", "npy"])
def test_a_directory_a_pattern_and_a_list(suffix, gappy, tmp_path):
    write = FILES[f"x.{suffix}"]
    paths = []
    for number, part in enumerate(chunks(gappy)):
        paths.append(tmp_path / f"deep{number % 2}" / f"part-{number}.{suffix}")
        paths[-1].parent.mkdir(exist_ok=True)
        write(paths[-1], part)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "README.txt").write_text("not data")
    (tmp_path / f".hidden.{suffix}").write_bytes(b"")
    agree(fit_statistics(tmp_path), gappy)
    agree(fit_statistics(tmp_path / "**" / f"*.{suffix}"), gappy)
    agree(fit_statistics(paths), gappy)


@pytest.mark.parametrize("kind", ["array", "fortran", "strided", "tensor", "pandas", "arrow column"])
def test_memory_is_read_where_it_is(kind, gappy):
    source = MEMORY[kind](gappy) if kind in MEMORY else pa.table({"a": gappy[:, 0].copy()})
    (block,) = next(iter(open_source(source).fragments)).blocks(None)
    held = {
        "tensor": lambda: source.detach().numpy(),
        "pandas": source.to_numpy if kind == "pandas" else None,
        "arrow column": lambda: source.column(0).chunk(0).to_numpy(),
    }.get(kind, lambda: source)()
    assert np.shares_memory(block.tensor().detach().numpy(), held)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_array_files_are_mapped(name, gappy, tmp_path):
    FILES[name](tmp_path / name, gappy)
    found = open_array_file(tmp_path / name)
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, gappy)


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
    monkeypatch.setattr("evenkeel.data.sources._columns.COPIED_ROWS", (7, 7))
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
    with _parquet.open_file(path, "edcba", 2, None) as (file, sizes, _):
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


def test_the_source_is_written_down(gappy, tmp_path):
    FILES["x.parquet"](tmp_path / "x.parquet", gappy)
    note = fit(tmp_path / "x.parquet").contract_.source
    assert json.loads(json.dumps(note)) == note
    assert note["rows"] == ROWS
    assert note["skipped"] == []
    again = fit(tmp_path / "x.parquet").contract_.source
    assert again == note
    FILES["x.parquet"](tmp_path / "x.parquet", gappy[: ROWS // 2])
    assert fit(tmp_path / "x.parquet").contract_.source["fingerprint"] != note["fingerprint"]


def test_large_files_are_read_in_parts(gappy, tmp_path, monkeypatch):
    monkeypatch.setattr("evenkeel.data.sources._files.PART_BYTES", 2000)
    for name in ("x.parquet", "x.feather"):
        FILES[name](tmp_path / name, gappy)
        source = open_source(tmp_path / name)
        assert len(source.fragments) > 2
        assert len({fragment.key for fragment in source.fragments}) == len(source.fragments)
        agree(fit_statistics(source), gappy)


def test_streams_are_cut_by_values_not_batches(monkeypatch, gappy):
    monkeypatch.setattr("evenkeel.data.fitting._fit.STREAM_ELEMENTS", 600)
    agree(fit_statistics(itertools.chain(chunks(gappy))), gappy)
