"""While a program is exported, a norm becomes torch's own operator, so that it runs where evenkeel is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from evenkeel.functional._common import apply_affine, arithmetic_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Standard = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def exports_as_standard(eps_mode: str, valid: Tensor | None = None) -> bool:
    """Whether a program is being exported and torch has an operator for this norm: eps inside the root, no mask."""
    return torch.compiler.is_exporting() and eps_mode == "inside" and valid is None


def standard(
    operator: Standard,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    weight_offset: float,
    cast: str,
    affine: Callable[..., Tensor] = apply_affine,
) -> Tensor:
    """torch's operator in the dtype of our arithmetic, with our offset and our order of rounding around it."""
    wide = input.to(arithmetic_dtype(input))
    if cast == "early":
        return affine(operator(wide, None, None), weight, bias, weight_offset, input.dtype, cast)
    scale = None if weight is None else weight.to(wide.dtype)
    if scale is not None and weight_offset != 0.0:
        scale = scale + weight_offset
    return operator(wide, scale, None if bias is None else bias.to(wide.dtype)).to(input.dtype)


def standard_rows(shape: tuple[int, ...], center: bool, eps: float) -> Standard:
    """layer_norm or rms_norm over the trailing ``shape``."""
    if center:
        return lambda x, weight, bias: F.layer_norm(x, shape, weight, bias, eps)
    return lambda x, weight, bias: F.rms_norm(x, shape, weight, eps)


def standard_channels(remembered: tuple[Tensor, Tensor] | None, over_batch: bool, eps: float) -> Standard:
    """batch_norm, with remembered statistics where there are some, or instance_norm."""
    if remembered is not None:
        mean, variance = remembered
        return lambda x, w, b: F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), w, b, eps=eps)
    if over_batch:
        return lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=eps)
    return lambda x, w, b: F.instance_norm(x, None, None, w, b, eps=eps)


def standard_groups(groups: int, eps: float) -> Standard:
    """group_norm."""
    return lambda x, weight, bias: F.group_norm(x, groups, weight, bias, eps)
