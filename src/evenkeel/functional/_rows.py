"""The ladder of the last-axis norms: reference, autograd, dispatch. LayerNorm centres, RMSNorm does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel._errors import InvalidInputError, InvalidTypeError
from evenkeel.functional._common import (
    apply_affine,
    arithmetic_dtype,
    centred_moments,
    check_floating,
    check_options,
    composite_required,
    range_scale,
    reciprocal_scale,
)
from evenkeel.functional._export import exports_as_standard, standard, standard_rows
from evenkeel.functional._shards import is_distributed, rows_of_shards
from evenkeel.kernels import _ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def fits(input: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether there is nothing for `check_rows` to raise: the cheap question that every call asks."""
    return (
        len(shape) > 0
        and input.shape[-len(shape) :] == shape
        and input.dtype.is_floating_point
        and (weight is None or (weight.shape == shape and weight.dtype.is_floating_point))
        and (bias is None or (bias.shape == shape and bias.dtype.is_floating_point))
    )


def check_rows(name: str, input: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> None:
    """Raise `InvalidInputError`, in torch's words, unless the trailing shape and the affine fit the input."""
    if not shape:
        raise InvalidInputError(
            f"{name}: Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = (); pass the trailing sizes to normalize, e.g. (input.shape[-1],)"
        )
    for label, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        check_floating(name, label, parameter)
        if tuple(parameter.shape) != shape:
            raise InvalidInputError(
                f"{name}: Expected {label} to be of same shape as normalized_shape, but got {label} of shape "
                f"{tuple(parameter.shape)} and normalized_shape = {shape}"
            )
    if tuple(input.shape[input.ndim - len(shape) :]) != shape or input.ndim < len(shape):
        raise InvalidInputError(
            f"{name}: Given normalized_shape={list(shape)}, expected input with shape "
            f"[*, {', '.join(map(str, shape))}], but got input of size {list(input.shape)}; "
            "normalized_shape must be the input's trailing sizes"
        )
    check_floating(name, "input", input)


def rows_reference(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    center: bool,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    cast: str = "late",
) -> Tensor:
    """Normalize the trailing ``axes`` axes in plain PyTorch; the definition that the kernels are tested against."""
    if exports_as_standard(eps_mode):
        operator = standard_rows(tuple(input.shape[input.ndim - axes :]), center, eps)
        return standard(operator, input, weight, bias, weight_offset, cast)
    x = input.to(arithmetic_dtype(input))
    dims = list(range(-axes, 0))
    scaled_eps: float | Tensor = eps
    scaling = range_scale(x, dims, eps, eps_mode)
    if scaling is not None:
        x, scaled_eps = x * scaling[0], scaling[1]
    if center:
        x, _, square = centred_moments(x, dims)
    else:
        square = x.pow(2).mean(dims, keepdim=True)
    normalized = x * reciprocal_scale(square, scaled_eps, eps_mode)
    return apply_affine(normalized, weight, bias, weight_offset, input.dtype, cast).contiguous()


class RowsFunction(torch.autograd.Function):
    """First derivatives by the kernel; a backward that must itself be differentiable runs the reference."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any) -> Tensor:
        y, statistics = _ops.rows_forward(x, weight, bias, *options)
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.options = options
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = gradients
        x, weight, bias, statistics = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        rest = (None,) * len(ctx.options)
        create_graph = torch.is_grad_enabled()
        if not create_graph and not composite_required():
            outputs = _ops.rows_backward(dy, x, weight, bias, statistics, *ctx.options, *needed)
            return (*(g if wanted else None for g, wanted in zip(outputs, needed, strict=True)), *rest)
        with torch.enable_grad():
            # views, so that differentiation stops at this call's inputs where one of them depends on another
            inputs = [t.view_as(t) if need else t for t, need in zip((x, weight, bias), needed, strict=True)]
            y = rows_reference(*inputs, *ctx.options)
            wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
            found = iter(torch.autograd.grad(y, wanted, dy, create_graph=create_graph))
        return (*(next(found) if need else None for need in needed), *rest)


def rows(
    name: str,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    center: bool,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    cast: str,
    backend: str,
) -> Tensor:
    """Check, choose the backend, and run: the body of `layer_norm` and `rms_norm`."""
    shape = normalized_shape if type(normalized_shape) is tuple else as_shape(name, normalized_shape)
    check_options(name, eps_mode, cast)
    if not fits(input, shape, weight, bias):
        check_rows(name, input, shape, weight, bias)
    if type(input) is not torch.Tensor and is_distributed(input):
        more = (center, eps, eps_mode, weight_offset, cast, backend)
        return rows_of_shards(name, lambda x, w, b: rows(name, x, shape, w, b, *more), input, len(shape), weight, bias)
    options = (len(shape), center, float(eps), eps_mode, float(weight_offset))
    early = cast == "early" and rounds_early(input, weight, bias)
    chosen = _ops.choose("rows", backend, input, weight, bias, early=early)
    if chosen == "reference" or composite_required():
        return rows_reference(input, weight, bias, *options, "early" if early else "late")
    if torch.is_grad_enabled() and (
        input.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        return RowsFunction.apply(input, weight, bias, *options)
    return _ops.rows_inference(input, weight, bias, *options)


def as_shape(name: str, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes as a tuple."""
    try:
        return tuple(normalized_shape)
    except TypeError:
        raise InvalidTypeError(
            f"{name}: normalized_shape must be a sequence of sizes, but got {normalized_shape!r}; "
            f"pass ({normalized_shape},)"
        ) from None


def rounds_early(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether ``cast="early"`` differs from ``late``: rounding to the arithmetic dtype changes nothing."""
    if arithmetic_dtype(input) != input.dtype:
        return True
    parameters = [p for p in (weight, bias) if p is not None]
    return any(torch.promote_types(p.dtype, input.dtype) != input.dtype for p in parameters)
