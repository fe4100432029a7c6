"""Limits, shares, degrees of freedom and ranges that make no sense are refused, in Python and on the command line."""

import math

import numpy as np
import pytest

from evenkeel import InvalidArgumentError, InvalidInputError
from evenkeel.cli import main
from evenkeel.data import (
    DriftLimits,
    ImageNormalize,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
    Statistics,
    compare,
    fit,
    fit_statistics,
    save,
)

TABLE = np.arange(12.0).reshape(6, 2)
IMAGES = np.arange(72, dtype=np.uint8).reshape(2, 4, 3, 3)
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("shift", "spread", "outside", "missing", "psi")
            for value in (NAN, -0.1, -INF, "1")
        ),
        *(("spread", 0.5), ("missing", 5), ("missing", INF), ("psi", True)),
    ],
)
def test_limits_of_drift(name, value, tmp_path, capsys):
    with pytest.raises(InvalidArgumentError, match=f"the limit {name} must be ") as caught:
        DriftLimits(**{name: value})
    assert "\n" not in str(caught.value)
    if isinstance(value, str | bool):
        return
    np.save(tmp_path / "x.npy", TABLE)
    save(fit(TABLE), tmp_path / "s.json")
    assert (
        main(["data", "check", str(tmp_path / "x.npy"), "--stats", str(tmp_path / "s.json"), f"--max-{name}={value}"])
        == 2
    )
    assert capsys.readouterr().err.startswith(f"evenkeel: error: the limit {name} must be ")


def test_infinite_limits_are_never_exceeded():
    before, now = Statistics().update(np.random.default_rng(0).normal(size=(500, 1))), Statistics().update(TABLE[:, :1])
    assert not compare(before, now).ok
    assert compare(before, now, limits=DriftLimits(shift=INF, spread=INF, outside=INF, missing=1, psi=INF)).ok


@pytest.mark.parametrize("value", [NAN, -1, -1e-9, INF, "1", None])
def test_degrees_of_freedom(value):
    for act in (Statistics().update(TABLE).variance, Statistics().update(TABLE).std):
        with pytest.raises(InvalidArgumentError, match="ddof must be finite and at least 0"):
            act(ddof=value)
    for act in (StandardScaler(ddof=value).fit, StandardScaler(ddof=value).partial_fit):
        with pytest.raises(InvalidArgumentError, match="StandardScaler: ddof must be finite and at least 0"):
            act(TABLE)


def test_a_deviation_needs_more_values_than_degrees_of_freedom():
    gaps = TABLE.copy()
    gaps[1:, 1] = NAN
    message = r"with ddof=1 a deviation needs more values than that, but feature 1 has 1; give more rows"
    for act in (
        lambda: StandardScaler(ddof=1).fit(gaps),
        lambda: fit(gaps, scaler=StandardScaler(ddof=1)),
        lambda: StandardScaler.from_statistics(fit_statistics(gaps), ddof=1),
        lambda: StandardScaler(ddof=1).partial_fit(gaps).transform(gaps),
        lambda: StandardScaler(ddof=1).partial_fit(gaps).to_module(),
    ):
        with pytest.raises(InvalidInputError, match=message):
            act()
    with pytest.raises(InvalidInputError, match="feature 0 has 6"):
        StandardScaler(ddof=6).fit(TABLE)
    one = StandardScaler(ddof=1).partial_fit(TABLE[:1])  # more rows may come
    np.testing.assert_allclose(one.partial_fit(TABLE[1:]).scale_, TABLE.std(0, ddof=1))
    assert StandardScaler(ddof=1, with_std=False).fit(TABLE[:1]).transform(TABLE[:1]).tolist() == [[0, 0]]
    assert np.isnan(Statistics().update(TABLE[:1]).variance(ddof=1)).all()  # as documented
    gaps[:, 1] = NAN  # a feature without values stays one
    assert np.isnan(StandardScaler(ddof=1).fit(gaps).transform(gaps)[:, 1]).all()


@pytest.mark.parametrize(
    "ends",
    [
        (0, NAN),
        (NAN, 1),
        (NAN, NAN),
        (0, INF),
        (-INF, 0),
        (-INF, INF),
        (-1e308, 1e308),
        (1, 0),
        (0, 0),
        (1,),
        3,
        "ab",
        None,
    ],
)
def test_ranges(ends):
    for act in (MinMaxScaler(feature_range=ends).fit, MinMaxScaler(feature_range=ends).partial_fit):
        with pytest.raises(InvalidArgumentError) as caught:
            act(TABLE)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ends", "options"),
    [
        *(((NAN, 75), {}), ((25, NAN), {}), ((-1, 75), {}), ((25, INF), {}), ((75, 25), {}), ((25,), {}), (None, {})),
        *((ends, {"unit_variance": True}) for ends in ((0, 75), (25, 100), (50, 50))),
    ],
)
def test_ranges_of_quantiles(ends, options):
    with pytest.raises(InvalidArgumentError, match=r"uantile.range"):
        RobustScaler(quantile_range=ends, **options).fit(TABLE)


@pytest.mark.parametrize(
    "act",
    [
        lambda value: Statistics(value),
        lambda value: Statistics(sketch_size=value),
        lambda value: fit(TABLE, workers=value),
        lambda value: ImageNormalize.fit(IMAGES, definition="pooled", channels=value),
    ],
)
@pytest.mark.parametrize("value", [NAN, -1, INF, 10.5, "10", True])
def test_whole_numbers(act, value):
    with pytest.raises(InvalidArgumentError, match=r"must be .*, a whole number, but got"):
        act(value)


@pytest.mark.parametrize("value", [NAN, 0, -255, INF])
def test_constants_of_images(value):
    for act in (
        lambda: ImageNormalize([0.5], [0.5], max_value=value),
        lambda: ImageNormalize.preset("mnist", max_value=value),
        lambda: ImageNormalize.fit(IMAGES, definition="pooled", max_value=value),
    ):
        with pytest.raises(InvalidArgumentError, match="max_value must be finite and above 0"):
            act()
    with pytest.raises(InvalidArgumentError, match="std"):
        ImageNormalize([0.5], [value])
    if value and not math.isfinite(value):
        with pytest.raises(InvalidArgumentError, match="must be finite"):
            ImageNormalize([value], [0.5])


@pytest.mark.parametrize("q", [NAN, -0.1, 1.1, INF, [0.5, NAN]])
def test_ranks(q):
    with pytest.raises(InvalidArgumentError, match="ranks lie between 0 and 1"):
        Statistics(quantiles=True).update(TABLE).quantile(q)
