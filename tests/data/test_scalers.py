"""The scalers: scikit-learn's contract, and what they do beyond it."""

import copy
import io
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from evenkeel import EvenkeelError, InvalidArgumentError, InvalidInputError
from evenkeel.data import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler, Statistics
from evenkeel.data._base import Scaler

SCALERS = [StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler]
VARIANTS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    StandardScaler(with_std=False),
    StandardScaler(with_mean=False, with_std=False),
    MinMaxScaler(),
    MinMaxScaler(feature_range=(-2, 3), clip=True),
    MaxAbsScaler(),
    MaxAbsScaler(clip=True),
    RobustScaler(),
    RobustScaler(quantile_range=(10.0, 80.0), unit_variance=True),
    RobustScaler(with_centering=False, with_scaling=False),
]
each_scaler = pytest.mark.parametrize("kind", SCALERS)
each_variant = pytest.mark.parametrize("scaler", VARIANTS, ids=repr)


def table(rows=60, dtype=np.float64):
    random = np.random.default_rng(0)
    return (random.normal(size=(rows, 3)) * [1, 10, 0.1] + [0, 50, -3]).astype(dtype)


def peer(scaler):
    """scikit-learn's scaler with the same arguments."""
    kind = getattr(sklearn.preprocessing, type(scaler).__name__)
    own = ("ddof", "constant", "on_mismatch", "sketch_size")
    return kind(**{name: value for name, value in scaler.get_params().items() if name not in own})


@parametrize_with_checks([kind() for kind in SCALERS] + [StandardScaler(with_mean=False)])
@pytest.mark.filterwarnings("default")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@each_variant
@pytest.mark.parametrize("missing", [False, True])
def test_results_and_attributes_are_scikit_learns(scaler, missing):
    x = table()
    if missing:
        x[::5, 1] = np.nan
    ours, theirs = clone(scaler).fit(x), peer(scaler).fit(x)
    assert np.allclose(ours.transform(x), theirs.transform(x), rtol=1e-13, atol=1e-14, equal_nan=True)
    new = table(7)
    assert np.allclose(ours.inverse_transform(new), theirs.inverse_transform(new), rtol=1e-13)
    learned = {name for name in vars(theirs) if name.endswith("_") and not name.startswith("_")}
    for name in learned:
        expected = getattr(theirs, name)
        found = getattr(ours, name)
        if expected is None:
            assert found is None
        else:
            assert np.allclose(found, expected, rtol=1e-13, equal_nan=True), name
    assert (ours.get_feature_names_out(["a", "b", "c"]) == ["a", "b", "c"]).all()


@each_scaler
def test_parts_and_merges_give_what_the_whole_gives(kind):
    x = table(200)
    whole, in_parts = kind().fit(x), kind()
    for start in range(0, 200, 30):
        in_parts.partial_fit(x[start : start + 30])
    others = [kind().partial_fit(part) for part in np.array_split(x, 3)]
    merged = others[0].merge(others[1]).merge(others[2])
    for scaler in (in_parts, merged):
        # 200 values fit into a sketch, so even the quantiles are exact
        assert np.allclose(scaler.transform(x), whole.transform(x), rtol=1e-13, atol=1e-14)
        assert scaler.statistics_.rows == 200
    built = kind.from_statistics(Statistics(quantiles=True, names=["a", "b", "c"]).update(x))
    assert np.allclose(
        built.transform(pd.DataFrame(x, columns=list("abc"))), whole.transform(x), rtol=1e-13, atol=1e-14
    )
    assert built.n_features_in_ == 3
    assert built.get_feature_names_out().tolist() == ["a", "b", "c"]


def test_merging_refuses_what_does_not_fit():
    scaler = StandardScaler().fit(table())
    for other in (MinMaxScaler().fit(table()), StandardScaler().fit(table()[:, :2])):
        with pytest.raises(InvalidInputError, match="merge"):
            scaler.merge(other)
    with pytest.raises(InvalidInputError, match="columns"):
        StandardScaler.from_statistics(Statistics(axis=0).update(table()))
    with pytest.raises(InvalidInputError, match="infinities"):
        StandardScaler.from_statistics(Statistics().update(np.array([[np.inf], [1.0]])))
    with pytest.raises(InvalidInputError, match="quantiles=True"):
        RobustScaler.from_statistics(Statistics().update(table()))


def test_robust_scaler_needs_no_sketches_in_memory(monkeypatch):
    table = np.random.default_rng(0).normal(size=(50, 2))
    wanted = RobustScaler().fit_transform(table)
    monkeypatch.setitem(sys.modules, "datasketches", None)
    scaler = RobustScaler().fit(table)
    assert np.array_equal(scaler.transform(table), wanted)
    for call in (lambda: scaler.partial_fit(table), lambda: scaler.merge(RobustScaler().fit(table))):
        with pytest.raises(InvalidInputError, match="without the package datasketches"):
            call()
    with pytest.raises(EvenkeelError, match=r"pip install 'evenkeel\[data\]'"):
        RobustScaler().partial_fit(table)


def test_robust_scaler_is_exact_in_memory_and_sketched_beyond():
    x = np.random.default_rng(0).lognormal(size=(30_000, 2))
    exact = RobustScaler(sketch_size=512).fit(x)
    assert (exact.center_ == np.median(x, axis=0)).all()
    sketched = RobustScaler(sketch_size=512)
    for part in np.array_split(x, 10):
        sketched.partial_fit(part)
    bound = 2 * sketched.statistics_.quantile_error
    ranks = (np.sort(x, axis=0) < sketched.center_).mean(0)
    assert (sketched.center_ != exact.center_).any()
    assert np.abs(ranks - 0.5).max() < bound
    assert copy.deepcopy(exact).merge(sketched).statistics_.rows == 60_000
    matrix = RobustScaler(with_centering=False).fit(sparse.csr_matrix(x))
    for act in (matrix.partial_fit, sketched.partial_fit):
        with pytest.raises(InvalidInputError, match="sparse"):
            act(sparse.csr_matrix(x))


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("mean", "std"), [(1e4, 1), (1e6, 0.01), (1e8, 1)])
def test_variance_survives_large_means(mean, std, dtype):
    x = np.random.default_rng(0).normal(mean, std, (2000, 1)).astype(dtype)
    wide = x.astype(np.longdouble)
    variance = float(((wide - wide.mean()) ** 2).mean())
    scaler = StandardScaler()
    for part in np.array_split(x, 7):
        scaler.partial_fit(part)
    assert scaler.var_[0] == pytest.approx(variance, rel=1e-12)


def test_many_rows_around_a_large_mean_are_not_taken_for_a_constant():
    # 1e8 rows of N(1e6, 0.01): scikit-learn's bound, which grows with the rows, calls them constant
    statistics = Statistics().update(np.random.default_rng(0).normal(1e6, 0.01, (1000, 1)))
    for _ in range(17):
        statistics.merge(copy.deepcopy(statistics))
    assert statistics.rows > 1e8
    scaler = StandardScaler.from_statistics(statistics)
    assert scaler.scale_[0] == pytest.approx(0.01, rel=0.1)
    assert not scaler.constant_.any()


def test_sample_deviation():
    x = np.array([[1.0, 4, 7], [2, 5, 8], [3, 6, 9], [4, 7, 10], [5, 8, 11]])
    assert StandardScaler(ddof=1).fit(x).scale_.round(6).tolist() == [1.581139] * 3
    population = StandardScaler().fit(x)
    assert population.scale_.round(6).tolist() == [1.414214] * 3
    for column in population.transform(x).T:
        assert column.round(6).tolist() == [-1.414214, -0.707107, 0, 0.707107, 1.414214]


@each_scaler
def test_constant_features(kind):
    x = table(20)
    x[:, 1] = 0.0  # constant for every rule
    noisy = x + np.array([0, 1e-9, 0])
    plain = kind().fit(x)
    assert plain.scale_[1] == 1
    assert plain.constant_.tolist() == [False, True, False]
    assert np.abs(plain.transform(noisy)[:, 1]).max() < 1e-8  # noise is not amplified
    zeroed = kind(constant="zero").fit(x).transform(noisy + np.array([0, 5, 0]))
    assert (zeroed[:, 1] == 0).all()
    assert np.allclose(zeroed[:, [0, 2]], plain.transform(noisy)[:, [0, 2]])
    assert np.allclose(kind(constant="zero").fit(x).inverse_transform(zeroed)[:, 1], 0)
    with pytest.raises(InvalidInputError, match="1 features are constant: b; drop them"):
        kind(constant="raise").fit(pd.DataFrame(x, columns=list("abc")))
    grown = kind(constant="raise").partial_fit(x[:1])  # one row is always constant: the verdict waits
    with pytest.raises(InvalidInputError, match="constant"):
        grown.transform(x)
    assert np.isfinite(grown.partial_fit(table(20)).transform(x)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: StandardScaler(constant="two").fit(table()),
        lambda: MinMaxScaler(on_mismatch="shout").fit(table()),
        lambda: MinMaxScaler(feature_range=(1, 1)).fit(table()),
        lambda: RobustScaler(quantile_range=(75, 25)).fit(table()),
    ],
)
def test_bad_options(make):
    with pytest.raises(InvalidArgumentError):
        make()


@each_scaler
def test_bad_data(kind):
    scaler = kind().fit(table())
    for bad in (table()[:, :2], torch.ones(3, 2), np.ones(3), torch.tensor(1.0)):
        with pytest.raises(ValueError):
            scaler.transform(bad)
    for bad in (torch.ones(3), torch.ones(0, 3), np.array([["x"]])):
        with pytest.raises((ValueError, TypeError)):
            kind().fit(bad)
    before = scaler.statistics_.to_bytes()
    for act in (scaler.partial_fit, scaler.transform):
        with pytest.raises(ValueError, match="infinity"):
            act(np.array([[1.0, np.inf, 1.0]]))
    with pytest.raises(ValueError, match="infinity"):
        scaler.partial_fit(torch.tensor([[1.0, torch.inf, 1.0]]))
    assert scaler.statistics_.to_bytes() == before
    frame = pd.DataFrame(table(), columns=list("abc"))
    scaler = kind().fit(frame)
    with pytest.raises(ValueError, match="order"):
        scaler.transform(frame[list("bac")])


@each_scaler
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_infinities_are_found_as_the_table_is_mapped(kind, backend, monkeypatch):
    """Far from the start, beside NaN and the largest number, in every layout; a refused array stays as it was."""
    if backend == "reference":
        monkeypatch.setattr("evenkeel.kernels._ops._MISSING", "taken away")
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


@pytest.mark.parametrize("ratio", [10.0, 30.0])
def test_unequal_scales_slow_gradient_descent_down_and_standardizing_mends_it(ratio):
    x = np.random.default_rng(0).normal(size=(400, 2)) * [1, ratio]
    target = x @ [1.0, 1 / ratio]

    def steps(features):
        """Steps until the residual has fallen to a thousandth, each as long as is stable."""
        weight, residual = np.zeros(2), target - target.mean()
        step = 1 / np.linalg.eigvalsh(features.T @ features).max()
        for count in range(40_000):
            if np.linalg.norm(features @ weight - residual) < 1e-3 * np.linalg.norm(residual):
                return count
            weight -= step * features.T @ (features @ weight - residual)
        raise AssertionError("gradient descent did not arrive")

    assert steps(StandardScaler().fit_transform(x)) < 20
    assert steps(x - x.mean(0)) > ratio**2  # the condition number


def test_scalers_are_of_one_kind_and_travel():
    from joblib import dump, load

    for kind in SCALERS:
        scaler = kind().fit(table())
        assert isinstance(scaler, Scaler)
        file = io.BytesIO()
        dump(scaler, file)
        file.seek(0)
        assert (load(file).transform(table()) == scaler.transform(table())).all()


def test_scikit_learn_is_imported_when_a_scaler_is(monkeypatch):
    import importlib
    import subprocess
    import sys

    heavy = {"datasketches", "pandas", "PIL", "polars", "pyarrow", "ray", "scipy", "sklearn"}
    code = f"import sys, evenkeel.data; print(sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    from evenkeel.data import _base

    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    spec = importlib.util.spec_from_file_location("evenkeel.data._without", _base.__file__)
    with pytest.raises(EvenkeelError, match=r"evenkeel\[data\]"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    import evenkeel.data

    with pytest.raises(AttributeError, match="NoScaler"):
        _ = evenkeel.data.NoScaler
