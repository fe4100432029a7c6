"""The ladder of the row norms: checks and choice of the backend.

They differ in the statistic: ``moments`` (LayerNorm, which also centres), ``rms`` (RMSNorm) or ``l2`` (division by the
length).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._errors import BackendError, InvalidArgumentError, InvalidInputError, InvalidTypeError
from evenkeel.functional._common import (
    check_floating,
    compute_dtype,
    effective_weight,
    needs_gradient,
)
from evenkeel.functional._out import deliver, prepare_out, writable
from evenkeel.functional._rows_autograd import RowsFunction, direct_rows, direct_sum
from evenkeel.functional._rows_reference import add_rows_reference, rows_reference
from evenkeel.functional._shards import is_distributed, rows_of_shards
from evenkeel.kernels import composite_required, rows_forward, rows_inference, runs_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import NormSpec
    from evenkeel.functional._specs import CallSpec

# Beyond these the output does not determine the normalized row: its errors would grow by as much.
SMALLEST_RECOMPUTABLE_WEIGHT, MOST_SHIFT_OF_WEIGHT = 2.0**-10, 16.0


def fits(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether `check_rows` has nothing to raise: the cheap question."""
    axes = len(shape)
    if not (axes and is_floating(x)):
        return False
    sizes = x.shape
    return (
        (sizes[-axes:] == shape if axes > 1 else len(sizes) > 0 and sizes[-1] == shape[0])
        and (weight is None or (is_floating(weight) and weight.shape == shape))
        and (bias is None or (is_floating(bias) and bias.shape == shape))
    )


def is_floating(x: Any) -> bool:
    """Whether something is a dense floating tensor."""
    dense = isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_nested
    return dense and x.dtype.is_floating_point


def check_rows(name: str, input: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> None:
    """Raise, in torch's words, unless the trailing shape and the affine fit the input."""
    if fits(input, shape, weight, bias):
        return
    check_floating(name, "input", input, jagged=True)
    if not all(hasattr(size, "__index__") for size in shape):
        raise InvalidTypeError(f"{name}(): argument 'normalized_shape' must be tuple of ints, but got {shape}")
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


def check_recomputable(input: Tensor, weight: Tensor | None, bias: Tensor | None, spec: NormSpec) -> None:
    """Raise `InvalidInputError` unless the output determines the normalized values, which the kernel has found out."""
    if weight is None:
        return
    dtype = compute_dtype(input)
    scale = effective_weight(weight.detach(), spec).to(dtype).abs().flatten()
    shift = torch.zeros_like(scale) if bias is None else bias.detach().to(dtype).abs().flatten()
    refused = ~((scale >= SMALLEST_RECOMPUTABLE_WEIGHT) & (shift <= MOST_SHIFT_OF_WEIGHT * scale))
    if refused.any():
        index = int(refused.nonzero()[0, 0])
        raise InvalidInputError(
            "memory_efficient recomputes the normalized values from the output, which needs every "
            "|weight_offset + weight| to be at least 2^-10 and every |bias| at most 16 times that, but at index "
            f"{index} they are {scale[index]:g} and {shift[index]:g}; pass memory_efficient=False"
        )


def rows(
    name: str,
    spec: CallSpec,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    backend: str,
    out: Tensor | None = None,
    memory_efficient: bool = False,
) -> Tensor:
    """Check, choose the backend and run: the body of `layer_norm`, `rms_norm` and `normalize`."""
    shape = normalized_shape if type(normalized_shape) is tuple else as_shape(name, normalized_shape)
    from_output = memory_efficient and needs_gradient(input, weight, bias)
    if backend == "auto" and out is None and spec.late is None and not from_output:
        y = direct_rows(spec, input, shape, weight, bias)
        if y is not None:
            return y
    if is_list_of_tensors(input) and out is None:
        parts = [rows(name, spec, x, shape, weight, bias, backend, None, memory_efficient) for x in input.unbind()]
        return torch.nested.as_nested_tensor(parts)
    check_rows(name, input, shape, weight, bias)
    if type(input) is not torch.Tensor and is_distributed(input):
        if out is not None:
            raise InvalidInputError(f"{name}: out= does not take a DTensor; leave it out")

        def local_rows(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
            return rows(name, spec, x, shape, w, b, backend, None, memory_efficient)

        return rows_of_shards(name, local_rows, input, len(shape), weight, bias)
    spec = effective_cast(spec, input, weight, bias)
    if out is not None:
        dtype = result_dtype(spec, input, weight, bias)
        prepare_out(name, out, dtype, input, weight, bias)
        return rows_into(out, name, spec, input, len(shape), weight, bias, backend)
    by_kernel = runs_kernel("rows", backend, spec, input, weight, bias)
    if from_output and not by_kernel and not input.is_meta:
        raise BackendError(
            "memory_efficient=True needs the compiled kernel, which cannot run this call (backend='cpu' says why); "
            "pass memory_efficient=False"
        )
    if not by_kernel or composite_required():
        return rows_reference(input, weight, bias, len(shape), spec)
    if not needs_gradient(input, weight, bias):
        return rows_inference(input, weight, bias, len(shape), spec.row_options)
    return differentiable_rows(input, weight, bias, len(shape), spec, from_output)


def differentiable_rows(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, spec: CallSpec, from_output: bool
) -> Tensor:
    """`RowsFunction`, with the kernel's refusal of parameters that it cannot divide by as an error of ours."""
    y: Tensor
    if not from_output or torch.compiler.is_compiling():
        y = RowsFunction.apply(input, None, weight, bias, axes, spec, from_output)
        return y
    try:
        y = RowsFunction.apply(input, None, weight, bias, axes, spec, True)
    except RuntimeError:
        check_recomputable(input, weight, bias, spec)
        raise
    return y


def rows_into(
    out: Tensor,
    name: str,
    spec: CallSpec,
    input: Tensor,
    axes: int,
    weight: Tensor | None,
    bias: Tensor | None,
    backend: str,
) -> Tensor:
    """Choose the backend and run into a prepared ``out`` of the input's shape."""
    dtype = result_dtype(spec, input, weight, bias)
    by_kernel = runs_kernel("rows", backend, spec, input, weight, bias) and not composite_required()
    direct = writable(name, out, dtype, axes, input, weight, bias)  # asked in any case: it refuses overlaps
    if by_kernel and direct:
        torch.ops.evenkeel.rows_out.default(input, weight, bias, axes, *spec.row_options, out)
        return out
    with torch.no_grad():
        if by_kernel:
            return deliver(rows_inference(input, weight, bias, axes, spec.row_options), out)
        return deliver(rows_reference(input, weight, bias, axes, spec), out)


def add_rows(
    name: str,
    spec: CallSpec,
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Check, choose the backend, and run: the body of `add_layer_norm` and `add_rms_norm`."""
    if spec.residual_rounding is None:
        raise InvalidArgumentError(f"{name}: residual_rounding must be 'rounded' or 'unrounded', but got None")
    shape = normalized_shape if type(normalized_shape) is tuple else as_shape(name, normalized_shape)
    if backend == "auto" and (direct := direct_sum(spec, input, residual, shape, weight, bias)) is not None:
        return direct
    check_rows(name, input, shape, weight, bias)
    check_floating(name, "residual", residual, jagged=True)
    if residual.shape != input.shape:
        raise InvalidInputError(
            f"{name}: expected a residual of the input's shape {tuple(input.shape)}, but got {tuple(residual.shape)}; "
            "expand it first"
        )
    if not runs_kernel("rows", backend, spec, input, residual, weight, bias) or composite_required():
        return add_rows_reference(input, residual, weight, bias, len(shape), spec)
    if needs_gradient(input, residual, weight, bias):
        both: tuple[Tensor, Tensor] = RowsFunction.apply(input, residual, weight, bias, len(shape), spec, False)
        return both
    y, total, _ = rows_forward(input, residual, weight, bias, len(shape), spec.row_options, False)
    return y, total


def is_list_of_tensors(input: Tensor) -> bool:
    """Whether the input is a nested tensor of torch's older kind, which nearly no operator takes."""
    return getattr(input, "is_nested", False) and input.layout is torch.strided


def as_shape(name: str, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes as a tuple."""
    if isinstance(normalized_shape, str | bytes | Mapping | Set) or hasattr(
        normalized_shape, "ndim"
    ):  # a tensor, array
        kind = type(normalized_shape).__name__
        raise InvalidTypeError(f"{name}(): argument 'normalized_shape' must be tuple of ints, not {kind}")
    try:
        return tuple(normalized_shape)
    except TypeError:
        raise InvalidTypeError(
            f"{name}: normalized_shape must be a sequence of sizes, but got {normalized_shape!r}; "
            f"pass ({normalized_shape},)"
        ) from None


def effective_cast(spec: CallSpec, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> CallSpec:
    """Replace a cast by one that agrees and has kernels.

    ``weight`` agrees with ``early`` in one dtype, and ``early`` with ``late`` where rounding to the compute dtype
    changes nothing.
    """
    if spec.late is None:
        return spec
    if spec.early is not None:
        if weight is None:
            return spec.late
        if input.dtype != weight.dtype or (bias is not None and bias.dtype != input.dtype):
            return spec
        spec = spec.early
    same = compute_dtype(input) == input.dtype and result_dtype(spec, input, weight, bias) == input.dtype
    return spec.late if same and spec.late is not None else spec


def result_dtype(spec: NormSpec, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> torch.dtype:
    """The dtype of the result: the input's, or the promoted one of an early norm."""
    dtype = input.dtype
    if spec.cast == "late":
        return dtype
    if spec.cast == "weight" and weight is not None:
        dtype = weight.dtype if weight.dtype.itemsize == 2 else compute_dtype(input)
    for parameter in (weight, bias):
        if parameter is not None:
            dtype = torch.promote_types(parameter.dtype, dtype)
    return dtype
