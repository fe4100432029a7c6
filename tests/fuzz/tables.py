"""Statistics, scalers and the column functions on random tables, against exact fractions and scikit-learn."""

import copy
import math
import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import sklearn.preprocessing
import torch
from fuzz.checks import Fault, check, check_error
from hypothesis import strategies as st

from evenkeel import EvenkeelError
from evenkeel import functional as F
from evenkeel.data import MaxAbsScaler, MinMaxScaler, StandardScaler, Statistics, merge_all

MEMORY = 3 << 30
EPS = 2.0**-52
KINDS = ("ordinary", "constant", "far", "huge", "tiny", "denormal", "whole", "mixed")
DTYPES = ("float64", "float32", "float16", "int64", "uint8", "int16", "bool")
POLICIES = ("omit", "propagate", "raise")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of one or a few columns, cut into parts that are merged in some order."""

    rows: int = 3
    kinds: tuple[str, ...] = ("ordinary",)
    dtype: str = "float64"
    missing: int = 0  # cells that are NaN
    infinite: int = 0
    cuts: tuple[int, ...] = ()
    order: int = 0
    seed: int = 0
    policy: str = "omit"
    weighted: bool = False

    def values(self):
        generator = np.random.default_rng(self.seed)
        x = np.stack([column(kind, generator, self.rows) for kind in self.kinds], 1)
        with np.errstate(all="ignore"):
            if self.dtype in ("float16", "float32"):
                limit = float(np.finfo(self.dtype).max)
                x = np.clip(x, -limit, limit)
            elif self.dtype != "float64":
                info = np.iinfo("uint8" if self.dtype == "bool" else self.dtype)
                x = np.clip(np.rint(x * 50), max(info.min, -(2**53)), min(info.max, 2**53))
            x = x.astype(self.dtype)
        if x.dtype.kind == "f" and x.size:
            for count, value in ((self.missing, np.nan), (self.infinite, np.inf)):
                x.flat[generator.integers(0, x.size, min(count, x.size))] = value
        return x

    def weights(self):
        return np.random.default_rng(self.seed + 1).integers(0, 4, self.rows).astype(float) if self.weighted else None


def column(kind, generator, rows):
    """Values of one regime, in float64."""
    normal, draw = generator.normal(size=rows), generator.random()
    return {
        "ordinary": lambda: normal,
        "constant": lambda: np.full(rows, 200 * draw - 100),
        "far": lambda: 1e8 * (1 + draw) + normal,
        "huge": lambda: normal * 10.0 ** (100 + 205 * draw),
        "tiny": lambda: normal * 10.0 ** (-100 - 200 * draw),
        "denormal": lambda: normal * 1e-316,
        "whole": lambda: np.rint(normal * 5),
        "mixed": lambda: normal * 10.0 ** generator.integers(-30, 30, rows),
    }[kind]()


tables = st.builds(
    Table,
    rows=st.one_of(st.integers(0, 40), st.sampled_from([300, 1025])),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(DTYPES),
    missing=st.integers(0, 5),
    infinite=st.sampled_from([0, 0, 0, 1, 2]),
    cuts=st.lists(st.floats(0, 1).map(lambda f: round(f * 40)), max_size=4).map(lambda c: tuple(sorted(c))),
    order=st.integers(0, 99),
    seed=st.integers(0, 999),
    policy=st.sampled_from(POLICIES),
    weighted=st.booleans(),
)


def exact_moments(values, weights):
    """Count, mean and sum of squared differences of finite numbers, as fractions."""
    numbers = [
        (Fraction(float(v)), Fraction(w)) for v, w in zip(values, weights, strict=True) if w and not math.isnan(v)
    ]
    count = sum(w for _, w in numbers)
    mean = sum(v * w for v, w in numbers) / count if count else Fraction(0)
    return count, mean, sum(w * (v - mean) ** 2 for v, w in numbers)


def as_float(fraction):
    try:
        return float(fraction)
    except OverflowError:
        return math.inf


def close(found, exact, relative, absolute=0.0):
    exact = as_float(exact)
    return found == exact or abs(found - exact) <= relative * abs(exact) + absolute + 1e-307


def check_moments(case, found, x, label):
    """Counts, range and missing are exact; mean to its last bit or so, squares to a few digits of theirs."""
    weights = np.ones(case.rows) if case.weights() is None else case.weights()
    for c in range(x.shape[1]):
        values = [float(v) for v in x[:, c]]
        used = [v for v, w in zip(values, weights, strict=True) if w]
        numbers = [v for v in used if not math.isnan(v)]
        check(int(found.missing[c]) == len(used) - len(numbers), f"{label}: missing")
        check(int(found.infinite[c]) == sum(map(math.isinf, numbers)), f"{label}: infinite")
        if not numbers or any(map(math.isinf, numbers)):
            continue
        if case.policy == "propagate" and len(numbers) < len(used):
            continue
        count, mean, m2 = exact_moments(values, weights)
        check(float(found.count[c]) == count, f"{label}: count")
        check(float(found.minimum[c]) == min(numbers), f"{label}: minimum")
        check(float(found.maximum[c]) == max(numbers), f"{label}: maximum")
        largest = max(map(abs, numbers))
        if label == "column_moments" and not 1e-140 < largest < 1e150:  # squares leave float64
            continue
        mean_seen = float(found.mean[c])
        check(close(mean_seen, mean, 2 * EPS, 8 * EPS * largest), f"{label}: mean {mean_seen} {as_float(mean)}")
        spread = float(np.sqrt(found.m2[c] / found.count[c]) if label == "column_moments" else found.std()[c])
        exact = root(m2 / count)
        check(close(spread, exact, 1e-11, EPS * largest), f"{label}: deviation {spread} {exact}")


def root(square):
    """The square root of a fraction of any size."""
    if not square:
        return 0.0
    power = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(square / Fraction(4) ** power), power)


def check_statistics(case):
    """Statistics of the parts, merged in any order, are those of the exact table."""
    x, weights = case.values(), case.weights()
    cuts = [min(cut, case.rows) for cut in case.cuts]
    parts = list(
        zip(np.split(x, cuts), np.split(weights, cuts) if case.weighted else [None] * (len(cuts) + 1), strict=True)
    )
    try:
        states = [Statistics(x.shape[1], nan_policy=case.policy).update(p, weight=w) for p, w in parts]
    except EvenkeelError as error:
        check_error(error)
        check(case.policy == "raise" and np.isnan(x.astype(float)).any(), f"Statistics refuses: {error}")
        return
    found = merge_all(copy.deepcopy(states))  # it may use up what it is given
    check_moments(case, found, x, "merge_all")
    chance = random.Random(case.order)
    while len(states) > 1:
        left, right = (states.pop(chance.randrange(len(states))) for _ in range(2))
        states.append(left.merge(right))
    check_moments(case, states[0], x, "merge in some order")
    restored = Statistics.from_bytes(states[0].to_bytes())
    check(restored.to_bytes() == states[0].to_bytes(), "Statistics: other bytes after from_bytes")


def check_columns(case):
    """`column_moments` is exact to the last digits, and `column_affine` is one rounding."""
    x = case.values()
    tensor = torch.from_numpy(x)
    weights = case.weights()
    found = F.column_moments(tensor, weight=None if weights is None else torch.from_numpy(weights))
    check_moments(
        Table(rows=case.rows, kinds=case.kinds, weighted=case.weighted, seed=case.seed), found, x, "column_moments"
    )
    if weights is None and x.shape[0]:
        parts = F.column_moments([column.clone() for column in tensor.unbind(1)])
        check_moments(Table(rows=case.rows, kinds=case.kinds), parts, x, "column_moments")
    shift, scale = (torch.from_numpy(np.random.default_rng(i).normal(size=x.shape[1])) for i in range(2))
    y = F.column_affine(tensor, shift, scale)
    expected = F.column_affine_reference(tensor, shift, scale)
    check(
        torch.allclose(y.double(), expected.double(), rtol=2 * torch.finfo(y.dtype).eps, atol=0, equal_nan=True),
        "column_affine: not the reference's",
    )


SCALERS = {
    "StandardScaler": (StandardScaler, {}),
    "MinMaxScaler": (MinMaxScaler, {}),
    "MaxAbsScaler": (MaxAbsScaler, {}),
    "StandardScaler uncentred": (StandardScaler, {"with_mean": False}),
    "MinMaxScaler clipped": (MinMaxScaler, {"clip": True, "feature_range": (-2.0, 3.0)}),
}


def check_scaler(drawn):
    """The scalers transform as scikit-learn's do, where its sums keep their digits, and invert what they did."""
    case, name = drawn
    x = case.values()
    kind, options = SCALERS[name]
    try:
        scaler = kind(**options).fit(x)
        y = scaler.transform(x)
    except Exception as error:
        check_error(error, ValueError)
        check(case.rows == 0 or case.infinite or len(x) == 0, f"{name} refuses: {error}")
        return
    peer = getattr(sklearn.preprocessing, kind.__name__)(**options)
    with np.errstate(all="ignore"):
        expected = peer.fit_transform(x.astype(np.float64))
    digits = 5e-2 if x.dtype == np.float16 else 1e-4 if x.dtype == np.float32 else 1e-9
    easy = [c for c, kind in enumerate(case.kinds) if kind in ("ordinary", "whole")]
    if not np.allclose(y[:, easy], expected[:, easy], rtol=digits, atol=digits, equal_nan=True):
        raise Fault(f"{name}: not what scikit-learn gives")
    finite = np.isfinite(x.astype(float))
    check(np.isfinite(y.astype(float))[finite].all(), f"{name}: a finite value is no longer finite")
    if "clip" in options or case.dtype != "float64":
        return
    back = scaler.inverse_transform(y)
    size = np.nanmax(np.abs(x), 0, initial=0)
    check(
        (np.abs(back - x)[finite] <= np.broadcast_to(1e-12 * size, x.shape)[finite] + 1e-300).all(), f"{name}: inverse"
    )


PROPERTIES = {
    "statistics": (tables, check_statistics),
    "columns": (tables, check_columns),
    "scalers": (st.tuples(tables, st.sampled_from(list(SCALERS))), check_scaler),
}
