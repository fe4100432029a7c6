"""Intervals, exponents and verdicts of the experiments, against SciPy and by construction."""

import math

import pytest
import scipy.stats

from evenkeel.lab.experiments._estimates import (
    Estimate,
    band,
    below,
    geometric_mean,
    growth_exponent,
    mean_of,
    verdict,
)
from evenkeel.lab.experiments.catalogue._residual_growth import shape_of
from evenkeel.lab.training._student import T95


@pytest.mark.parametrize("degrees", range(1, len(T95)))
def test_quantiles_are_students(degrees):
    assert T95[degrees] == pytest.approx(scipy.stats.t.ppf(0.975, degrees), abs=1e-3)


def test_mean_has_students_interval():
    values = [1.0, 2.0, 4.0, 8.0]
    found = mean_of(values)
    low, high = scipy.stats.t.interval(0.95, 3, loc=3.75, scale=scipy.stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((3.75, low, high), rel=1e-3)


def test_one_value_has_no_interval():
    assert "no interval" in str(mean_of([2.0]))
    assert verdict(mean_of([2.0]), 1.0, 3.0) == "undecided"


def test_growth_exponent_is_that_of_a_power_law():
    x = [2.0, 4.0, 8.0, 16.0]
    found = growth_exponent([(v, 3 * v**-0.5) for v in x])
    assert (found.value, found.low, found.high) == pytest.approx((-0.5, -0.5, -0.5), abs=1e-9)


def test_growth_exponent_has_the_interval_of_the_regression():
    x, y = [1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 2.3, 3.6, 9.0, 14.0]
    fit = scipy.stats.linregress([math.log(v) for v in x], [math.log(v) for v in y])
    half = scipy.stats.t.ppf(0.975, 3) * fit.stderr
    found = growth_exponent(zip(x, y, strict=True))
    assert (found.low, found.high) == pytest.approx((fit.slope - half, fit.slope + half), rel=1e-3)


def test_geometric_mean_of_ratios():
    assert geometric_mean([0.5, 2.0]).value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0.9, 1.1), "agrees"), ((2.1, 2.5), "disagrees"), ((-3.0, -1.0), "disagrees"), ((1.5, 2.5), "undecided")],
)
def test_verdict_compares_intervals(interval, expected):
    assert verdict(Estimate(sum(interval) / 2, *interval), 0.5, 2.0) == expected


def test_below_needs_intervals_apart():
    one, two = Estimate(1.0, 0.5, 1.5), Estimate(2.0, 1.4, 2.6)
    assert (below(one, two), below(one, Estimate(3.0, 2.0, 4.0)), below(Estimate(3.0, 2.0, 4.0), one)) == (
        "undecided",
        "agrees",
        "disagrees",
    )


def test_band_spans_the_records_of_a_position():
    series = band("a", [(2, 1.0), (1, 5.0), (2, 3.0), (2, math.nan), (1, None)])
    assert (series.x, series.y, series.low, series.high) == ([1, 2], [5.0, 2.0], [5.0, 1.0], [5.0, 3.0])


@pytest.mark.parametrize(
    ("profile", "shape"),
    [
        ([1 + 0.5 * layer for layer in range(20)], "linear"),
        ([1.3**layer for layer in range(20)], "exponential"),
        ([1.5] * 20, "flat"),
        ([1.0] * 10 + [1000.0] * 10, "neither"),
    ],
)
def test_shapes_of_growth_are_told_apart(profile, shape):
    assert shape_of([profile, profile])[0] == shape
