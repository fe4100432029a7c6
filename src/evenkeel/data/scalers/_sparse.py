"""Moments of the columns of SciPy's sparse matrices, whose zeros are values like any other."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.sparsefuncs import inplace_column_scale, mean_variance_axis, min_max_axis

from evenkeel.data.statistics import Array, Moments, exact_percentiles


def sparse_moments(x: Any, weight: Array | None) -> Moments:
    """The state of one block; x is CSR or CSC with float64 values."""
    moments = plain_moments(x, weight)
    columns = moments.out_of_range()
    if not columns.any():
        return moments
    exponent, scaled = moments.units(columns), x.copy()
    half = -exponent // 2
    inplace_column_scale(scaled, np.ldexp(1.0, half))
    inplace_column_scale(scaled, np.ldexp(1.0, -exponent - half))
    sums = plain_moments(scaled, weight)
    return moments._replace(total=sums.total, m2=sums.m2, exponent=exponent)


def plain_moments(x: Any, weight: Array | None) -> Moments:
    """The state of one block as scikit-learn computes it, which leaves the range of float64 where squares do."""
    with np.errstate(all="ignore"):
        mean, variance, count = mean_variance_axis(x, axis=0, weights=weight, return_sum_weights=True)
        squares, sums = variance * count, mean * count
    minimum, maximum = min_max_axis(x, axis=0, ignore_nan=True)
    entries = x.tocoo()
    features = x.shape[1]

    def per_column(mask: Array) -> Array:
        return np.bincount(entries.col[mask], minlength=features).astype(np.int64)

    infinite = per_column(np.isinf(entries.data))
    empty = count == 0
    m2 = np.where(infinite > 0, np.nan, np.where(empty, 0.0, squares))
    total = np.where(infinite > 0, np.nan, np.where(empty, 0.0, sums))
    return Moments(
        count=count.astype(np.float64 if weight is not None else np.int64),
        total=total.astype(np.float64),
        total_low=np.zeros(features),
        m2=m2.astype(np.float64),
        minimum=np.where(empty, np.inf, minimum).astype(np.float64),
        maximum=np.where(empty, -np.inf, maximum).astype(np.float64),
        missing=per_column(np.isnan(entries.data)),
        infinite=infinite,
    )


def sparse_quantiles(x: Any, percentages: Any) -> Array:
    """Percentiles of each column (percentages, features), zeros included, NaN left out."""
    x, rows = x.tocsc(), x.shape[0]
    quantiles = []
    for start, end in zip(x.indptr[:-1], x.indptr[1:], strict=True):
        column = np.zeros(rows)
        column[: end - start] = x.data[start:end]
        quantiles.append(exact_percentiles(column, percentages))
    return np.transpose(quantiles)
