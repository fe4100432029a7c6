"""The row norms in plain PyTorch: the definition that the kernels are tested against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evenkeel.functional._common import apply_affine, centred_moments, compute_dtype, range_scale, reciprocal_scale
from evenkeel.functional._export import standard, standard_rows

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import NormSpec


def rows_reference(input: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, spec: NormSpec) -> Tensor:
    """Normalize the trailing ``axes`` axes in plain PyTorch; the definition that the kernels are tested against."""
    eps = spec.epsilon(input.dtype)
    operator = standard_rows(tuple(input.shape[input.ndim - axes :]), spec, eps)
    if operator is not None:
        return standard(operator, input, weight, bias, spec)
    x = input.to(compute_dtype(input))
    dims = list(range(-axes, 0))
    scaled_eps: float | Tensor = eps
    scaling = range_scale(x, dims, eps, spec.eps_mode)
    if scaling is not None:
        x, scaled_eps = x * scaling[0], scaling[1]
    if spec.statistic == "moments":
        x, _, square = centred_moments(x, dims)
    elif spec.statistic == "rms":
        square = x.pow(2).mean(dims, keepdim=True)
    else:
        square = x.square().sum(dims, keepdim=True)
    normalized = x * reciprocal_scale(square, scaled_eps, spec.eps_mode)
    return apply_affine(normalized, weight, bias, spec, input.dtype).contiguous()


def sum_dtype(input: Tensor, residual: Tensor) -> torch.dtype:
    """The dtype in which a residual is added: float64 where either addend has it, otherwise float32."""
    return torch.promote_types(compute_dtype(input), compute_dtype(residual))


def add_rows_reference(
    input: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, spec: NormSpec
) -> tuple[Tensor, Tensor]:
    """Add and normalize in plain PyTorch; the definition that the kernels are tested against."""
    wide = sum_dtype(input, residual)
    total = input.to(wide) + residual.to(wide)
    stream = total.to(residual.dtype)
    y = rows_reference(total if spec.residual_rounding == "unrounded" else stream.to(wide), weight, bias, axes, spec)
    return y.to(input.dtype), stream.contiguous()
