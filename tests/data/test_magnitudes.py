"""Columns of any finite magnitude: their sums and squares leave the range of float64, their statistics need not."""

import math
import zlib
from fractions import Fraction
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scaler_cases import VARIANTS, each_scaler
from scipy import sparse

from evenkeel import InvalidInputError, StateError, kernels_available
from evenkeel.data import (
    Contract,
    GroupStatistics,
    ImageStatistics,
    MaxAbsScaler,
    RobustScaler,
    StandardScaler,
    Statistics,
    compare,
    fit,
    fit_statistics,
    load,
    merge_all,
    save,
    transform_files,
)
from evenkeel.data.views._pages import histogram_figure, observations

LARGEST = float(np.finfo(np.float64).max)
UNITS = [1023, 700, 515, -480, -600, -1000, -1060]
each_unit = pytest.mark.parametrize("power", UNITS)


def tables(power):
    """A table of three columns and the same one in the unit 2 ** power, which is exact."""
    x = np.random.default_rng(0).integers(-4096, 4096, (600, 3)) / 4096
    x[:, 1] = np.abs(x[:, 1])
    x[:, 2] = 0.5 + x[:, 2] / 1024
    x = np.round(x * 4096) / 4096  # 12 bits: numbers below the smallest normal one have them too
    return x, np.ldexp(x, power)


def exact(values):
    """Mean and population deviation of numbers, rounded once."""
    numbers = [Fraction(value) for value in np.asarray(values).tolist()]
    mean = sum(numbers) / len(numbers)
    variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
    power = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
    return float(mean), math.ldexp(math.sqrt(variance / Fraction(4) ** power), power)


def close(found, expected, power=0, rtol=1e-14):
    """Compare numbers in the unit 2 ** power; below the smallest normal number float64 has fewer digits."""
    np.testing.assert_allclose(np.ldexp(found, -power), expected, rtol=rtol, atol=2.0 ** max(-1073 - power, -1000))


def ordered(parts, order):
    statistics = Statistics()
    for index in order:
        statistics.merge(Statistics().update(parts[index]))
    return statistics


@each_unit
def test_statistics_do_not_depend_on_the_unit(power, tmp_path):
    x, y = tables(power)
    plain, parts, rng = Statistics().update(x), np.array_split(y, [1, 7, 300]), np.random.default_rng(1)
    pq.write_table(pa.table({str(i): y[:, i] for i in range(3)}), tmp_path / "a.parquet")
    mixed = Statistics().update(torch.from_numpy(y), weight=np.r_[np.ones(300), np.zeros(300)])
    found = [
        Statistics().update(y),
        Statistics().update(torch.from_numpy(np.asfortranarray(y))),
        *(ordered(parts, rng.permutation(len(parts))) for _ in range(3)),
        merge_all(Statistics().update(row[None]) for row in y[:64]).merge(Statistics().update(y[64:])),
        mixed.update(np.r_[y[:1] * np.nan, y], mask=np.arange(601) > 300),
        fit_statistics(tmp_path / "a.parquet"),
        fit_statistics(pa.table({str(i): y[:, i] for i in range(3)})),
    ]
    for statistics in found:
        assert statistics.count.tolist() == [600] * 3
        close(statistics.mean, plain.mean, power)
        close(statistics.std(), plain.std(), power)
        close(statistics.std(ddof=1), plain.std(ddof=1), power)
        assert (statistics.maximum == y.max(0)).all()
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(statistics.variance(), np.ldexp(plain.variance(), 2 * power), rtol=1e-13)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=30),
    st.integers(0, 30),
    st.integers(-1074, 1023),
)
@example([LARGEST, -LARGEST], 1, 0)
@example([LARGEST] * 3, 1, 0)
@example([5e-324, 1e-323, 0.0], 2, 0)
@example([1e-170, 3e-170], 1, 0)
@example([1e155, 1.0, 1e-300], 1, 0)
def test_finite_numbers_have_a_finite_mean_and_deviation(values, cut, power):
    values = np.r_[values, np.ldexp(1.5, power)]
    mean, std = exact(values)
    table = values[:, None]
    for statistics in (
        Statistics().update(table),
        Statistics().update(table[:cut]).merge(Statistics().update(table[cut:])),
    ):
        assert abs(statistics.mean[0] / 4 - mean / 4) <= np.abs(values).max() * 2.0**-52 + 5e-324
        assert statistics.std()[0] == pytest.approx(std, rel=1e-12, abs=5e-324)


@pytest.mark.parametrize("weight", [1e300, 1e-300])
def test_weights_of_any_magnitude_leave_mean_and_deviation_as_they_are(weight):
    x, y = tables(600)
    for table, power in ((x, 0), (y, 600)):
        statistics = Statistics().update(table, weight=np.full(600, weight))
        close(statistics.mean, x.mean(0), power, rtol=1e-13)
        close(statistics.std(), x.std(0), power, rtol=1e-13)
    statistics = Statistics().update(x, weight=np.full(600, 2e305))
    for act in (statistics.update, Statistics().update):
        with pytest.raises(InvalidInputError, match="the sum of the weights exceeds what a float64 holds"):
            act(x, weight=np.full(600, 2e306))
    assert statistics.rows == 600
    close(statistics.mean, x.mean(0), rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_and_smallest_numbers_of_short_dtypes(dtype):
    for unit in (torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal):
        table = (torch.tensor([[1.0], [-1.0], [0.5], [0.5]], dtype=torch.float64) * unit).to(dtype)
        statistics = Statistics().update(table)
        mean, std = exact(table.double().numpy().ravel())
        np.testing.assert_allclose([statistics.mean[0], statistics.std()[0]], [mean, std], rtol=1e-14)
        z = StandardScaler().fit(table).transform(table)
        assert z.dtype == dtype
        np.testing.assert_allclose(z.double(), (table.double() - mean) / std, rtol=torch.finfo(dtype).eps)


def test_columns_that_grow_out_of_the_range_and_are_joined_by_ordinary_ones():
    statistics = Statistics().update([[1e308, 1.0, 1e-170]]).update([[1.7e308, 2.0, 3e-170]])
    np.testing.assert_allclose(statistics.mean, [1.35e308, 1.5, 2e-170], rtol=1e-15)
    np.testing.assert_allclose(statistics.std(), [0.35e308, 0.5, 1e-170], rtol=1e-14)
    assert statistics.m2[1] == 0.5
    statistics.update([[np.inf, 3.0, 5e100]])
    assert statistics.mean[0] == np.inf
    assert np.isnan(statistics.std()[0])
    np.testing.assert_allclose(statistics.std()[2], np.std([0.0, 0.0, 5e100]), rtol=1e-14)
    assert statistics._moments.exponent is None  # in ordinary units again


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_saved_states_keep_the_unit_and_readers_that_know_none_refuse_them(suffix, tmp_path):
    x, y = tables(1000)
    y[:, 1] = x[:, 1]
    scaler = StandardScaler().fit(y)
    found = load(save(scaler, tmp_path / f"s{suffix}"))
    assert found.statistics_.to_bytes() == scaler.statistics_.to_bytes()
    assert np.array_equal(found.transform(y), scaler.transform(y))
    assert np.array_equal(found.merge(scaler).mean_, scaler.mean_)
    state = scaler.statistics_.to_dict()
    assert {"total", "m2", "total_low"}.isdisjoint(state["state"])
    assert "exponent" not in Statistics().update(x).to_dict()["state"]
    state["state"]["exponent"] = [10**6] * 3
    with pytest.raises(StateError, match="an exponent is beyond those of float64"):
        Statistics.from_dict(state)


@each_unit
def test_groups_and_images(power):
    x, y = tables(power)
    groups = GroupStatistics().update(y[:300], ["a", "b"] * 150).merge(GroupStatistics().update(y[300:], ["a"] * 300))
    rows = np.r_[x[:300:2], x[300:]]
    close(groups["a"].mean, rows.mean(0), power)
    close(GroupStatistics.from_bytes(groups.to_bytes())["a"].std(), rows.std(0), power)
    pictures = [x.reshape(2, 15, 20, 3), y.reshape(2, 15, 20, 3)]
    plain, found = (ImageStatistics().update(p, layout="HWC") for p in pictures)
    planes = ImageStatistics().update(torch.from_numpy(pictures[1]).permute(0, 3, 1, 2), layout="CHW")
    for definition in ("pooled", "per-image"):
        for statistics in (found, planes):
            close(statistics.mean(definition), plain.mean(definition), power)
            close(statistics.std(definition), plain.std(definition), power)


# Below, the mean itself has fewer digits; and scikit-learn's rule takes ranges below 10 eps for constant.
SMALL_UNITS = [(StandardScaler(), power) for power in (-480, -600, -1020)]


@pytest.mark.parametrize(("scaler", "power"), [*product(VARIANTS, (1023, 700, 515)), *SMALL_UNITS])
def test_scaled_values_do_not_depend_on_the_unit(scaler, power, tmp_path):
    x, y = tables(power)
    unit = 0 if getattr(scaler, "with_std", True) and getattr(scaler, "with_scaling", True) else power
    expected = scaler.fit(x).transform(x)
    z = scaler.fit(y).transform(y)
    close(z, expected, unit, rtol=1e-12)
    assert np.array_equal(scaler.transform(torch.from_numpy(y)).numpy(), z)
    out = np.empty_like(y)
    assert scaler.transform(y, out=out) is out
    assert np.array_equal(out, z)
    close(scaler.inverse_transform(z), x, power, 1e-11)
    np.save(tmp_path / "x.npy", y)
    assert np.array_equal(np.load(transform_files(scaler, tmp_path / "x.npy", tmp_path / "y.npy")), z)


@each_scaler
def test_ranges_and_deviations_beyond_float64_still_scale(kind):
    table = np.array([[-1.7e308, 1.0], [1.7e308, 2.0], [1e308, 3.0], [-1e308, 4.0]])
    expected = kind().fit(table / [1e300, 1]).transform(table / [1e300, 1])
    scaler = kind().fit(table)
    np.testing.assert_allclose(scaler.transform(table), expected, rtol=1e-13)
    np.testing.assert_allclose(scaler.inverse_transform(scaler.transform(table)), table, rtol=1e-13)
    np.testing.assert_allclose(
        kind.from_statistics(fit(table, scaler=kind()).statistics_).transform(table), expected, rtol=1e-13
    )
    x = table.copy()
    assert kind(copy=False).fit(x).transform(x) is x
    np.testing.assert_allclose(x, expected, rtol=1e-13)
    if kind is not MaxAbsScaler:
        with pytest.raises(InvalidInputError, match="to_module: feature 0 has a centre or scale beyond"):
            scaler.to_module()


def test_the_sample_deviation_of_two_opposite_numbers_is_beyond_float64_and_their_scores_are_not():
    table = np.array([[1.79e308], [-1.79e308]])
    scaler = StandardScaler(ddof=1).fit(table)
    assert scaler.scale_[0] == np.inf
    np.testing.assert_allclose(scaler.transform(table).ravel(), [0.5**0.5, -(0.5**0.5)], rtol=1e-15)
    np.testing.assert_allclose(scaler.inverse_transform(scaler.transform(table)), table, rtol=1e-15)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("value", [LARGEST, 1e160, 1e-170, 5e-324])
def test_a_constant_stays_constant(value, rows):
    scaler = StandardScaler().fit(np.full((rows, 1), value))
    assert (scaler.mean_[0], scaler.scale_[0], scaler.constant_[0]) == (value, 1.0, True)


@pytest.mark.parametrize(
    ("kind", "power"), [*product((StandardScaler, MaxAbsScaler, RobustScaler), (1000, 600)), (StandardScaler, -600)]
)
def test_sparse_matrices(kind, power):
    options = {StandardScaler: {"with_mean": False}, RobustScaler: {"with_centering": False}}.get(kind, {})
    x, y = tables(power)
    x[::3] = y[::3] = 0
    for layout in (sparse.csr_matrix, sparse.csc_matrix):
        scaler = kind(**options).fit(layout(y))
        expected = kind(**options).fit_transform(layout(x))
        np.testing.assert_allclose(scaler.transform(layout(y)).toarray(), expected.toarray(), rtol=1e-12)
        back = scaler.inverse_transform(scaler.transform(layout(y)))
        close(back.toarray(), x, power, rtol=1e-12)


def test_sparse_quantiles_and_partial_fits():
    table = np.array([[1.7e308], [-1.7e308], [1e308], [-1e308]])
    a = RobustScaler(with_centering=False).fit(sparse.csr_matrix(table))
    np.testing.assert_allclose(a.transform(table), RobustScaler(with_centering=False).fit_transform(table), rtol=1e-14)
    halves = StandardScaler(with_mean=False)
    for half in (table[:2], table[2:]):
        halves.partial_fit(sparse.csr_matrix(half))
    np.testing.assert_allclose(halves.scale_, StandardScaler().fit(table).scale_, rtol=1e-14)


def test_quantiles_between_opposite_numbers():
    statistics = Statistics(quantiles=True).update([[1.7e308], [-1.7e308]])
    np.testing.assert_allclose(statistics.quantile([0.25, 0.5, 0.75]).ravel(), [-0.85e308, 0, 0.85e308], atol=1e293)


def test_drift_contracts_and_pages():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(500, 2)) * [4e307, 1e-200]
    table = table.clip(-1.7e308, 1.7e308)
    before = Statistics(quantiles=True).update(table)
    assert compare(before, Statistics(quantiles=True).update(table[::2])).ok
    moved = table / 4 + [1.2e308, 0]
    assert any("mean shifted by 3.1 stand" in text for text in compare(before, Statistics().update(moved)).failures)
    contract = Contract.from_statistics(before)
    assert contract.problems(table) == []
    assert "feature 1 ranges from" in contract.problems(table + np.array([0, 1e-197]))[0]
    large = rng.normal(5, 1, (500, 1)) * 1e305
    assert "multiplied by 100," in Contract.from_statistics(Statistics().update(large)).problems(large * 100)[0]
    figure = histogram_figure("a", {"": before}, 0)
    assert "e+308" in figure.title
    assert all(math.isfinite(cell) for row in figure.panels[0].table.rows for cell in row[1:])
    assert "powers of ten" in observations(before)[0].title


ORDINARY = {
    "float64": lambda i: i / 1024.0,
    "float32": lambda i: (i / 1024.0).astype(np.float32),
    "offset": lambda i: i / 2.0**30 + 1e6,
    "int32": lambda i: i.astype(np.int32),
    "large": lambda i: i * 2.0**440,
    "small": lambda i: i * 2.0**-440,
}
# CRC-32 of mean, m2 and the lower half of the sum before columns had units: of the table, of seven parts, with weights.
BITS = {
    "float64": (2221134812, 3894645706, 1370951517),
    "float32": (2221134812, 3894645706, 1370951517),
    "offset": (2870878455, 526042770, 1038654150),
    "int32": (2227404450, 3900915380, 561696870),
    "large": (2954108990, 3696517160, 4260946506),
    "small": (296730891, 2112848157, 2610211787),
}


@pytest.mark.skipif("cpu" not in kernels_available(), reason="the reference sums in another order")
@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_columns_keep_their_bits(kind):
    x = ORDINARY[kind](np.random.default_rng(0).integers(-(2**20), 2**20, (3000, 4)))
    parts = Statistics()
    for part in np.array_split(x, 7):
        parts.update(part)
    found = [Statistics().update(x), parts, Statistics().update(x, weight=np.arange(len(x)) % 5)]
    assert (
        tuple(zlib.crc32(np.concatenate([s.mean, s.m2, s._moments.total_low]).tobytes()) for s in found) == BITS[kind]
    )
