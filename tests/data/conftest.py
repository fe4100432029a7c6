"""The tables that the tests of sources and of fits read."""

import numpy as np
import pytest
from data_sources import ROWS
from parquet_parts import write_part


@pytest.fixture
def table():
    return np.random.default_rng(0).normal([0, 1e4, 1e8], [1, 1, 1], (1000, 3))


@pytest.fixture
def folder(table, tmp_path):
    """A directory of Parquet files of unequal sizes."""
    path = tmp_path / "data"
    path.mkdir()
    for number, part in enumerate(np.split(table, [10, 300, 301, 900])):
        write_part(path, number, part)
    return path


@pytest.fixture
def gappy():
    """(rows, 3) float64, with two missing values."""
    x = np.random.default_rng(0).normal([0, 100, -5], [1, 10, 0.1], (ROWS, 3))
    x[3, 1] = x[7, 1] = np.nan
    return x
