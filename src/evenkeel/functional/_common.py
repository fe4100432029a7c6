"""What every functional norm shares: overriding, dtype checks, the compute dtype, scale, affine and moments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import handle_torch_function

from evenkeel._errors import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from evenkeel._spec import NormSpec


def overridden(function: Callable[..., Any], tensors: Sequence[Tensor | None], *args: Any, **options: Any) -> Any:
    """Give a call to the `__torch_function__` of its tensors or of a mode, with the options that differ from defaults.

    A subclass that knows torch's function of the same name then takes ours too, as long as nobody asks for more than
    torch has.
    """
    defaults = function.__kwdefaults__ or {}
    changed = {
        name: value
        for name, value in options.items()
        if name not in defaults or isinstance(value, torch.Tensor) or value != defaults[name]
    }
    return handle_torch_function(function, tensors, *args, **changed)


def check_tensor(name: str, label: str, value: Any, *, jagged: bool = False) -> None:
    """Raise, in torch's words, unless an argument is a dense tensor, or a jagged one where these are welcome."""
    if not isinstance(value, torch.Tensor):
        raise InvalidTypeError(
            f"{name}(): argument '{label}' must be Tensor, not {type(value).__name__}; pass torch.as_tensor({label})"
        )
    if value.layout is torch.strided and not value.is_nested:
        return
    if not value.is_nested:
        raise InvalidInputError(
            f"{name}: expected a dense {label}, but got the layout {value.layout}; pass {label}.to_dense()"
        )
    if value.layout is torch.strided or not jagged:
        raise InvalidInputError(
            f"{name}: does not take a nested {label}; pass {label}.to_padded_tensor(0.0), or its parts one by one"
        )


def check_floating(name: str, label: str, tensor: Tensor, *, jagged: bool = False) -> None:
    """Raise unless an argument is a dense tensor (`check_tensor`) of a floating dtype."""
    check_tensor(name, label, tensor, jagged=jagged)
    if not tensor.dtype.is_floating_point:
        raise InvalidInputError(
            f"{name}: expected a floating-point {label}, but got {tensor.dtype}; convert it first, e.g. {label}.float()"
        )


def compute_dtype(input: Tensor) -> torch.dtype:
    """The dtype statistics are computed in (opmath): float64 for float64 input, float32 for every other."""
    return torch.float64 if input.dtype == torch.float64 else torch.float32


is_grad_enabled = torch.is_grad_enabled  # looking the name up takes as long as the call


def as_number(name: str, label: str, value: Any) -> float:
    """An option as a float: of any number, or a tensor or array that holds one."""
    if not isinstance(value, str | bytes):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise InvalidTypeError(f"{name}(): argument '{label}' must be float, not {type(value).__name__}; pass a number")


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd will ask for a backward; what is no tensor is for the checks to refuse."""
    if is_grad_enabled():
        for tensor in tensors:
            if getattr(tensor, "requires_grad", False):
                return True
    return False


def reference_gradients(
    reference: Callable[..., Tensor], inputs: Sequence[Tensor | None], needed: Sequence[bool], dy: Tensor
) -> list[Tensor | None]:
    """The gradients of a reference in those of its inputs that need one, themselves differentiable where asked for."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # views, so that differentiation stops at this call's inputs where one of them depends on another
        views = [t.view_as(t) if need and t is not None else t for t, need in zip(inputs, needed, strict=True)]
        sources = [t for t, need in zip(views, needed, strict=True) if need and t is not None]
        gradients = iter(torch.autograd.grad(reference(*views), sources, dy, create_graph=create_graph))
    return [next(gradients) if need else None for need in needed]


def range_scale(
    x: Tensor, dims: list[int], eps: float, eps_mode: str, valid: Tensor | None = None
) -> tuple[Tensor, Tensor] | None:
    """A power of two for each row that brings its values near 1, and eps scaled along.

    Only values that are ``valid`` count. None in float64, and for nested tensors, jit tracing and export, which cannot
    view floats as integers.

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
    scaled = eps * scale * (scale if eps_mode == "inside" else 1.0)  # in this order: the square may overflow
    # far below every variance that is not 0, but no 0: a constant row is 0, not 0/0
    return scale, scaled.clamp_min(2.0**-126) if eps > 0 else scaled


def reciprocal_scale(square: Tensor, eps: float | Tensor, eps_mode: str) -> Tensor:
    """1/scale for a variance or mean square: 1/sqrt(v + eps), 1/(sqrt(v) + eps) or 1/max(sqrt(v), eps)."""
    if eps_mode == "inside":
        return torch.rsqrt(square + eps)
    # sqrt has an infinite slope at 0, which would turn the gradient of a constant row into NaN: its slope is 0 here.
    zero = square == 0
    root = torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt())
    return 1.0 / (root + eps if eps_mode == "outside" else torch.clamp(root, min=eps))


def effective_weight(weight: Tensor, spec: NormSpec) -> Tensor:
    """weight_offset + weight, in float32 at least; the weight itself where the offset is 0."""
    if spec.weight_offset == 0.0:
        return weight
    return weight.to(torch.promote_types(weight.dtype, torch.float32)) + spec.weight_offset


def apply_affine(
    normalized: Tensor, weight: Tensor | None, bias: Tensor | None, spec: NormSpec, dtype: torch.dtype
) -> Tensor:
    """normalized * (weight_offset + weight) + bias, rounded to ``dtype`` at the end (late) or before it (early).

    Where the cast is ``weight``, the normalized value is rounded before it too, to the dtype of a weight of 16 bits.
    """
    early = spec.cast == "early" or (spec.cast == "weight" and weight is not None)
    arithmetic = normalized.dtype
    if spec.cast == "weight" and weight is not None:
        dtype = weight.dtype if weight.dtype.itemsize == 2 else arithmetic
    result = dtype
    if early:
        normalized = normalized.to(dtype)
        for parameter in (weight, bias):
            result = result if parameter is None else torch.promote_types(result, parameter.dtype)
    if weight is not None:
        scale = effective_weight(weight, spec)
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
