"""Moments of columns: regimes, missing values, bits, layouts, dtypes, edge shapes."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from bits import digest
from column_tables import FLOATS, INTEGERS, SHAPES, every_dtype, every_shape, sample, strided
from settings import on_threads

from evenkeel import BackendError, InvalidInputError
from evenkeel import functional as F


def assert_agree(mine, exact, rtol=1e-13):
    for name, found, wanted in zip(F.ColumnMoments._fields, mine, exact, strict=True):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        if name != "mean_low":  # what is below the last digit differs with the order of the sums
            # 1e-13: sums of up to 40000 float64 terms; a mean near 0 is as exact as the values are large
            scale = exact.maximum.abs().nan_to_num(0, 0, 0).max().item() if name == "mean" and found.numel() else 0
            torch.testing.assert_close(found, wanted, rtol=rtol, atol=rtol * scale, equal_nan=True)


@every_dtype
def test_moments_are_the_references(dtype):
    for shape in SHAPES:
        x = sample(shape, dtype)
        assert_agree(F.column_moments(x, backend="cpu"), F.column_moments_reference(x))


def two_pass(x, centre):
    """The mean less ``centre`` and m2 in long double, which holds the differences from the centre exactly."""
    differences = x.double().numpy().astype(np.longdouble) - centre
    mean = differences.mean(0)
    return mean, ((differences - mean) ** 2).sum(0)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("mean", "spread"), [(0, 1), (1e4, 1), (1e6, 0.01), (1e8, 1), (-1e12, 1)])
def test_large_means_cost_no_digits(mean, spread, dtype, backend):
    x = (mean + spread * torch.randn(20000, 5, dtype=torch.float64)).to(dtype)
    found = F.column_moments(x, backend=backend)
    exact_mean, exact_m2 = two_pass(x, mean)
    assert (abs(found.m2.numpy() - exact_m2) <= 1e-12 * exact_m2).all()
    # both parts together carry the digits that the spread needs, whatever the mean: sums of 20000 differences round
    scale = np.sqrt(exact_m2 / len(x)) + abs(exact_mean)
    assert (abs((found.mean.numpy() - mean) + found.mean_low.numpy() - exact_mean) <= 1e-14 * scale).all()
    assert (found.mean_low.abs() <= 2.0**-53 * found.mean.abs()).all()


@pytest.mark.parametrize("size", [17, 1000, 4096])
def test_parts_merge_to_the_whole(size):
    x = (1e8 + torch.randn(10000, 3, dtype=torch.float64)).float()
    parts = [F.column_moments(part, backend="cpu") for part in x.split(size)]
    count, mean, m2 = torch.zeros(3), torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for part in parts:
        delta, total = (part.mean - 1e8) + part.mean_low - mean, count + part.count
        mean, m2, count = mean + delta * part.count / total, m2 + part.m2 + delta**2 * part.count * count / total, total
    whole = F.column_moments(x, backend="cpu")
    torch.testing.assert_close(m2, whole.m2, rtol=1e-12, atol=0)
    torch.testing.assert_close(mean + 1e8, whole.mean, rtol=1e-15, atol=0)


# a shift that is far from the mean: an outlier or a block first, a trend, and values after missing ones
@pytest.mark.parametrize("kind", ["first", "half", "sorted", "late", "step", "outlier"])
def test_a_bad_shift_is_replaced(kind):
    x = 1e6 + torch.randn(30000, 9, dtype=torch.float64)
    if kind == "first":
        x[:2000] = 1e12
        x[2000:] *= 1e-3
    elif kind == "half":
        x[::2] += 1e9
    elif kind == "sorted":
        x = x.sort(0).values
    elif kind == "late":
        x[:29000] = torch.nan
    elif kind == "step":
        x[: x.shape[0] * 14 // 15] = 5.0
    else:
        x[7, 3] = 1e300
    assert_agree(F.column_moments(x, backend="cpu"), F.column_moments_reference(x), rtol=1e-12)


@every_dtype
@pytest.mark.parametrize("rows", [1, 2, 15, 20001])
def test_constant_columns_have_no_spread(rows, dtype):
    values = torch.tensor([0.0, 1.0, 0.1, 77.7, 3e4]).to(torch.bool if dtype == torch.bool else dtype)
    for backend in ("cpu", "reference"):
        found = F.column_moments(values.expand(rows, 5).clone(), backend=backend)
        assert (found.m2 == 0).all()
        assert torch.equal(found.mean, values.double())
        assert torch.equal(found.mean, found.minimum)
        assert (found.mean_low == 0).all()
    late = torch.full((rows + 2000, 1), torch.nan, dtype=torch.float64)
    late[2000:] = 0.1
    assert F.column_moments(late, backend="cpu").m2.item() == 0


@every_shape
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_missing_and_infinite_values(dtype, shape):
    x = sample(shape, dtype)
    x[torch.rand(shape) < 0.05] = torch.nan
    x[-1, 0] = torch.inf
    x[0, -1] = -torch.inf
    assert_agree(F.column_moments(x, backend="cpu"), F.column_moments_reference(x))
    x[:, 0] = torch.nan
    found = F.column_moments(x, backend="cpu")
    assert_agree(found, F.column_moments_reference(x))
    assert (found.count[0], found.mean[0], found.missing[0]) == (0, 0, shape[0])


def test_infinities_decide_the_mean():
    x = torch.randn(1000, 4)
    x[3, 0], x[4, 1], x[5, 2], x[6, 2] = torch.inf, -torch.inf, torch.inf, -torch.inf
    for backend in ("cpu", "reference"):
        found = F.column_moments(x, backend=backend)
        assert found.infinite.tolist() == [1, 1, 2, 0]
        assert found.mean[:2].tolist() == [torch.inf, -torch.inf]
        assert found.mean[2].isnan()
        assert found.m2.isnan().tolist() == [True, True, True, False]
        assert found.count.tolist() == [1000] * 4


@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.int16], ids=str)
def test_weights(dtype, shape):
    x, weight = sample(shape, dtype), torch.rand(shape[0])
    weight[::3] = 0
    if dtype.is_floating_point:
        x[::3] = torch.nan  # a row of weight 0 does not exist
        x[1::7, 0] = torch.nan
        x[2::7, -1] = torch.inf
    assert_agree(F.column_moments(x, weight=weight, backend="cpu"), F.column_moments_reference(x, weight=weight), 1e-12)
    counts = torch.arange(shape[0]) % 3
    repeated = F.column_moments(x.repeat_interleave(counts, 0))
    weighted = F.column_moments(x, weight=counts.double())
    for name in ("mean", "m2", "minimum", "maximum"):
        mine, wanted = getattr(weighted, name), getattr(repeated, name)
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12, equal_nan=True)


@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8], ids=str)
def test_strides(dtype, shape):
    x = sample(shape, dtype)
    expected = F.column_moments(x, backend="cpu")
    for view, same in strided(x):
        found = F.column_moments(view, backend="cpu")
        assert_agree(found, expected)
        assert not same or all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    expanded = x[:1].expand(50, -1)
    assert_agree(F.column_moments(expanded, backend="cpu"), F.column_moments_reference(expanded))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_separate_columns_are_those_of_tables(backend):
    """Lists: every dtype, unequal lengths, strided, misaligned, missing values, an outlier as a bad shift, no rows."""
    columns = [sample((rows, 1), dtype)[:, 0] for dtype in (*FLOATS, *INTEGERS) for rows in (1, 17, 300000)]
    columns += [torch.randn(400)[::3], torch.randn(400)[1:], torch.ones(()).expand(50), torch.empty(0)]
    columns[-4][::5], columns[-3][7] = torch.nan, 1e30
    found = F.column_moments(columns, backend=backend)
    for index, column in enumerate(columns):
        alone = F.column_moments(column[:, None], backend=backend)
        assert all(torch.equal(a[index], b[0]) for a, b in zip(found, alone, strict=True))


def test_columns_of_tables_stored_by_columns_are_those_they_are_alone():
    columns = torch.randn(4, 1_200_000, dtype=torch.float64)
    alone = F.column_moments(list(columns), backend="cpu")
    for index, column in enumerate(columns):
        table = F.column_moments(column[:, None].expand(-1, 100), backend="cpu")
        assert all(torch.equal(one[index].expand(100), many) for one, many in zip(alone, table, strict=True))


def test_stored_tables_are_not_copied():
    table = torch.randn(1000, 2000).t()
    out = torch.empty(1000, 2000).t()
    before = table.clone()
    F.column_affine(table, torch.zeros(1000), torch.ones(1000), out=out)
    assert torch.equal(out, before)
    assert F.column_affine(table, torch.zeros(1000), torch.ones(1000), backend="cpu").stride() == table.stride()


def digests():
    """A digest of the results for each dtype and shape, with and without missing values and weights."""
    torch.manual_seed(0)
    found = {}
    for dtype in (*FLOATS, torch.uint8, torch.int64):
        for shape in ((1, 40), (3001, 7), (60, 1100)):
            x = sample(shape, dtype)
            numbers = [*F.column_moments(x), *F.column_moments(x, weight=torch.rand(shape[0]))]
            if dtype.is_floating_point:
                x[::5, ::2] = torch.nan
                numbers += F.column_moments(x)
            centre, scale = torch.randn(2, shape[1], dtype=torch.float64)
            numbers += [F.column_affine(x, centre, scale, scale, clip=(-3, 3), dtype=to) for to in FLOATS]
            found[f"{dtype} {shape}"] = digest(numbers)
    return found


def test_threads_do_not_change_a_bit():
    tables = [sample(shape, torch.float32) for shape in (*SHAPES, (400000, 3), (2000, 1000))]
    tables[-1][::1000, 0] = torch.nan
    tables.append(tables[-1].t())
    tables.append([tables[-2][:, 0], *tables[-3].T])
    found = on_threads(lambda: [t for x in tables for t in F.column_moments(x)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_missing_value_changes_nothing_else():
    x = torch.randn(100000, 4, dtype=torch.float64)
    clean = F.column_moments(x)
    x[::100, 2] = torch.nan
    spoiled = F.column_moments(x)
    others = [0, 1, 3]
    assert all(torch.equal(a[others], b[others]) for a, b in zip(clean, spoiled, strict=True))
    assert spoiled.missing[2] == 1000


def test_a_forked_child_finishes():
    program = (
        "import os, torch; from evenkeel import functional as F; x = torch.randn(300000, 3)\n"
        "found = F.column_moments(x); child = os.fork()\n"
        "if child == 0: os._exit(0 if all(map(torch.equal, found, F.column_moments(x))) else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_empty_tables(shape):
    for weight in (None, torch.ones(shape[0])):
        x = torch.zeros(shape)
        assert_agree(F.column_moments(x, weight=weight, backend="cpu"), F.column_moments_reference(x, weight=weight))
    columns = torch.ones(shape[1])
    assert F.column_affine(torch.zeros(shape), columns, columns, backend="cpu").shape == shape


def test_wrong_inputs_say_what_to_do():
    x = torch.ones(4, 3)
    with pytest.raises(InvalidInputError, match="reshape"):
        F.column_moments(torch.ones(4))
    with pytest.raises(InvalidInputError, match=r"columns \(rows,\), but one is torch.float32 of shape \(4, 3\)"):
        F.column_moments([x[:, 0], x])
    with pytest.raises(InvalidInputError, match="one is float"):
        F.column_moments([1.0])
    with pytest.raises(InvalidInputError, match="no columns"):
        F.column_moments([])
    with pytest.raises(InvalidInputError, match="a weight"):
        F.column_moments([x[:, 0]], weight=x[:, 0])
    with pytest.raises(InvalidInputError, match="one real weight for each of the 4 rows"):
        F.column_moments(x, weight=torch.ones(3))
    for bad in (-1.0, torch.nan, torch.inf):
        with pytest.raises(InvalidInputError, match="not negative"):
            F.column_moments(x, weight=torch.tensor([1.0, 1.0, bad, 1.0]))
    with pytest.raises(BackendError, match="it does not take"):
        F.column_moments(torch.ones(4, 3, dtype=torch.uint64), backend="cpu")


def test_more_columns_than_a_small_block_has_counts():
    # int64 results of this size lie in blocks of their own
    found = F.column_moments(torch.ones(2, 1_100_000, dtype=torch.uint8), backend="cpu")
    assert (found.count == 2).all()
    assert not found.missing.any()
    assert not found.infinite.any()
    assert (found.mean == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
def test_operators_pass_opcheck(dtype):
    x, weight, parameters = sample((40, 5), dtype), torch.rand(40, dtype=torch.float64), torch.randn(3, 5).double()
    torch.library.opcheck(torch.ops.evenkeel.column_moments, (x.unsqueeze(0), None))
    torch.library.opcheck(torch.ops.evenkeel.column_moments, (x.unsqueeze(0), weight))
    torch.library.opcheck(torch.ops.evenkeel.separate_column_moments, ([x[:, 0], weight],))
    for table in (x, x.t().contiguous().t()):
        torch.library.opcheck(torch.ops.evenkeel.column_affine, (table, *parameters, None, None, torch.float32))
        out, infinite = torch.empty(40, 5), torch.zeros(1, dtype=torch.bool)
        torch.library.opcheck(torch.ops.evenkeel.column_affine, (table, *parameters, None, None, out.dtype, infinite))
        torch.library.opcheck(torch.ops.evenkeel.column_affine_out, (table, *parameters, -1.0, 1.0, out))
        arguments = (table, *parameters, -1.0, 1.0, out, infinite)
        torch.library.opcheck(torch.ops.evenkeel.column_affine_out, arguments)


@pytest.mark.slow
@pytest.mark.alone
def test_more_than_2_to_the_31_elements():
    x = torch.zeros(2**31 + 100, 1, dtype=torch.uint8)
    x[-7:] = 7
    found = F.column_moments(x, backend="cpu")
    assert (found.count.item(), found.maximum.item()) == (2**31 + 100, 7)
    assert found.mean.item() == 49 / (2**31 + 100)
    wide = F.column_moments(x.view(-1, 4), backend="cpu")
    assert (wide.mean * wide.count).round().sum() == 49
