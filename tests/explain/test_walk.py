"""`walk`: golden values, definitions against an independent computation, and what is said of difficult inputs."""

import itertools
import json
import math
import sys

import numpy as np
import pytest
import torch

import evenkeel as ek
from evenkeel.explain import Check, Explanation, Step, walk
from evenkeel.explain._norms import NORMS as TABLE

NORMS = tuple(norm.key for norm in TABLE)
MODES = ("inside", "outside", "clamp")
LAYERS = NORMS[:5]
CASES = [
    (norm, shape, mode)
    for norm, shape in itertools.product(NORMS, [(6,), (4, 3), (2, 3, 5), (2, 3, 4, 5)])
    for mode in (MODES if norm in LAYERS else (None,))
    if norm != "image" or 3 in (shape[-1], shape[0], shape[1 % len(shape)] if len(shape) == 4 else 0)
]
walk_module = sys.modules["evenkeel.explain._walk"]


def output(x, norm, **options):
    return walk(x, norm, **options).step("output").value


def six(values):
    return [round(float(v), 6) + 0.0 for v in np.ravel(values)]


def check(explanation, name) -> Check:
    return next(check for check in explanation.checks if check.id == name)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [-1.341635, -0.447212, 0.447212, 1.341635]),
        ({"eps_mode": "outside"}, [-1.341629, -0.447210, 0.447210, 1.341629]),
        ({"eps": 0.0}, [-1.341641, -0.447214, 0.447214, 1.341641]),
    ],
)
def test_layer_norm_of_1_2_3_4(options, expected):
    e = walk([1, 2, 3, 4], "layer", **options)
    assert six(e.step("output").value) == expected
    assert e.step("mean").value.tolist() == [2.5]
    assert e.step("variance").value.tolist() == [1.25]
    assert six(e.step("std").value) == [1.118034]


def test_column_table_has_both_deviations():
    table = [[1, 4, 7], [2, 5, 8], [3, 6, 9], [4, 7, 10], [5, 8, 11]]
    e = walk(table, "standardize")
    assert e.step("mean").value.tolist() == [3.0, 6.0, 9.0]
    assert six(e.step("std").value) == [1.414214] * 3
    assert six(e.step("sample_std").value) == [1.581139] * 3
    assert six(e.step("output").value[:, 1]) == [-1.414214, -0.707107, 0.0, 0.707107, 1.414214]
    assert six(output(table, "standardize", correction=1)[:, 0]) == six(np.array([-2, -1, 0, 1, 2]) / math.sqrt(2.5))


def test_batch_norm_example_and_its_inverse():
    batch = [[3, 1], [4, 2], [5, 3]]
    e = walk(batch, "batch", weight=[2, 0.5], bias=[1, 0])
    assert e.step("mean").value.tolist() == [4.0, 2.0]
    assert six(e.step("variance").value) == [0.666667] * 2
    assert six(e.step("normalized").value[:, 0]) == [-1.224736, 0.0, 1.224736]
    assert six(e.step("output").value) == [-1.449471, -0.612368, 1.0, 0.0, 3.449471, 0.612368]
    gamma = e.step("denominator").value
    assert six(gamma) == [0.816503] * 2
    assert np.allclose(output(batch, "batch", weight=gamma, bias=[4, 2]), batch, atol=1e-12)
    assert output(batch, "batch", weight=0.0, bias=[4, 2]).tolist() == [[4.0, 2.0]] * 3


def test_image_constants():
    assert six(output([120, 100, 90], "image")) == [-0.062933, -0.285014, -0.235817]


def test_padding_pollutes_batch_statistics_and_a_mask_does_not():
    step = [[3.0], [3.0], [0.0]]
    assert [round(v, 4) for v in output(step, "batch").ravel()] == [0.7071, 0.7071, -1.4142]
    masked = walk(step, "batch", mask=[1, 1, 0])
    assert masked.step("output").value.ravel().tolist() == [0.0, 0.0, 0.0]
    assert masked.step("groups").value.ravel().tolist() == [0.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("eps", "expected"),
    [(1e-5, [0.2289, -0.5618, 1.1860, -0.5202]), (0.0, [0.2294, -0.5630, 1.1885, -0.5213])],
)
def test_elements_of_a_512_wide_vector(eps, expected):
    y = output([0.146, 0.108, 0.192, 0.110], "layer", mean=0.135, variance=0.0023, eps=eps)
    assert [round(v, 4) for v in y.tolist()] == expected


def test_rms_norm_eps_inside_and_outside_differ():
    x = [1e-4] * 8
    assert round(output(x, "rms", eps=1e-6)[0], 4) == 0.0995
    assert round(output(x, "rms", eps=1e-6, eps_mode="outside")[0], 3) == 0.990
    assert walk(x, "rms", eps=1e-6).step("eps_effect").value[0] == pytest.approx(90.05, abs=0.01)


@pytest.mark.parametrize(("norm", "shape", "mode"), CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_every_check_holds(norm, shape, mode, dtype):
    options = {"eps_mode": mode} if mode else {}
    x = torch.randn(shape, dtype=torch.float64) * 3 + 2
    e = walk(x, norm, dtype=dtype, backward=True, **options)
    assert [c for c in e.checks if not c.passed] == []
    assert "library" in {c.id for c in e.checks}
    assert all(isinstance(step, Step) and step.meaning and step.title and step.formula for step in e.steps)


@pytest.mark.parametrize("norm", LAYERS)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_with_random_upstream_agree_with_autograd(norm, mode):
    x, g = torch.randn(2, 4, 5, dtype=torch.float64) * 2, torch.randn(2, 4, 5, dtype=torch.float64)
    width = 5 if norm in ("layer", "rms") else 4
    weight = torch.randn(width, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(width, dtype=torch.float64, requires_grad=True)
    x.requires_grad_()
    F = ek.functional
    calls = {
        "layer": lambda: F.layer_norm(x, (5,), weight, bias, 0.1, eps_mode=mode, weight_offset=1.0),
        "rms": lambda: F.rms_norm(x, (5,), weight, 0.1, eps_mode=mode, weight_offset=1.0),
        "batch": lambda: F.batch_norm(x, None, None, weight, bias, True, eps=0.1, eps_mode=mode, weight_offset=1.0),
        "instance": lambda: F.instance_norm(x, None, None, weight, bias, eps=0.1, eps_mode=mode, weight_offset=1.0),
        "group": lambda: F.group_norm(x, 2, weight, bias, 0.1, eps_mode=mode, weight_offset=1.0),
    }
    y = calls[norm]()
    parameters = [weight] if norm == "rms" else [weight, bias]
    wanted = torch.autograd.grad(y, [x, *parameters], g)
    options = {"weight": weight, "eps": 0.1, "eps_mode": mode, "weight_offset": 1.0}
    options |= {} if norm == "rms" else {"bias": bias}
    options |= {"groups": 2} if norm == "group" else {}
    e = walk(x, norm, **options, backward=True, upstream=g)
    assert np.allclose(e.step("output").value, y.detach(), atol=1e-12)
    for name, gradient in zip(("dx", "dweight", "dbias"), wanted, strict=False):
        assert np.allclose(e.step(name).value, gradient, atol=1e-11), name
    shares = sum(e.step(s).value for s in ("share_one", "share_xhat", "share_kept") if e.has_step(s))
    assert np.allclose(shares, 100.0)


def test_removed_directions_are_all_of_a_gradient_along_them():
    x = np.array([1.0, 2.0, 4.0, 9.0])
    xhat = output(x, "layer", eps=0.0)
    assert walk(x, backward=True, upstream=np.ones(4)).step("share_one").value[0] == pytest.approx(100.0)
    along = walk(x, backward=True, upstream=xhat, eps=0.0)
    assert along.step("share_xhat").value[0] == pytest.approx(100.0)
    assert np.abs(along.step("dx").value).max() < 1e-14


def test_a_wrong_step_fails_its_checks(monkeypatch):
    real = walk_module.forward
    monkeypatch.setattr(walk_module, "forward", lambda rows: real(rows) | {"normalized": real(rows)["centred"] + 1.0})
    failed = {c.id for c in walk([1.0, 2.0, 5.0], backward=True).checks if not c.passed}
    assert {"mean_zero", "std_one"} <= failed
    monkeypatch.setattr(walk_module, "forward", lambda rows: real(rows) | {"output": real(rows)["output"] * 1.001})
    assert "library" in {c.id for c in walk([1.0, 2.0, 5.0]).checks if not c.passed}
    back = walk_module.backward
    monkeypatch.setattr(walk_module, "forward", real)
    monkeypatch.setattr(walk_module, "backward", lambda *a: back(*a) | {"dx": back(*a)["dx"] * 1.001})
    failed = {c.id for c in walk([1.0, 2.0, 5.0], backward=True).checks if not c.passed}
    assert {"finite_difference", "autograd"} <= failed


@pytest.mark.parametrize("norm", ["layer", "rms", "standardize", "minmax", "batch", "instance", "group"])
def test_masked_elements_change_nothing(norm):
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    mask = torch.rand(3, 4, 6) > 0.3
    first = walk(x, norm, mask=mask, backward=True)
    polluted = walk(torch.where(mask, x, math.nan), norm, mask=mask, backward=True)
    for step in first.steps[1:]:
        assert np.array_equal(step.value, polluted.step(step.id).value, equal_nan=True), step.id
    assert [c for c in first.checks if not c.passed] == []
    assert (first.step("output").value[~mask.numpy()] == 0).all()


def test_masks_without_the_channel_axis_are_the_librarys():
    x, mask = torch.randn(4, 3, 5), torch.arange(5) < torch.tensor([[5], [3], [2], [1]])
    e = walk(x, "batch", mask=mask)
    wanted = ek.functional.batch_norm(x, None, None, training=True, mask=mask)
    assert np.allclose(e.step("output").value, wanted, atol=1e-6)
    assert check(e, "library").passed


@pytest.mark.parametrize("norm", ["layer", "rms", "minmax"])
def test_a_mask_that_leaves_nothing_gives_zeros(norm):
    e = walk([3.0, 4.0], norm, mask=[0, 0], backward=True)
    assert e.step("output").value.tolist() == e.step("dx").value.tolist() == [0.0, 0.0]
    assert [c for c in e.checks if not c.passed] == []


@pytest.mark.parametrize(("mean", "spread"), [(1e6, 1.0), (1e4, 0.01), (0.0, 1e-8)])
def test_a_large_mean_does_not_spoil_the_steps(mean, spread):
    x = (torch.randn(4, 50, dtype=torch.float64) * spread + mean).float()
    e = walk(x, "layer")
    wanted = (x.double() - x.double().mean(1, keepdim=True)).numpy()
    assert np.abs(e.step("centred").value - wanted).max() <= 1e-12 * np.abs(wanted).max() + 4e-16 * mean
    assert [c for c in e.checks if not c.passed] == []


def test_a_constant_vector_says_that_eps_decides():
    e = walk([5.0, 5.0, 5.0], "layer", backward=True)
    assert e.step("output").value.tolist() == [0.0, 0.0, 0.0]
    assert e.step("eps_effect").value.tolist() == [100.0]
    assert "ε = 1e-5 alone makes the divisor 0.00316228" in e.notes[0]
    without = walk([5.0, 5.0, 5.0], "layer", eps=0.0)
    assert np.isnan(without.step("output").value).all()
    assert "0/0 is not a number" in without.notes[0]
    assert output([[5.0, 1.0], [5.0, 2.0]], "standardize")[:, 0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("norm", [n for n in NORMS if n != "image"])
def test_one_element_is_explained(norm):
    e = walk([3.0], norm, backward=True)
    assert e.step("output").value.shape == (1,)
    assert [c for c in e.checks if not c.passed] == []
    if norm == "batch":
        assert "single element" in e.notes[0]


@pytest.mark.parametrize(
    ("bad", "norm", "says"),
    [
        (math.nan, "layer", "NaN at [0, 1]: every statistic it enters becomes NaN"),
        (math.inf, "layer", "inf at [0, 1]: the mean is infinite"),
        (-math.inf, "rms", "inf at [0, 1]: the mean square is infinite"),
        (math.inf, "minmax", "inf at [0, 1]: the range is infinite"),
        (math.nan, "dyt", "NaN at [0, 1]: only these elements are affected"),
    ],
)
def test_non_finite_elements_are_explained(bad, norm, says):
    e = walk([[1.0, bad, 3.0], [4.0, 5.0, 6.0]], norm, backward=True)
    assert e.notes[0].startswith(says)
    axis = 0 if norm == "minmax" else 1
    clean = np.delete(e.step("output").value, 0 if axis else 1, axis=1 - axis)
    assert np.isfinite(clean).all()
    assert check(e, "library").passed


def test_a_million_elements_are_walked():
    x = torch.randn(1000, 1000)
    e = walk(x, "layer")
    assert e.step("output").value.shape == (1000, 1000)
    assert [c for c in e.checks if not c.passed] == []
    assert len(e.step("input").substituted) < 100


def test_the_group_that_is_shown_is_the_one_asked_for():
    e = walk([[1.0, 2.0], [10.0, 30.0]], "layer", show=1)
    assert e.step("mean").substituted == r"\mu = \frac{10 + 30}{2} = 20"
    assert e.shown == 1


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        (["a", "b"], {}, TypeError, "expected numbers, but got text"),
        ([], {}, ValueError, "the input is empty"),
        ([[1, 2], [3]], {}, ValueError, "different lengths"),
        ([1j, 2], {}, TypeError, "expected numbers, but got complex128"),
        ([1.0], {"norm": "laier"}, ValueError, "norm: there is no 'laier'; did you mean layer, "),
        ([1.0, 2.0], {"axis": 1}, ValueError, "axis 1 does not exist: the input has shape (2,)"),
        ([1.0, 2.0], {"axis": "x"}, ValueError, "an axis is a whole number"),
        ([1.0, 2.0], {"groups": 2}, ValueError, "LayerNorm has no option groups"),
        ([1.0, 2.0, 3.0], {"norm": "group", "groups": 2}, ValueError, "groups must divide the 3 channels"),
        ([1.0, 2.0], {"eps": -1.0}, ValueError, "eps must be at least 0"),
        ([1.0, 2.0], {"eps": math.nan}, ValueError, "eps must be one finite number"),
        ([1.0, 2.0], {"eps_mode": "beside"}, ValueError, "eps_mode: expected one of inside, outside, clamp"),
        ([1.0, 2.0], {"weight": [1, 2, 3]}, ValueError, "weight has shape (3,), but this norm needs (2,)"),
        ([1.0, 2.0], {"mask": [2, 1]}, ValueError, "a mask holds True"),
        ([1.0, 2.0], {"mask": [1, 1, 1]}, ValueError, "the mask has shape (3,)"),
        ([1.0, 2.0], {"mean": 1.0}, ValueError, "mean and variance go together"),
        ([1.0, 2.0], {"mean": 1.0, "variance": -1.0}, ValueError, "variance must not be negative"),
        ([1.0, 2.0], {"norm": "minmax", "feature_range": (1, 0)}, ValueError, "low below high"),
        ([1.0, 2.0], {"norm": "image"}, ValueError, "needs an axis with 3 channels"),
        ([1.0, 2.0], {"norm": "standardize", "correction": 2}, ValueError, "correction must be 0"),
        ([1.0, 2.0], {"dtype": "int8"}, ValueError, "dtype: expected one of"),
        ([1.0, 2.0], {"show": 1}, ValueError, "there is no group 1"),
        ([1.0, 2.0], {"upstream": [1.0], "backward": True}, ValueError, "upstream gradient has shape (1,)"),
    ],
)
def test_bad_input_is_one_clear_line(x, options, error, message):
    with pytest.raises(ek.EvenkeelError) as caught:
        walk(x, **options)
    assert isinstance(caught.value, error)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("norm", "shape", "mode"), CASES[::5])
def test_json_round_trip(norm, shape, mode):
    e = walk(torch.randn(shape), norm, backward=True, **({"eps_mode": mode} if mode else {}))
    again = Explanation.from_dict(json.loads(ek.explain.to_json(e)))
    assert again.to_dict() == e.to_dict()
    assert again.step("output").value.tolist() == e.step("output").value.tolist()


@pytest.mark.parametrize("values", ["random", "alternating"])
def test_a_million_elements_pass_their_checks(values):
    # Equal squares are the worst for a sum from left to right: each addition is rounded the same way.
    n = 1_000_000
    x = np.random.default_rng(0).normal(size=n) if values == "random" else np.where(np.arange(n) % 2, 0.1, -0.1)
    assert [c for c in walk(x, backward=True).checks if not c.passed] == []


@pytest.mark.parametrize("x", [[1e300, -1e300], [1e308, 1e308, 1e308]])
def test_an_overflow_is_explained_and_no_check_fails(x):
    explanation = walk(x, backward=True)
    assert "its sums overflow float64" in explanation.notes[0]
    assert "constant" not in " ".join(explanation.notes)
    assert [c for c in explanation.checks if not c.passed] == []


@pytest.mark.parametrize(
    ("x", "start"), [([3.0], "The group has a single"), ([[3.0], [4.0]], "Each group has a single")]
)
def test_single_elements_are_counted(x, start):
    assert walk(x).notes[0].startswith(start)
