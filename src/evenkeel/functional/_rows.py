"""The ladder of the last-axis norms: reference, autograd, dispatch.

They differ in the statistic: ``moments`` (LayerNorm, which also centres), ``rms`` (RMSNorm) or ``l2`` (division by the
length).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel._errors import BackendError, InvalidInputError, InvalidTypeError
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
from evenkeel.functional._out import deliver, prepare_out, writable
from evenkeel.functional._shards import is_distributed, rows_of_shards
from evenkeel.kernels import _direct, _ops, _row_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    Options = tuple[int, str, float, str, float]  # axes, statistic, eps, eps_mode, weight_offset


def fits(input: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether there is nothing for `check_rows` to raise: the cheap question that every call asks."""
    axes = len(shape)
    sizes = input.shape
    return (
        axes > 0
        and (sizes[-axes:] == shape if axes > 1 else len(sizes) > 0 and sizes[-1] == shape[0])
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
    statistic: str,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    cast: str = "late",
) -> Tensor:
    """Normalize the trailing ``axes`` axes in plain PyTorch; the definition that the kernels are tested against."""
    if statistic != "l2" and exports_as_standard(eps_mode):
        operator = standard_rows(tuple(input.shape[input.ndim - axes :]), statistic == "moments", eps)
        return standard(operator, input, weight, bias, weight_offset, cast)
    x = input.to(arithmetic_dtype(input))
    dims = list(range(-axes, 0))
    scaled_eps: float | Tensor = eps
    scaling = range_scale(x, dims, eps, eps_mode)
    if scaling is not None:
        x, scaled_eps = x * scaling[0], scaling[1]
    if statistic == "moments":
        x, _, square = centred_moments(x, dims)
    elif statistic == "rms":
        square = x.pow(2).mean(dims, keepdim=True)
    else:
        square = x.square().sum(dims, keepdim=True)
    normalized = x * reciprocal_scale(square, scaled_eps, eps_mode)
    return apply_affine(normalized, weight, bias, weight_offset, input.dtype, cast).contiguous()


class RowsFunction(torch.autograd.Function):
    """First derivatives by the kernel; a backward that must itself be differentiable runs the reference."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        found: tuple[Tensor, Tensor] | None,
        early: bool,
        lean: bool,
        options: Options,
    ) -> Tensor:
        if found is None:
            found = _row_operators.rows_forward(x, weight, bias, *options, early=early, recomputable=lean)
        y, statistics = found
        # lean: the following layer keeps y anyway, so that it costs nothing to keep it here
        ctx.save_for_backward(y if lean else x, weight, bias, statistics)
        ctx.early, ctx.lean, ctx.options = early, lean, options
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = gradients
        x, weight, bias, statistics = ctx.saved_tensors
        needed: tuple[bool, bool, bool] = ctx.needs_input_grad[:3]
        options: Options = ctx.options
        create_graph = torch.is_grad_enabled()
        if not create_graph and not composite_required():
            dx, dweight, dbias = _row_operators.rows_backward(
                dy, x, weight, bias, statistics, *options, *needed, from_output=ctx.lean
            )
            # written out: this function takes longer than the work on a few rows
            return (
                dx if needed[0] else None,
                dweight if needed[1] else None,
                dbias if needed[2] else None,
                None,
                None,
                None,
                None,
            )
        if ctx.lean:
            raise InvalidInputError(
                "memory_efficient=True keeps no input to differentiate twice or with function transforms, but "
                "create_graph=True or a transform asked for that; pass memory_efficient=False"
            )
        with torch.enable_grad():
            # views, so that differentiation stops at this call's inputs where one of them depends on another
            inputs = [t.view_as(t) if need else t for t, need in zip((x, weight, bias), needed, strict=True)]
            y = rows_reference(inputs[0], inputs[1], inputs[2], *options, cast="early" if ctx.early else "late")
            wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
            found = iter(torch.autograd.grad(y, wanted, dy, create_graph=create_graph))
        return (*(next(found) if need else None for need in needed), None, None, None, None)


def rows(
    name: str,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    statistic: str,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    cast: str,
    backend: str,
    out: Tensor | None,
    memory_efficient: bool,
) -> Tensor:
    """Check and run: the body of `layer_norm` and `rms_norm`."""
    shape = normalized_shape if type(normalized_shape) is tuple else as_shape(name, normalized_shape)
    if out is None and cast == "late" and backend == "auto":
        # a few rows take less time than the checks, which say below what is wrong
        trained = torch.is_grad_enabled() and needs_gradient(input, weight, bias)
        if input.is_cpu and not (trained and memory_efficient) and _direct.unobserved():
            found = _direct.normalize(input, shape, weight, bias, statistic, eps, eps_mode, weight_offset, trained)
            if found is not None and trained:
                options = (len(shape), statistic, float(eps), eps_mode, float(weight_offset))
                return RowsFunction.apply(input, weight, bias, found, False, False, options)
            if found is not None:
                return found
        if not trained and is_quick(input, shape, weight, bias):
            try:
                return _row_operators.rows_inference(
                    input, weight, bias, len(shape), statistic, eps, eps_mode, weight_offset
                )
            except (RuntimeError, KeyError, TypeError):
                pass
    check_options(name, eps_mode, cast)
    if not fits(input, shape, weight, bias):
        check_rows(name, input, shape, weight, bias)
    if type(input) is not torch.Tensor and is_distributed(input):
        if out is not None:
            raise InvalidInputError(f"{name}: out= does not take a DTensor; leave it out")
        more = (statistic, eps, eps_mode, weight_offset, cast, backend, None, memory_efficient)
        return rows_of_shards(name, lambda x, w, b: rows(name, x, shape, w, b, *more), input, len(shape), weight, bias)
    options = (len(shape), statistic, float(eps), eps_mode, float(weight_offset))
    early = cast == "early" and rounds_early(input, weight, bias)
    if out is None:
        return run_rows(input, weight, bias, early, memory_efficient, backend, options)
    dtype = result_dtype(input, weight, bias) if early else input.dtype
    prepare_out(name, out, dtype, input, weight, bias)
    return run_rows_out(name, input, weight, bias, early, backend, out, dtype, options)


def is_quick(input: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether to try the operator before any check: it looks at dtypes and at the parameters' shapes itself."""
    return (
        not _ops._MISSING
        and type(input) is torch.Tensor
        and input.is_cpu
        and (weight is None or (type(weight) in _ops.PLAIN_TYPES and weight.is_cpu))
        and (bias is None or (type(bias) in _ops.PLAIN_TYPES and bias.is_cpu))
        and not torch.compiler.is_compiling()
        and not composite_required()
        and len(shape) > 0
        and (input.ndim > 0 and input.size(-1) == shape[0] if len(shape) == 1 else input.shape[-len(shape) :] == shape)
    )


def run_rows(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    early: bool,
    memory_efficient: bool,
    backend: str,
    options: Options,
) -> Tensor:
    """Choose the backend and run."""
    refused = early and not has_early_kernel(input, weight, bias, options)
    chosen = _ops.choose("rows", backend, input, weight, bias, early=refused)
    if chosen == "reference" or composite_required():
        if memory_efficient and chosen == "reference" and needs_gradient(input, weight, bias) and not input.is_meta:
            raise BackendError(
                "memory_efficient=True needs the compiled kernel, which cannot run this call (backend='cpu' says why); "
                "pass memory_efficient=False"
            )
        return rows_reference(input, weight, bias, *options, cast="early" if early else "late")
    if needs_gradient(input, weight, bias):
        return apply_rows(input, weight, bias, early, memory_efficient, options)
    return _row_operators.rows_inference(input, weight, bias, *options, early=early)


def apply_rows(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, early: bool, memory_efficient: bool, options: Options
) -> Tensor:
    """`RowsFunction`, with the kernel's refusal of parameters that it cannot divide by as an error of ours."""
    if not memory_efficient or torch.compiler.is_compiling():
        return RowsFunction.apply(input, weight, bias, None, early, memory_efficient, options)
    try:
        return RowsFunction.apply(input, weight, bias, None, early, True, options)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        if "memory_efficient" not in first:
            raise
        raise InvalidInputError(first.partition("evenkeel: ")[2]) from None


def run_rows_out(
    name: str,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    early: bool,
    backend: str,
    out: Tensor,
    dtype: torch.dtype,
    options: Options,
) -> Tensor:
    """Choose the backend and run into a prepared ``out`` of the input's shape."""
    refused = early and not has_early_kernel(input, weight, bias, options)
    chosen = _ops.choose("rows", backend, input, weight, bias, early=refused)
    kernel = chosen != "reference" and not composite_required()
    direct = writable(name, out, dtype, options[0], input, weight, bias)  # asked in any case: it refuses overlaps
    if kernel and direct:
        _row_operators.rows_out(input, weight, bias, *options, early=early, out=out)
        return out
    with torch.no_grad():
        if kernel:
            return deliver(_row_operators.rows_inference(input, weight, bias, *options, early=early), out)
        return deliver(rows_reference(input, weight, bias, *options, cast="early" if early else "late"), out)


def needs_gradient(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether autograd will ask for a backward."""
    return torch.is_grad_enabled() and (
        input.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    )


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
    return arithmetic_dtype(input) != input.dtype or result_dtype(input, weight, bias) != input.dtype


def result_dtype(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> torch.dtype:
    """The dtype of an early norm: the promoted one."""
    dtype = input.dtype
    for parameter in (weight, bias):
        if parameter is not None:
            dtype = torch.promote_types(parameter.dtype, dtype)
    return dtype


def has_early_kernel(input: Tensor, weight: Tensor | None, bias: Tensor | None, options: Options) -> bool:
    """Whether the kernel rounds early here: as the models that do so, in 16 bits, root mean square, eps inside."""
    return (
        options[1] == "rms"
        and options[3] == "inside"
        and bias is None
        and input.dtype in (torch.bfloat16, torch.float16)
        and (weight is None or weight.dtype != torch.float64)
    )
