"""Files transformed by a fitted scaler: every format, what is kept, and nothing where it fails."""

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_parts import PARTS, break_part

from evenkeel import InvalidArgumentError, SourceError
from evenkeel.data import fit, fit_statistics, transform_files
from evenkeel.data.sources import FORMATS, open_source


@pytest.mark.parametrize("suffix", [suffix[1:] for kind in FORMATS for suffix in kind.written])
def test_files_are_transformed_block_by_block(suffix, folder, table, tmp_path, monkeypatch):
    monkeypatch.setattr("evenkeel.data.sources._columns.COPIED_ROWS", (50, 70))
    np.save(tmp_path / "in.npy", table)
    scaler = fit(folder)
    out = transform_files(scaler, tmp_path / "in.npy", tmp_path / f"out.{suffix}")
    found = np.load(out) if suffix == "npy" else pa_table(out)
    expected = scaler.transform(pd.DataFrame(table, columns=list("abc")))
    np.testing.assert_allclose(found, expected, rtol=0 if suffix != "csv" else 1e-15)
    assert os.listdir(tmp_path).count(f".{out.name}.tmp") == 0


def pa_table(path):
    source = open_source(path)
    assert source.names == ("a", "b", "c")
    return np.concatenate([b.tensor().numpy() for f in source.fragments for b in f.blocks(None)])


def test_other_columns_order_dtypes_and_nulls_are_kept(folder, tmp_path):
    scaler = fit(folder)
    columns = {
        "id": ["x", "y", "z"],
        "c": pa.array([1e8, None, 1e8 + 1], pa.float32()),
        "a": pa.array([1, 2, None]),
        "b": pa.array([1e4, 1e4 + 1, float("nan")]),
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    found = pq.read_table(transform_files(scaler, tmp_path / "in.parquet", tmp_path / "out.parquet"))
    assert found.column_names == ["id", "c", "a", "b"]
    assert found["id"].to_pylist() == ["x", "y", "z"]
    assert [str(found.schema.field(name).type) for name in "cab"] == ["float", "double", "double"]
    assert [found[name].null_count for name in "cab"] == [1, 1, 0]
    np.testing.assert_allclose(found["a"].to_pylist()[:2], (np.array([1, 2]) - scaler.mean_[0]) / scaler.scale_[0])


def test_a_directory_becomes_a_directory(folder, table, tmp_path):
    seen = []
    scaler = fit(folder)
    out = transform_files(scaler, folder, tmp_path / "out", progress=lambda *now: seen.append(now))
    assert sorted(os.listdir(out)) == sorted(os.listdir(folder))
    np.testing.assert_allclose(fit_statistics(out).mean, 0, atol=1e-7)
    assert seen[-1] == (PARTS - 1, PARTS, len(table))


def test_text_is_not_written_to_an_array_file(folder, tmp_path):
    pq.write_table(pa.table({"word": ["x"], "a": [1.0], "b": [2.0], "c": [3.0]}), tmp_path / "in.parquet")
    with pytest.raises(InvalidArgumentError, match=r"\.npy holds numbers only, not the columns word"):
        transform_files(fit(folder), tmp_path / "in.parquet", tmp_path / "out.npy", on_mismatch="ignore")
    assert sorted(os.listdir(tmp_path)) == ["data", "in.parquet"]


def test_nothing_appears_where_transforming_fails(folder, table, tmp_path):
    scaler = fit(folder)
    break_part(folder, 3)
    with pytest.raises(SourceError, match=r"part-3\.parquet: cannot be read"):
        transform_files(scaler, folder, tmp_path / "out")
    np.save(tmp_path / "in.npy", table * 255)
    with pytest.raises(ValueError, match="the data is not like that of the fit"):
        transform_files(scaler, tmp_path / "in.npy", tmp_path / "out.npy")
    assert sorted(os.listdir(tmp_path)) == ["data", "in.npy"]
    with pytest.warns(UserWarning, match="not like that of the fit"):
        transform_files(scaler, tmp_path / "in.npy", tmp_path / "out.npy", on_mismatch="warn")
    transform_files(scaler, tmp_path / "in.npy", tmp_path / "out.npy", on_mismatch="ignore")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (("in.npy", "out.xlsx"), {}, "the name must end in .parquet"),
        (("in.npy", "in.npy"), {}, "is the input"),
        (("in.npy", "out.npy"), {"columns": [0, 1]}, "the statistics are of 3 columns, but 2 were found"),
        (("in.npy", "out.npy"), {"on_mismatch": "shrug"}, "on_mismatch must be"),
        (("in.npy", "no/out.npy"), {}, "cannot write"),
        (("data", "out.csv"), {}, "is a directory"),
        (("none.csv", "out.csv"), {}, "there is no file"),
    ],
)
def test_transforming_what_cannot_be(names, options, message, folder, table, tmp_path):
    np.save(tmp_path / "in.npy", table)
    with pytest.raises(Exception, match=message) as caught:
        transform_files(fit(folder), tmp_path / names[0], tmp_path / names[1], **options)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(np.load(tmp_path / "in.npy"), table)
