"""The moments of a block of rows, also of columns whose squares leave the range of float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenkeel.data.statistics._moments import Moments, from_column_moments, joined_columns, merge_alike
from evenkeel.functional import column_moments

# Rows of a column that are scaled at a time: 2 MB.
SCALED_ROWS = 1 << 18


def table_moments(x: Tensor | Sequence[Tensor], *, weight: Tensor | None = None) -> Moments:
    """The moments of a (rows, features) tensor, or of columns (rows,) with memory of their own.

    Args:
        x: the tensor, or the columns.
        weight: a number for each row of a tensor; None counts each once.
    """
    moments = from_column_moments(column_moments(x, weight=weight))
    columns = moments.out_of_range()
    if not columns.any():
        return moments
    exponent = moments.units(columns)
    parts = [
        scaled_moments(x[:, index] if isinstance(x, torch.Tensor) else x[index], weight, int(exponent[index]))
        if columns[index]
        else Moments(*(part[index : index + 1] for part in moments[:-1]))
        for index in range(columns.size)
    ]
    sums = joined_columns(parts)
    return moments._replace(total=sums.total, total_low=sums.total_low, m2=sums.m2, exponent=exponent)


def scaled_moments(column: Tensor, weight: Tensor | None, exponent: int) -> Moments:
    """The moments of one column in the unit 2 ** exponent."""
    merged = None
    half = -exponent // 2
    for start in range(0, len(column), SCALED_ROWS):
        part = column[start : start + SCALED_ROWS].double() * 2.0**half * 2.0 ** (-exponent - half)
        share = None if weight is None else weight[start : start + SCALED_ROWS]
        moments = from_column_moments(column_moments(part[:, None], weight=share))
        merged = moments if merged is None else merge_alike(merged, moments)
    assert merged is not None
    return merged
