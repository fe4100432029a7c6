"""Lance tables: read fragment by fragment, of one version, from a path, a store or an opened table."""

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenkeel import EvenkeelError, SourceError
from evenkeel.cli import main
from evenkeel.data import fit, fit_statistics, load
from evenkeel.data.sources import open_source

pytestmark = pytest.mark.slow  # its wheel is of 85 MB


@pytest.fixture
def columns():
    rng = np.random.default_rng(0)
    return pa.table({"a": rng.normal(1e4, 1, 30_000), "b": rng.normal(size=30_000), "word": ["x"] * 30_000})


@pytest.fixture
def table(columns, tmp_path):
    """A table of three fragments, of which one lacks a row in seven."""
    path = tmp_path / "people.lance"
    lance.write_dataset(columns, path, max_rows_per_file=10_000, max_rows_per_group=1000)
    lance.dataset(path).delete("a > 10001 AND b > 0")
    return path


def test_its_rows_are_those_that_are_not_deleted(table, columns):
    a, b = (columns[name].to_numpy() for name in "ab")
    keep = ~((a > 10001) & (b > 0))
    found = fit_statistics(table, columns=["b", "a"])
    assert (found.names, found.rows) == (("b", "a"), keep.sum())
    np.testing.assert_allclose(found.mean, [b[keep].mean(), a[keep].mean()], rtol=1e-12)
    for workers in (1, 3):
        assert fit_statistics(table, columns=["b", "a"], workers=workers).to_bytes() == found.to_bytes()
    assert fit_statistics(str(table), columns="numeric").names == ("a", "b")
    with pytest.raises(SourceError, match=r"not numbers: word \(string\)"):
        fit(table)


def test_an_opened_table_is_read_at_its_version(table, columns):
    before = lance.dataset(table)
    expected = fit_statistics(before, columns=["a"])
    lance.write_dataset(columns, table, mode="append")
    assert fit_statistics(before, columns=["a"]).to_bytes() == expected.to_bytes()
    assert fit_statistics(table, columns=["a"]).rows == expected.rows + 30_000
    assert open_source(before, columns=["a"]).description == f"{table} (version 2)"
    assert fit(table, columns=["a"]).contract_.source["description"] == f"{table} (version 3)"


def test_only_the_columns_that_are_asked_for_are_read(table):
    dataset = lance.dataset(table)
    dataset.io_stats_incremental()
    fit_statistics(dataset, columns=["a"])
    one = dataset.io_stats_incremental().read_bytes
    fit_statistics(dataset, columns=["a", "b"])
    assert one < 0.7 * dataset.io_stats_incremental().read_bytes


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def interrupt(source, states):
    def stop(progress):
        if progress.done == 2:
            raise Killed

    with pytest.raises(Killed):
        fit_statistics(source, columns=["a"], resume=states, progress=stop)


def test_an_interrupted_fit_goes_on_with_rows_that_were_added_and_not_with_others(table, columns, tmp_path):
    states = tmp_path / "states"
    interrupt(table, states)
    lance.write_dataset(columns, table, mode="append")
    found = fit_statistics(table, columns=["a"], resume=states)
    assert found.to_bytes() == fit_statistics(table, columns=["a"]).to_bytes()
    states.unlink()
    interrupt(table, states)
    lance.dataset(table).delete("a < 9999")
    with pytest.raises(SourceError, match=r"people\.lance#0 was written again"):
        fit_statistics(table, columns=["a"], resume=states)


def test_in_a_store(store, table):
    url = store.upload(table, "people.lance")
    expected = fit_statistics(table, columns=["a", "b"]).to_bytes()
    assert fit_statistics(url, columns=["a", "b"], storage_options=store.options).to_bytes() == expected


def test_in_the_store_that_a_variable_names(store, table, monkeypatch):
    url = store.upload(table, "people.lance")
    for name, value in store.variables.items():
        monkeypatch.setenv(name, value)
    expected = fit_statistics(table, columns=["a", "b"]).to_bytes()
    assert fit_statistics(url, columns=["a", "b"]).to_bytes() == expected


def test_the_commands(table, tmp_path, capsys):
    out, copy = tmp_path / "s.json", tmp_path / "scaled.parquet"
    assert main(["data", "fit", str(table), "--numeric", "--out", str(out), "--quiet"]) == 0
    assert "left out, as they hold no numbers: word (string)" in capsys.readouterr().err
    assert main(["data", "check", str(table), "--stats", str(out), "--quiet"]) == 0
    assert main(["data", "apply", str(table), "--stats", str(out), "--out", str(copy), "--quiet"]) == 0
    scaled = pq.read_table(copy)
    assert scaled.column_names == ["a", "b", "word"]
    assert scaled.num_rows == load(out).statistics_.rows
    assert abs(scaled["a"].to_numpy().mean()) < 1e-9


def test_what_is_wrong_is_one_line(table, tmp_path):
    data = next((table / "data").iterdir())
    with pytest.raises(SourceError, match="is a part of a Lance table, not one; give the directory"):
        fit(data)
    (tmp_path / "empty.lance").mkdir()
    with pytest.raises(SourceError, match=r"empty\.lance: this Lance table cannot be read: ") as caught:
        fit(tmp_path / "empty.lance")
    assert "\n" not in str(caught.value)
    data.write_bytes(b"broken")
    with pytest.raises(EvenkeelError, match="this Lance table cannot be read: ") as caught:
        fit(table, columns=["a"])
    assert "\n" not in str(caught.value)
    assert ".rs:" not in str(caught.value)
