"""Quantiles of statistics: exact where values are counted or few, within the stated bound where they are sketched."""

import numpy as np
import pytest

from evenkeel.data import Statistics, merge_all
from evenkeel.data.statistics._quantiles import weighted_quantiles


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.bool_])
def test_quantiles_of_small_integers_are_exact(dtype):
    info = None if dtype is np.bool_ else np.iinfo(dtype)
    low, high = (0, 2) if info is None else (info.min, info.max)
    x = np.random.default_rng(0).integers(low, high, (501, 3)).astype(dtype)
    ranks = [0, 0.01, 0.25, 0.5, 0.9, 1]
    whole = Statistics(quantiles=True).update(x)
    merged = merge_all(Statistics(quantiles=True).update(part) for part in np.array_split(x, 6))
    assert np.allclose(whole.quantile(ranks), np.quantile(x.astype(float), ranks, axis=0), rtol=1e-15)
    assert (whole.quantile(ranks) == merged.quantile(ranks)).all()
    assert whole.quantile_error == 0
    counted, weights = whole.distribution(0)
    assert (counted == np.unique(x[:, 0])).all()
    assert weights.sum() == 501


def test_sketched_quantiles_stay_within_the_stated_bound():
    x = np.random.default_rng(0).lognormal(0, 3, (60_000, 2))
    whole = Statistics(quantiles=True).update(x)
    merged = merge_all(Statistics(quantiles=True).update(part) for part in np.array_split(x, 60))
    ranks = np.linspace(0.01, 0.99, 33)
    for statistics in (whole, merged):
        assert 0 < statistics.quantile_error < 0.003
        found = statistics.quantile(ranks)
        for column in range(2):
            actual = np.searchsorted(np.sort(x[:, column]), found[:, column]) / len(x)
            # the bound holds for one rank with 99 %: twice of it for all 33, in a run that is drawn anew each time
            assert np.abs(actual - ranks).max() < 2 * statistics.quantile_error
        assert (statistics.quantile([0, 1]) == [x.min(0), x.max(0)]).all()
    # not the minimum and maximum of the parts' quantiles
    medians = [np.median(part[:, 0]) for part in np.array_split(x, 60)]
    assert min(medians) < merged.quantile(0.5)[0] < max(medians)


@pytest.mark.parametrize(("size", "rows"), [(8, 1), (8, 57), (8, 5000), (64, 500), (1024, 5000)])
def test_merged_sketches_stand_for_every_row(size, rows):
    options, x = {"quantiles": True, "sketch_size": size}, np.random.default_rng(0).normal(size=(rows, 1))
    one, other = Statistics(**options).update(x), Statistics(**options).merge(Statistics(**options).update(x))
    _, weights = one.merge(other).distribution(0)  # their lowest level may be empty
    assert weights.sum() == 2 * rows


def test_sketches_of_few_values_are_exact():
    x = np.random.default_rng(0).normal(size=(200, 2))
    x[::7, 1] = np.nan
    found = Statistics(quantiles=True).update(x).quantile([0.25, 0.5, 0.75])
    assert np.allclose(found, np.nanquantile(x, [0.25, 0.5, 0.75], axis=0), rtol=1e-14)
    assert weighted_quantiles(np.array([2.0, 1.0]), np.array([1.0, 3.0]), np.array([0.5])) == [1.0]


def test_masked_quantiles():
    x = np.arange(20).reshape(10, 2)
    for dtype in (np.uint8, np.float32):
        found = Statistics(quantiles=True).update(x.astype(dtype), mask=x[:, 0] < 10).quantile(0.5)
        assert found.tolist() == [4, 5]
