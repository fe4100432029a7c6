"""The results of the operators on fake tensors: dtypes, shapes and layouts alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._spec import ROW_STATISTICS, ChannelOptions, RowOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def _contiguous(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


def _gradient(parameter: Tensor | None, needed: bool, like: Tensor) -> Tensor:
    return _contiguous(parameter) if needed and parameter is not None else like.new_empty(0)


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def rows_inference(x: Tensor, weight: Tensor | None, bias: Any, axes: int, *options: Any) -> Tensor:
    """y, in the promoted dtype of x and weight where it is rounded early."""
    early = RowOptions(*options).early and weight is not None
    return _contiguous(x, torch.promote_types(x.dtype, weight.dtype) if early and weight is not None else x.dtype)


def rows_forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Any, axes: int, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the sum in residual's dtype, and the statistics of each row as columns.

    These are the mean in two parts, the reciprocal scale, and the slope of the scale where eps bends it.
    """
    code = RowOptions(*options[:-1])
    width = (2 if code.statistic == ROW_STATISTICS["moments"] else 0) + 1 + (1 if code.eps_mode else 0)
    statistics = x.new_empty((math.prod(x.shape[: x.ndim - axes]), width), dtype=_compute_dtype(x))
    total = x.new_empty(0) if residual is None else _contiguous(x, residual.dtype)
    return rows_inference(x, weight, bias, axes, *code), total, statistics


def rows_backward(
    dy: Tensor,
    dsum: Any,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    axes: int,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, dresidual, dweight and dbias; one that is not needed is empty, and so is dresidual in dx's dtype."""
    early = RowOptions(*options[:6]).early
    need_dx, need_dresidual, need_dweight, need_dbias, _ = options[6:]
    stream = x.dtype if residual is None else residual.dtype
    shared = dy.dtype == stream
    dx = _contiguous(x, x.dtype if early else dy.dtype) if need_dx or (shared and need_dresidual) else dy.new_empty(0)
    dresidual = _contiguous(x, stream) if need_dresidual and not shared else dy.new_empty(0, dtype=stream)
    return dx, dresidual, _gradient(weight, need_dweight, statistics), _gradient(bias, need_dbias, statistics)


def _in_format(x: Tensor) -> Tensor:
    """Channels-last where the input is that alone, otherwise contiguous."""
    for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.ndim == ndim and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return torch.empty_like(x, memory_format=layout)
    return _contiguous(x)


def channels_forward(
    x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, mask: Any, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the statistics of each channel or group as columns, and their variances."""
    code = ChannelOptions(*options)
    groups = 0 if mean is not None else x.shape[1] if code.groups < 0 else code.groups
    count = x.shape[0] * groups if groups else x.shape[1]
    statistics = x.new_empty((count, 5 if code.eps_mode else 4), dtype=_compute_dtype(x))
    return _in_format(x), statistics, x.new_empty((count,), dtype=_compute_dtype(x))


def channels_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: Tensor, mask: Any, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dweight and dbias; one that is not needed is empty."""
    need_dx, need_dweight, need_dbias = options[-3:]
    dx = _in_format(x) if need_dx else x.new_empty(0)
    return dx, _gradient(weight, need_dweight, x), _gradient(bias, need_dbias, x)


def _moments(shape: tuple[int, ...], weighted: bool, device: torch.device | str) -> tuple[Tensor, ...]:
    counts = [torch.empty(shape, dtype=torch.int64, device=device) for _ in range(3)]
    numbers = [torch.empty(shape, dtype=torch.float64, device=device) for _ in range(6)]
    return (numbers[0] if weighted else counts[0], *numbers[1:5], *counts[1:], numbers[5])


def column_moments(x: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
    """The eight fields of the moments of (tables, rows, columns)."""
    return _moments((x.shape[0], x.shape[2]), weight is not None, x.device)


def separate_column_moments(columns: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The eight fields of the moments of a list of columns."""
    return _moments((len(columns),), False, columns[0].device if columns else "cpu")


def stored_by_columns(x: Tensor) -> bool:
    """Whether a matrix has dense columns and no dense rows; a single row or column has both."""
    return x.ndim == 2 and min(x.shape) > 1 and x.stride(0) == 1 and x.stride(1) >= x.shape[0]


def column_affine(
    x: Tensor,
    shift: Any,
    scale: Any,
    offset: Any,
    low: Any,
    high: Any,
    dtype: torch.dtype,
    infinite: Any = None,
) -> Tensor:
    """A tensor of x's shape, stored by columns where x is."""
    if stored_by_columns(x):
        return x.new_empty((x.shape[1], x.shape[0]), dtype=dtype).t()
    return x.new_empty(x.shape, dtype=dtype)


def image_normalize(images: Tensor, mean: Any, std: Any, max_value: Any, dtype: torch.dtype) -> Tensor:
    """Contiguous planes."""
    return images.new_empty(images.shape, dtype=dtype)


def nothing(*arguments: object) -> None:
    """The result of an operator that writes into its ``out``."""
