"""Statistics: the same answer in any chunking, tree and container."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel import InvalidArgumentError, InvalidInputError, InvalidTypeError
from evenkeel.data import GroupStatistics, Statistics, merge_all

REGIMES = [(0, 1), (1e4, 1), (1e6, 0.01), (1e8, 1)]
CHUNKS = [1, 7, 1000, 4096]


def two_pass(x):
    """Mean and population variance in extended precision."""
    x = np.asarray(x).astype(np.longdouble)
    mean = x.mean(0)
    return mean, ((x - mean) ** 2).mean(0)


def parts(x, size):
    return [x[start : start + size] for start in range(0, len(x), size)]


def relative(found, expected):
    return float(np.max(np.abs(np.asarray(found) - expected) / np.abs(expected)))


@pytest.mark.parametrize("size", CHUNKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("mean", "std"), REGIMES)
def test_any_chunking_gives_the_two_pass_answer(mean, std, dtype, size):
    rows = 512 if size == 1 else 4096  # a part takes 0.5 ms, whatever its size
    x = np.random.default_rng(0).normal(mean, std, (rows, 3)).astype(dtype)
    statistics = Statistics()
    for part in parts(x, size):
        statistics.update(part)
    expected_mean, expected_variance = two_pass(x)
    scale = np.sqrt(expected_variance) + np.abs(expected_mean)
    assert np.max(np.abs(statistics.mean - expected_mean) / scale) < 1e-15  # one rounding of the mean
    # blocks hand over means with the digits lost in rounding: what is left is the rounding of sums of squares
    assert np.allclose(statistics.variance(), expected_variance.astype(float), rtol=1e-12, atol=0)
    assert (statistics.minimum == x.min(0)).all()
    assert (statistics.maximum == x.max(0)).all()
    assert (statistics.count == rows).all()
    assert statistics.dtypes == (dtype,)


values = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@settings(max_examples=50)  # 0.1 s each on a busy machine
@given(
    st.lists(st.lists(values, min_size=1, max_size=6), min_size=2, max_size=12),
    st.sampled_from([0.0, 1e3, 1e8, -1e12]),
    st.randoms(use_true_random=False),
)
def test_any_tree_gives_the_same_moments(blocks, shift, random):
    arrays = [np.array(block, dtype=np.float64)[:, None] + shift for block in blocks]
    states = [Statistics().update(array) for array in arrays]
    expected = merge_all(copy.deepcopy(states))
    while len(states) > 1:  # a random tree over a random order
        left, right = (states.pop(random.randrange(len(states))) for _ in range(2))
        states.append(left.merge(right))
    (found,) = states
    assert found.count == expected.count
    assert math.isclose(found.mean[0], expected.mean[0], rel_tol=1e-12, abs_tol=1e-300)
    assert math.isclose(found.m2[0], expected.m2[0], rel_tol=1e-12, abs_tol=1e-300)
    mean, variance = two_pass(np.concatenate(arrays))
    assert math.isclose(found.mean[0], float(mean[0]), rel_tol=1e-12, abs_tol=1e-300 + 1e-15 * abs(shift))
    assert math.isclose(found.variance()[0], float(variance[0]), rel_tol=1e-9, abs_tol=1e-300 + (1e-15 * shift) ** 2)


def test_sums_of_squares_in_float32_lose_what_this_keeps():
    x = np.random.default_rng(0).normal(1e4, 1, 100_000).astype(np.float32)[:, None]
    naive = float(np.mean(x**2, dtype=np.float32) - np.mean(x, dtype=np.float32) ** 2)
    assert abs(naive - 1) > 0.5  # the peers' answer, 0 or 2.8
    assert abs(Statistics().update(x).variance()[0] - 1) < 0.02


def test_worked_column_table():
    table = torch.tensor([[1.0, 4, 7], [2, 5, 8], [3, 6, 9], [4, 7, 10], [5, 8, 11]])
    statistics = Statistics().update(table)
    assert statistics.mean.tolist() == [3, 6, 9]
    assert statistics.std().round(6).tolist() == [1.414214] * 3
    assert statistics.std(ddof=1).round(6).tolist() == [1.581139] * 3
    assert statistics.m2.tolist() == [10, 10, 10]


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_count_as_repeated_rows(weighted):
    x = np.random.default_rng(1).normal(size=(20, 2))
    times = np.random.default_rng(2).integers(0, 4, 20)
    repeated = Statistics().update(np.repeat(x, times, axis=0))
    counted = Statistics().update(x, weight=times.astype(float) if weighted else times)
    assert np.allclose(counted.variance(), repeated.variance(), rtol=1e-13)
    assert np.allclose(counted.mean, repeated.mean, rtol=1e-13)
    assert (counted.count == repeated.count).all()
    with pytest.raises(InvalidInputError, match="weight"):
        Statistics().update(x, weight=-times - 1.0)


@pytest.mark.parametrize(
    ("axis", "reduced", "shape"),
    [(-1, (0, 1), (4,)), (1, (0, 2), (5,)), ((1, 2), (0,), (20,)), (0, (1, 2), (3,))],
    ids=["feature", "step", "step and feature", "sample"],
)
def test_axes(axis, reduced, shape):
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    statistics = Statistics(axis=axis).update(x)
    assert statistics.mean.shape == shape
    assert np.allclose(statistics.mean, x.mean(reduced).flatten().numpy(), atol=1e-15)
    assert np.allclose(statistics.variance(), x.var(reduced, correction=0).flatten().numpy())


def test_masks_leave_padding_out():
    batch = torch.tensor([[1.0, 2, 3, 4], [1, 2, 3, 0], [1, 2, 0, 0]])[..., None]  # lengths 4, 3, 2
    mask = torch.arange(4) < torch.tensor([[4], [3], [2]])
    polluted, masked = Statistics(axis=1).update(batch), Statistics(axis=1).update(batch, mask=mask)
    assert polluted.mean[2] == 2.0
    assert (masked.mean == [1, 2, 3, 4]).all()
    assert (masked.variance() == 0).all()
    assert (masked.count == [3, 3, 2, 1]).all()
    assert (masked.missing == 0).all()


def test_masks_and_missing_values_are_told_apart():
    x = np.array([[1.0, np.nan], [np.nan, 4.0], [3.0, 6.0]])
    mask = np.array([[True, False], [True, True], [True, True]])
    statistics = Statistics().update(x, mask=mask)
    assert statistics.missing.tolist() == [1, 0]
    assert statistics.count.tolist() == [2, 2]
    assert statistics.mean.tolist() == [2, 5]
    with pytest.raises(InvalidInputError, match="Booleans"):
        Statistics().update(x, mask=mask.astype(float))
    with pytest.raises(InvalidInputError, match="shape"):
        Statistics().update(x, mask=mask[:2])


def test_nan_policies():
    x = np.array([[1.0, np.nan], [3.0, 4.0]])
    assert Statistics(nan_policy="omit").update(x).mean.tolist() == [2, 4]
    propagated = Statistics(nan_policy="propagate", quantiles=True).update(x)
    assert propagated.mean[0] == 2
    for found in (propagated.mean, propagated.variance(), propagated.minimum, propagated.quantile(0.5)):
        assert np.isnan(found[1])
        assert not np.isnan(found[0])
    refusing = Statistics(names=["a", "b"], nan_policy="raise").update(x[1:])
    with pytest.raises(InvalidInputError, match=r"1 features: b \(1\)"):
        refusing.update(x)
    assert refusing.count.tolist() == [1, 1]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_infinities_are_counted_and_enter_as_ieee_says(size):
    x = np.array([[1.0, np.inf, np.inf, -np.inf], [2, 1, -np.inf, 1], [3, np.inf, 1, 1], [4, 1, 1, 1]])
    statistics = merge_all(Statistics().update(part) for part in parts(x, size))
    assert statistics.infinite.tolist() == [0, 2, 2, 1]
    assert statistics.mean[:2].tolist() == [2.5, np.inf]
    assert np.isnan(statistics.mean[2])
    assert statistics.mean[3] == -np.inf
    assert np.isnan(statistics.variance()[1:]).all()
    assert statistics.variance()[0] == 1.25


def test_merging_needs_like_and_like():
    one = Statistics(names=["a"]).update(np.ones((2, 1)))
    for other in (
        Statistics(names=["b"]),
        Statistics(2),
        Statistics(axis=0),
        Statistics(quantiles=True),
        Statistics(nan_policy="raise"),
    ):
        with pytest.raises(InvalidInputError, match="merge"):
            one.merge(other)
    counted = Statistics(quantiles=True).update(np.ones((2, 1), np.uint8))
    with pytest.raises(InvalidInputError, match="one dtype"):
        counted.merge(Statistics(quantiles=True).update(np.ones((2, 1))))
    with pytest.raises(InvalidInputError, match="one dtype"):
        counted.update(np.ones((2, 1)))
    assert counted.rows == 2
    with pytest.raises(InvalidArgumentError, match="at least one"):
        merge_all([])


@pytest.mark.parametrize(
    "options",
    [{"nan_policy": "drop"}, {"sketch_size": 2}, {"features": -1}, {"features": 2, "names": ["a"]}],
)
def test_bad_options(options):
    with pytest.raises(InvalidArgumentError):
        Statistics(**options)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (np.ones(3), InvalidInputError),
        (np.ones((2, 4)), InvalidInputError),
        (np.array([["a", "b", "c"]]), InvalidTypeError),
        (np.array([[object()] * 3]), InvalidTypeError),
        (np.ones((2, 3), complex), InvalidTypeError),
        (torch.ones(2, 3, dtype=torch.complex64), InvalidTypeError),
        (torch.ones(2, 3, device="meta"), InvalidInputError),
    ],
)
def test_bad_batches(batch, error):
    statistics = Statistics(3)
    with pytest.raises(error):
        statistics.update(batch)
    assert statistics.rows == 0


@pytest.mark.parametrize("part", ["batch", "weight", "mask"])
def test_tensors_without_values_are_refused_in_one_line(part):
    given = {"batch": torch.ones(2, 3), "weight": torch.ones(2), "mask": torch.ones(2, 3, dtype=torch.bool)}
    given[part] = given[part].to("meta")
    statistics = Statistics(quantiles=part == "batch")
    with pytest.raises(InvalidInputError, match=r"expected values, but the tensor of shape \(2.*meta device") as caught:
        statistics.update(given.pop("batch"), **given)
    assert "\n" not in str(caught.value)
    assert statistics.rows == 0


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "?", "f2", "f4", "f8", "g", ">f4"])
def test_every_numeric_dtype(dtype):
    x = np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype)
    assert Statistics().update(x).mean.tolist() == pytest.approx([2 / 3, 2 / 3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint16, torch.int64])
def test_tensor_dtypes(dtype):
    assert Statistics().update(torch.tensor([[1, 2], [3, 4]]).to(dtype)).mean.tolist() == [2, 3]


def test_memory_is_shared_and_never_written(tmp_path):
    x = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    expected = Statistics().update(x).to_bytes()
    read_only = x.copy()
    read_only.flags.writeable = False
    views = (
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        read_only,
        np.asfortranarray(x),
        np.repeat(x, 2, axis=1)[:, ::2],
        x[::-1][::-1],
    )
    for view in views:
        found = Statistics().update(view)
        assert np.allclose(found.variance(), Statistics.from_bytes(expected).variance(), rtol=1e-14)
    assert np.allclose(Statistics().update(x[::-1]).mean, x.astype(float).mean(0))


def test_frames_are_read_by_name():
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    data = {"a": [1.0, 2.0], "b": [10.0, 30.0]}
    for frame in (pandas.DataFrame(data), polars.DataFrame(data)):
        statistics = Statistics().update(frame)
        assert statistics.names == ("a", "b")
        statistics.update(frame[["b", "a"]])
        assert statistics.mean.tolist() == [1.5, 20]
        with pytest.raises(InvalidInputError, match="lacks the columns b"):
            statistics.update(frame[["a"]])


def test_groups():
    x = np.random.default_rng(0).normal(size=(60, 2))
    keys = np.random.default_rng(1).integers(0, 4, 60)
    mask = x > -1
    groups = GroupStatistics(quantiles=True)
    for part in parts(np.arange(60), 13):
        groups.update(x[part], keys[part], mask=mask[part])
    assert list(groups) == [0, 1, 2, 3]
    assert len(groups) == 4
    restored = GroupStatistics.from_bytes(groups.to_bytes())
    for key in groups:
        expected = np.nanmean(np.where(mask, x, np.nan)[keys == key], axis=0)
        assert np.allclose(groups[key].mean, expected)
        assert (restored[key].mean == groups[key].mean).all()
    merged = GroupStatistics(quantiles=True).update(x, ["a"] * 60).merge(groups)
    assert list(merged) == [0, 1, 2, 3, "a"]
    merged.update(x, ["b"] * 60)
    assert groups[0].rows == (keys == 0).sum()  # what was merged is a copy
    with pytest.raises(InvalidInputError, match="keys"):
        groups.update(x, keys[:3])


def test_masked_rows_of_weight_0_are_not_missing():
    x, valid = np.array([[1.0], [np.nan], [3.0], [np.nan]]), np.array([[False], [True], [True], [True]])
    found = Statistics().update(x, weight=[0, 1, 1, 0], mask=valid)
    assert (found.missing.tolist(), found.count.tolist(), found.mean.tolist()) == ([1], [1.0], [3.0])


def test_a_refused_frame_leaves_no_names():
    found = Statistics(nan_policy="raise")
    with pytest.raises(InvalidInputError, match=r"missing values in 1 features: a \(1\)"):
        found.update(pd.DataFrame({"a": [1.0, np.nan]}))
    assert found.update(pd.DataFrame({"b": [1.0]})).names == ("b",)


def test_keys_are_dense():
    with pytest.raises(InvalidTypeError, match="expected a dense tensor"):
        GroupStatistics().update(np.eye(3), torch.ones(3).to_sparse())


def test_merge_all_takes_statistics_alone():
    with pytest.raises(InvalidTypeError, match="merge_all: expected Statistics, but got Tensor"):
        merge_all(torch.zeros(6))
