"""Hugging Face data sets: tables, selections of them, streams, and what is none of these."""

import datasets
import numpy as np
import pytest

from evenkeel.data import fit, fit_statistics
from evenkeel.data.sources import _datasets

ROWS = 1000


@pytest.fixture
def columns():
    rng = np.random.default_rng(0)
    x = {"height": rng.normal(170, 10, ROWS), "age": rng.integers(0, 90, ROWS), "city": ["x"] * ROWS}
    x["height"][7] = np.nan
    return x


def numbers(columns, rows=slice(None)):
    return np.column_stack([columns["height"], columns["age"]])[rows]


@pytest.mark.parametrize("engine", [{}, {"workers": 3}])
def test_a_data_set_has_the_statistics_of_its_columns(columns, engine, monkeypatch):
    monkeypatch.setattr("evenkeel.data.sources._memory.FRAGMENT_ELEMENTS", 500)
    monkeypatch.setattr(_datasets, "block_rows", lambda width: 70)
    scaler = fit(datasets.Dataset.from_dict(columns), columns="numeric", **engine)
    assert scaler.feature_names_in_.tolist() == ["height", "age"]
    np.testing.assert_allclose(scaler.mean_, np.nanmean(numbers(columns), 0), rtol=1e-12)
    np.testing.assert_array_equal(scaler.statistics_.missing, [1, 0])
    assert scaler.contract_.source["description"] == f"data set of {ROWS} rows"
    assert scaler.contract_.source["dtypes"] == ["double", "int64"]


def test_a_selection_in_another_order_counts_as_it_is(columns):
    rows = [5, 900, 900, 3]
    statistics = fit_statistics(datasets.Dataset.from_dict(columns).select(rows), columns=["age", "height"])
    np.testing.assert_allclose(statistics.mean, numbers(columns, rows).mean(0)[::-1], rtol=1e-12)
    assert statistics.rows == 4


def test_a_format_of_the_user_s_changes_nothing(columns):
    dataset = datasets.Dataset.from_dict(columns)
    plain = fit(dataset, columns="numeric").statistics_
    assert fit(dataset.with_format("torch"), columns="numeric").statistics_.to_bytes() == plain.to_bytes()


def test_a_data_set_on_disk(columns, tmp_path):
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "set")
    found = fit(datasets.load_from_disk(tmp_path / "set"), columns="numeric")
    np.testing.assert_allclose(found.mean_, np.nanmean(numbers(columns), 0), rtol=1e-12)


def test_a_streamed_data_set(columns, monkeypatch):
    monkeypatch.setattr(_datasets, "STREAMED_ROWS", 300)
    dataset = datasets.Dataset.from_dict(columns).to_iterable_dataset()
    np.testing.assert_allclose(fit(dataset, columns="numeric").mean_, np.nanmean(numbers(columns), 0), rtol=1e-12)


def test_what_is_no_table_is_refused_with_the_way_out(columns):
    dataset = datasets.Dataset.from_dict(columns)
    with pytest.raises(TypeError, match=r"holds the splits train, test; give one, such as dataset\['train'\]"):
        fit(datasets.DatasetDict({"train": dataset, "test": dataset}))
    with pytest.raises(ValueError, match="not numbers: city"):
        fit(dataset)
    with pytest.raises(ValueError, match="there is no column 'hieght'; did you mean 'height'"):
        fit(dataset, columns=["hieght"])
    with pytest.raises(ValueError, match="no rows"):
        fit(dataset.select([]), columns="numeric")
