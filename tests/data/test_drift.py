"""Drift: found in the feature that drifted, and in no sample of the same data."""

import numpy as np
import pytest

from evenkeel import InvalidInputError, InvalidTypeError
from evenkeel.data import (
    DriftLimits,
    DriftReport,
    FeatureDrift,
    Statistics,
    compare,
)


def drifted(change, quantiles=True):
    before = np.random.default_rng(1).normal(size=(4000, 2))
    now = np.random.default_rng(2).normal(size=(4000, 2))
    now[:, 1] = change(now[:, 1])
    reference, current = (Statistics(names=["x", "y"], quantiles=quantiles).update(v) for v in (before, now))
    return compare(reference, current)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y + 1, "mean shifted by 1 standard deviations"),
        (lambda y: y * 3, "standard deviation is 3 times what it was"),
        (lambda y: y * 99.7, "standard deviation is 100 times what it was"),
        (lambda y: np.where(np.arange(4000) == 0, 40.0, y), "leaves the range seen"),
        (lambda y: np.where(np.arange(4000) % 5 == 0, np.nan, y), "20.0% missing, 0.0% before"),
        (lambda y: np.sign(y), "distribution changed"),
        (lambda y: np.full(4000, np.nan), "has no values"),
    ],
)
def test_drift_is_found_in_the_feature_that_drifted(change, message):
    found = drifted(change)
    assert isinstance(found, DriftReport)
    assert not found.ok
    assert any(failure.startswith("y: ") and message in failure for failure in found.failures)
    assert isinstance(found.features[0], FeatureDrift)
    assert found.features[0].failures == ()


def test_samples_of_the_same_data_do_not_drift():
    rng = np.random.default_rng(3)
    reference = Statistics(quantiles=True).update(rng.normal(size=(5000, 4)))
    for rows in (2, 5, 20, 100, 5000):
        for _ in range(5):
            current = Statistics(quantiles=True).update(rng.normal(size=(rows, 4)))
            assert compare(reference, current).failures == ()


def test_the_distance_of_distributions_is_kolmogorov_and_smirnovs():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 200, (3000, 1), dtype=np.uint8), rng.integers(20, 256, (2000, 1), dtype=np.uint8)
    found = compare(Statistics(quantiles=True).update(a), Statistics(quantiles=True).update(b)).features[0]
    assert found.ks == pytest.approx(ks_2samp(a[:, 0], b[:, 0]).statistic, abs=1e-12)
    assert found.psi > DriftLimits().psi


@pytest.mark.parametrize("quantiles", [False, True])
def test_a_constant_feature_drifts_when_it_changes_only(quantiles):
    before, other = np.full((500, 1), 3.0), np.full((500, 1), 4.0)
    kept = Statistics(quantiles=quantiles).update(before)
    assert compare(kept, Statistics(quantiles=quantiles).update(before[:300])).ok
    message = "0: was constant in the data of the fit, and is something else now"
    assert compare(kept, Statistics(quantiles=quantiles).update(other)).failures == (message,)
    mixed = Statistics(quantiles=quantiles).update(np.random.default_rng(0).normal(3, 1, (500, 1)))
    assert compare(kept, mixed).failures == (message,)
    # and one that has become constant has lost its spread
    assert "0: standard deviation is 0 times what it was" in compare(mixed, kept).failures


def test_drift_of_other_features_is_refused():
    with pytest.raises(InvalidInputError, match="expected 2 features"):
        compare(Statistics().update(np.eye(2)), Statistics().update(np.eye(3)))


@pytest.mark.parametrize("name", ["reference", "current", "limits"])
def test_what_is_no_statistics_is_refused(name):
    arguments = {"reference": Statistics().update(np.eye(2)), "current": Statistics().update(np.eye(2))}
    with pytest.raises(InvalidTypeError, match=f"{name} must be"):
        compare(**arguments | {name: "x"})
