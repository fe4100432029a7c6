"""Pickles written before `data` had packages are still loaded: they name modules that are gone."""

import pickle
import re

import numpy as np
import pytest

from evenkeel.data import (
    FitProgress,
    GroupStatistics,
    ImageStatistics,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
    Statistics,
)

X = np.array([[1, 10], [3, 30]], dtype=np.uint8)
ITEMS = {
    "progress": lambda: FitProgress(1, 2, 3, 4),
    "histograms": lambda: Statistics(quantiles=True).update(X),
    "sketches": lambda: Statistics(quantiles=True).update(X.astype(float)),
    "groups": lambda: GroupStatistics().update(X, ["a", "b"]),
    "images": lambda: ImageStatistics().update(np.dstack([X, X, X]), layout="HWC"),
    "standard": lambda: StandardScaler().fit(X),
    "minmax": lambda: MinMaxScaler().fit(X),
    "maxabs": lambda: MaxAbsScaler().fit(X),
    "robust": lambda: RobustScaler().fit(X),
}
FORMER = {
    "FitProgress": "_fit",
    "GroupStatistics": "_groups",
    "Histograms": "_quantiles",
    "ImageStatistics": "_images",
    "MaxAbsScaler": "_scalers",
    "MinMaxScaler": "_scalers",
    "Moments": "_moments",
    "RobustScaler": "_robust",
    "Sketches": "_quantiles",
    "StandardScaler": "_scalers",
    "Statistics": "_statistics",
}


@pytest.mark.parametrize("kind", ITEMS)
def test_former_names_of_modules_are_found(kind):
    now = pickle.dumps(ITEMS[kind](), protocol=0)  # the protocol that writes names as lines of text

    def rename(name):
        return f"cevenkeel.data.{FORMER[name[1].decode()]}\n{name[1].decode()}\n".encode()

    former, names = re.subn(rb"cevenkeel\.data\.[\w.]+\n(\w+)\n", rename, now)
    assert names
    assert former != now
    assert pickle.dumps(pickle.loads(former)) == pickle.dumps(pickle.loads(now))
