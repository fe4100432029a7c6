"""What every functional norm shares: option checks, the arithmetic dtype, eps, affine and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import torch
from torch.autograd import forward_ad

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._spec import Cast, EpsMode

if TYPE_CHECKING:
    from torch import Tensor

EPS_MODES = get_args(EpsMode)
CASTS = get_args(Cast)


def check_options(name: str, eps_mode: str, cast: str = "late") -> None:
    """Raise `InvalidArgumentError` unless eps_mode and cast are known."""
    if eps_mode not in EPS_MODES:
        raise InvalidArgumentError(f"{name}: eps_mode must be one of {', '.join(EPS_MODES)}, but got {eps_mode!r}")
    if cast not in CASTS:
        raise InvalidArgumentError(f"{name}: cast must be one of {', '.join(CASTS)}, but got {cast!r}")


def check_floating(name: str, input: Tensor) -> None:
    """Raise `InvalidInputError` unless the input has a floating dtype."""
    if not input.dtype.is_floating_point:
        raise InvalidInputError(
            f"{name}: expected a floating-point input, but got {input.dtype}; convert it first, e.g. input.float()"
        )


def arithmetic_dtype(input: Tensor) -> torch.dtype:
    """The dtype statistics are computed in: float64 for float64 input, float32 for every other."""
    return torch.float64 if input.dtype == torch.float64 else torch.float32


def default_eps(input: Tensor) -> float:
    """The machine epsilon of the arithmetic, which is what ``eps=None`` stands for."""
    return torch.finfo(arithmetic_dtype(input)).eps


def composite_required() -> bool:
    """Whether a functorch transform or a forward-mode level is active, which only plain PyTorch code serves."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def reciprocal_scale(square: Tensor, eps: float, eps_mode: str) -> Tensor:
    """1/scale for a variance or mean square: 1/sqrt(v + eps), 1/(sqrt(v) + eps) or 1/max(sqrt(v), eps)."""
    if eps_mode == "inside":
        return torch.rsqrt(square + eps)
    # sqrt has an infinite slope at 0, which would turn the gradient of a constant row into NaN: its slope is 0 here.
    zero = square == 0
    root = torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt())
    return 1.0 / (root + eps if eps_mode == "outside" else root.clamp_min(eps))


def apply_affine(
    normalized: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    weight_offset: float,
    dtype: torch.dtype,
    cast: str,
) -> Tensor:
    """normalized * (weight_offset + weight) + bias, rounded to ``dtype`` at the end (late) or before it (early)."""
    early = cast == "early"
    arithmetic = normalized.dtype
    result = dtype
    if early:
        normalized = normalized.to(dtype)
        for parameter in (weight, bias):
            result = result if parameter is None else torch.promote_types(result, parameter.dtype)
    if weight is not None:
        scale = weight
        if weight_offset != 0.0:
            scale = weight.to(torch.promote_types(weight.dtype, torch.float32)) + weight_offset
        normalized = normalized * (scale if early else scale.to(arithmetic))
    if bias is not None:
        normalized = normalized + (bias if early else bias.to(arithmetic))
    return normalized.to(result)


def centred_moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Centred values, mean and biased variance over ``dims``.

    The mean of the differences is subtracted once more: where the mean is large against the spread, the first
    mean carries a rounding error as large as the spread.
    """
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    correction = centred.mean(dims, keepdim=True)
    centred = centred - correction
    return centred, mean + correction, centred.square().mean(dims, keepdim=True)
