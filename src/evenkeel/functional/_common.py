"""What every functional norm shares: option checks, the arithmetic dtype, eps, affine and masks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch.autograd import forward_ad

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._spec import Cast, EpsMode

if TYPE_CHECKING:
    from torch import Tensor

EPS_MODES = get_args(EpsMode)
CASTS = get_args(Cast)
DEFAULT_OPTIONS = {
    "eps_mode": "inside",
    "weight_offset": 0.0,
    "cast": "late",
    "backend": "auto",
    "mask": None,
    "out": None,
    "memory_efficient": False,
    "residual_rounding": "rounded",
    "activation": None,
}


def check_options(name: str, eps_mode: str, cast: str = "late") -> None:
    """Raise `InvalidArgumentError` unless eps_mode and cast are known."""
    if eps_mode not in EPS_MODES:
        raise InvalidArgumentError(f"{name}: eps_mode must be one of {', '.join(EPS_MODES)}, but got {eps_mode!r}")
    if cast not in CASTS:
        raise InvalidArgumentError(f"{name}: cast must be one of {', '.join(CASTS)}, but got {cast!r}")


def check_floating(name: str, label: str, tensor: Tensor) -> None:
    """Raise `InvalidInputError` unless a tensor has a floating dtype."""
    if not tensor.dtype.is_floating_point:
        raise InvalidInputError(
            f"{name}: expected a floating-point {label}, but got {tensor.dtype}; convert it first, e.g. {label}.float()"
        )


def changed_options(**options: Any) -> dict[str, Any]:
    """The keyword-only options that differ from their defaults.

    What `__torch_function__` of a tensor subclass is called with: one that knows torch's function of the same name
    then takes ours too, as long as no option asks for more than torch has.
    """
    return {name: value for name, value in options.items() if value != DEFAULT_OPTIONS[name]}


def arithmetic_dtype(input: Tensor) -> torch.dtype:
    """The dtype statistics are computed in: float64 for float64 input, float32 for every other."""
    return torch.float64 if input.dtype == torch.float64 else torch.float32


def default_eps(input: Tensor) -> float:
    """The machine epsilon of the arithmetic, which is what ``eps=None`` stands for."""
    return 2.0**-52 if input.dtype == torch.float64 else 2.0**-23  # torch.finfo takes 2 µs


# looking names up in torch takes as long as calling what they name
_has_transforms, _is_tracing = torch._C._are_functorch_transforms_active, torch.jit.is_tracing
_is_exporting = torch.compiler.is_exporting


def composite_required() -> bool:
    """Whether only plain code serves: a functorch transform, a forward-mode level, jit tracing or export is active."""
    return _has_transforms() or forward_ad._current_level >= 0 or _is_tracing() or _is_exporting()


def range_scale(
    x: Tensor, dims: list[int], eps: float, eps_mode: str, valid: Tensor | None = None
) -> tuple[Tensor, Tensor] | None:
    """A power of two for each row that brings its values near 1, and eps scaled along.

    Only values that are ``valid`` count, where that is given.

    None in float64, and for nested tensors, jit tracing and export, which cannot view floats as integers.

    float32 squares of values from 1e18 on overflow, and those of values below 1e-20 lose bits. Scaling by a power of
    two is exact, so other rows keep their bits. Where eps decides, values smaller than it need no bits: they are
    scaled as if they were as large.
    """
    traced = torch.jit.is_tracing() or torch.compiler.is_exporting()
    if x.dtype != torch.float32 or x.is_nested or traced or x.numel() == 0:
        return None
    floor = max(math.sqrt(abs(eps)) if eps_mode == "inside" else abs(eps), 2.0**-126)
    sizes = x.detach().abs() if valid is None else torch.where(valid, x.detach().abs(), 0.0)
    largest = sizes.amax(dims, keepdim=True).clamp(floor, 2.0**126)
    power = (largest.view(torch.int32) & 0x7F800000).view(torch.float32)  # the largest power of two below
    scale = power.reciprocal()
    return scale, eps * scale * (scale if eps_mode == "inside" else 1.0)  # in this order: the square may overflow


def reciprocal_scale(square: Tensor, eps: float | Tensor, eps_mode: str) -> Tensor:
    """1/scale for a variance or mean square: 1/sqrt(v + eps), 1/(sqrt(v) + eps) or 1/max(sqrt(v), eps)."""
    if eps_mode == "inside":
        return torch.rsqrt(square + eps)
    # sqrt has an infinite slope at 0, which would turn the gradient of a constant row into NaN: its slope is 0 here.
    zero = square == 0
    root = torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt())
    return 1.0 / (root + eps if eps_mode == "outside" else torch.clamp(root, min=eps))


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
