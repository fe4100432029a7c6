"""The scalers that the tests of scalers run on, and a table for them."""

import numpy as np
import pytest
import sklearn.preprocessing

from evenkeel.data import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

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
