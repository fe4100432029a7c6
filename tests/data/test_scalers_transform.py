"""What scalers do to a table: containers and dtypes, gradients, digits, infinities, and where the results go."""

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
import torch
from scaler_cases import SCALERS, each_scaler, each_variant, peer, table
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline, make_pipeline

from evenkeel import EvenkeelError, InvalidInputError
from evenkeel.data import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler


@each_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_come_back_as_tensors(scaler, dtype):
    x = torch.from_numpy(table()).to(dtype)
    fitted = clone(scaler).fit(x)
    y = fitted.transform(x)
    assert isinstance(y, torch.Tensor)
    assert y.dtype == dtype
    expected = peer(scaler).fit(x.double().numpy()).transform(x.double().numpy())
    # one rounding to the tensor's dtype
    assert torch.allclose(y.double(), torch.from_numpy(expected), rtol=torch.finfo(dtype).eps, atol=1e-13)
    back = fitted.inverse_transform(y)
    assert isinstance(back, torch.Tensor)
    assert fitted.transform(torch.ones(2, 5, 3, dtype=torch.int32)).dtype == torch.float32


@each_variant
def test_parts_of_a_frame_are_those_of_the_whole(scaler):
    frame = pd.DataFrame(table(20, np.float32), columns=list("abc"))  # of one dtype: stored by columns
    fitted = clone(scaler).fit(frame).set_output(transform="default")
    whole = fitted.transform(frame)
    for part in (slice(0, 1), slice(7, 8), slice(0, 2)):
        assert np.array_equal(fitted.transform(frame.iloc[part]), whole[part])
        out = np.zeros_like(whole[part])
        fitted.transform(frame.iloc[part], out=out)
        assert np.array_equal(out, whole[part])


@each_scaler
def test_gradients_flow_through_transform(kind):
    x = torch.from_numpy(table(12)).requires_grad_()
    scaler = kind().fit(x)
    cotangent = torch.randn(12, 3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(scaler.transform(x), x, cotangent)
    slope = scaler.transform(torch.eye(3).double()) - scaler.transform(torch.zeros(3, 3).double())
    assert torch.allclose(gradient, cotangent * slope.diagonal(), rtol=1e-12)
    assert torch.autograd.gradcheck(scaler.transform, (x,))
    (gradient,) = torch.autograd.grad(scaler.inverse_transform(x), x, cotangent)
    assert torch.allclose(gradient, cotangent / slope.diagonal(), rtol=1e-10)


@each_scaler
def test_float32_keeps_its_digits_at_large_means(kind):
    x = (np.random.default_rng(0).normal(size=(500, 2)) * 4 + [1e6, -1e7]).astype(np.float32)
    y = kind().fit(x).transform(x)
    exact = kind().fit(x.astype(np.float64)).transform(x.astype(np.float64))
    assert y.dtype == np.float32
    assert np.abs(y - exact).max() <= np.abs(exact).max() * 2**-24  # rounded once
    assert np.abs(kind().fit(x).transform(torch.from_numpy(x)).numpy() - exact).max() <= np.abs(exact).max() * 2**-24


@each_scaler
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_infinities_are_found_as_the_table_is_mapped(kind, backend, monkeypatch):
    """Far from the start, beside NaN and the largest number, in every layout; a refused array stays as it was."""
    if backend == "reference":
        monkeypatch.setattr("evenkeel.kernels._cpu.MISSING", "taken away")
    big = np.finfo(np.float32).max / 4
    scaler = kind().fit(np.array([[-big] * 3, [big] * 3], np.float32))
    clean = np.zeros((40_001, 3), np.float32)
    clean[5], clean[7], clean[8] = np.nan, np.finfo(np.float32).max, -np.finfo(np.float32).max
    out = np.empty_like(clean)
    layouts = (np.ascontiguousarray, np.asfortranarray, lambda x: np.repeat(x, 2, 1)[:, ::2], lambda x: x[::-1])
    for layout in layouts:
        x = layout(clean)
        wanted = scaler.transform(x.copy())
        assert scaler.transform(x, out=out) is out
        for found in (out, scaler.transform(x), kind(copy=False).fit(clean).transform(x.copy()), wanted):
            assert np.isnan(found).sum() == 3
        for value in (np.inf, -np.inf):
            for row in (8, 40_000):
                bad = layout(clean.copy())
                bad[row, 1] = value
                kept = bad.copy()
                scaler.copy = True
                for call in (scaler.transform, scaler.inverse_transform, lambda x: scaler.transform(x, out=out)):
                    with pytest.raises(InvalidInputError, match=r"Input X contains infinity .* dtype\('float32'\)"):
                        call(bad)
                scaler.copy = False
                for call in (scaler.transform, scaler.inverse_transform, lambda x: scaler.transform(x, out=x)):
                    with pytest.raises(InvalidInputError, match="infinity"):
                        call(bad if bad.strides[0] > 0 else bad.copy())
                scaler.copy = True
                np.testing.assert_array_equal(bad, kept)
    with sklearn.config_context(assume_finite=True):
        assert np.isinf(scaler.transform(bad)).sum() >= 1


@each_variant
@pytest.mark.parametrize("kind", ["array", "frame", "tensor", "integers", "float16", "Fortran"])
def test_results_go_where_they_are_asked_to(scaler, kind):
    x = table(dtype=np.float32)
    scaler = clone(scaler).fit(x)
    given = {
        "array": x,
        "frame": pd.DataFrame(x),
        "tensor": torch.from_numpy(x),
        "integers": x.astype(np.int64),
        "float16": x.astype(np.float16),
        "Fortran": np.asfortranarray(x),
    }[kind]
    wanted = np.asarray(scaler.transform(given if kind != "float16" else given.astype(np.float32)), np.float32)
    for out in (np.empty_like(x), np.empty((120, 6), np.float32)[::2, ::2], np.empty((3, 60), np.float32).T):
        target = torch.from_numpy(out) if kind == "tensor" else out
        assert scaler.transform(given, out=target) is target
        np.testing.assert_array_equal(out, wanted)
    if kind == "array":
        assert scaler.transform(x, out=x) is x
        np.testing.assert_array_equal(x, wanted)


def test_bad_places_for_results():
    scaler, x = StandardScaler().fit(table()), table()
    locked = np.empty_like(x)
    locked.flags.writeable = False
    for out, message in (
        (np.empty((3, 3)), "shape"),
        (locked, "read-only"),
        (np.empty(x.shape, np.int64), "int64"),
        (np.empty(x.shape, ">f8"), "float64, but got >f8"),
        (np.empty(x.shape)[::-1], "strides"),
        (torch.empty(x.shape), "NumPy array, but got Tensor"),
        ([0.0], "NumPy array, but got list"),
    ):
        with pytest.raises(EvenkeelError, match=message):
            scaler.transform(x, out=out)
    with pytest.raises(EvenkeelError, match="a tensor, as X is one"):
        scaler.transform(torch.from_numpy(x), out=x)
    with pytest.raises(EvenkeelError, match="single memory location"):
        scaler.transform(x[:-1], out=x[1:])
    with pytest.raises(EvenkeelError, match="dense input"):
        MaxAbsScaler().fit(x).transform(sparse.csr_matrix(x), out=x)


@each_scaler
def test_reversed_views_are_scaled_without_a_copy_too(kind):
    x = table()
    scaler = kind(copy=False).fit(x)
    for view in (x[::-1], x[:, ::-1]):
        np.testing.assert_array_equal(scaler.transform(view.copy()), scaler.transform(view))


@each_scaler
def test_copy_says_whether_memory_is_shared(kind):
    x = table(dtype=np.float32)
    kept = x.copy()
    assert not np.shares_memory(kind().fit(x).transform(x), x)
    assert (x == kept).all()
    y = kind(copy=False).fit(x).transform(x)
    assert np.shares_memory(y, x)
    assert np.allclose(y, kind().fit(kept).transform(kept))
    tensor = torch.from_numpy(kept.copy())
    kind(copy=False).fit(tensor).transform(tensor)
    assert (tensor.numpy() == kept).all()  # tensors are never written to


def test_pipeline_column_transformer_and_frames():
    frame = pd.DataFrame(table(), columns=["a", "b", "c"])
    target = frame["a"] * 2 + frame["b"]
    assert make_pipeline(StandardScaler(), LinearRegression()).fit(frame, target).score(frame, target) > 1 - 1e-12
    columns = ColumnTransformer([("std", StandardScaler(), ["a"]), ("range", MinMaxScaler(), ["b", "c"])])
    y = Pipeline([("scale", columns)]).set_output(transform="pandas").fit_transform(frame)
    assert list(y.columns) == ["std__a", "range__b", "range__c"]
    assert y["range__b"].min() == 0
    scaled = RobustScaler().set_output(transform="polars").fit_transform(frame)
    assert scaled.columns == ["a", "b", "c"]
    weighted = StandardScaler().fit(frame, sample_weight=np.arange(60.0))
    assert np.allclose(weighted.mean_, np.average(table(), axis=0, weights=np.arange(60)))
    assert np.allclose(
        StandardScaler().fit(torch.from_numpy(table()), sample_weight=torch.arange(60)).mean_, weighted.mean_
    )


@pytest.mark.parametrize("container", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    "scaler", [StandardScaler(with_mean=False), MaxAbsScaler(), RobustScaler(with_centering=False)], ids=repr
)
def test_sparse_matrices(scaler, container, missing):
    x = np.random.default_rng(0).normal(size=(40, 3)) * (np.random.default_rng(1).random((40, 3)) < 0.4)
    if missing:
        x[3, 1] = np.nan
    fitted, dense = clone(scaler).fit(container(x)), clone(scaler).fit(x)
    y = fitted.transform(container(x))
    assert sparse.issparse(y)
    assert np.allclose(y.toarray(), dense.transform(x), rtol=1e-12, equal_nan=True)
    assert np.allclose(fitted.inverse_transform(y).toarray(), x, rtol=1e-12, equal_nan=True)
    assert np.allclose(fitted.statistics_.mean, dense.statistics_.mean, rtol=1e-12)
    assert (fitted.statistics_.missing == dense.statistics_.missing).all()
    with pytest.raises(ValueError, match="infinity"):
        clone(scaler).fit(container(np.array([[np.inf, 0.0, 1.0]])))
    if not isinstance(scaler, MaxAbsScaler):
        with pytest.raises(InvalidInputError, match="center"):
            type(scaler)().fit(container(x))


def test_integers_are_read_as_they_are():
    x = np.random.default_rng(0).integers(0, 255, (50, 3)).astype(np.uint8)
    for kind in SCALERS:
        scaler = kind().fit(x)
        assert scaler.statistics_.dtypes == ("uint8",)
        assert scaler.transform(x).dtype == np.float64
        assert np.allclose(scaler.inverse_transform(scaler.transform(x)), x)
