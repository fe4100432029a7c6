"""The scalers: scikit-learn's contract, and what they do beyond it."""

import copy
import io
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scaler_cases import SCALERS, each_scaler, each_variant, peer, table
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from evenkeel import EvenkeelError, InvalidArgumentError, InvalidInputError
from evenkeel.data import MinMaxScaler, RobustScaler, StandardScaler, Statistics
from evenkeel.data.scalers import Scaler


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
    from evenkeel.data.scalers import _base

    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    spec = importlib.util.spec_from_file_location("evenkeel.data._without", _base.__file__)
    with pytest.raises(EvenkeelError, match=r"evenkeel\[data\]"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    import evenkeel.data

    with pytest.raises(AttributeError, match="NoScaler"):
        _ = evenkeel.data.NoScaler


@pytest.mark.parametrize("value", [2, 10**30])
def test_a_switch_may_be_any_number_but_0(value):
    x = np.array([[1.0, 2.0], [1.0, 3.0]])
    found = StandardScaler(with_std=value).fit(x)
    assert found.constant_.tolist() == [True, False]
