"""add_layer_norm and add_rms_norm: a branch added to the residual stream, and the sum normalized, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from evenkeel._errors import BackendError, InvalidArgumentError, InvalidInputError
from evenkeel.functional._common import (
    arithmetic_dtype,
    changed_options,
    check_floating,
    check_options,
    composite_required,
    default_eps,
)
from evenkeel.functional._rows import as_shape, check_rows, fits, needs_gradient, rows_reference
from evenkeel.kernels import _ops, _row_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import EpsMode
    from evenkeel.functional._rows import Options

ResidualRounding = Literal["rounded", "unrounded"]
ROUNDINGS = get_args(ResidualRounding)


def wide_dtype(input: Tensor, residual: Tensor) -> torch.dtype:
    """The dtype of the sum's arithmetic: float64 where either addend has it, otherwise float32."""
    return torch.promote_types(arithmetic_dtype(input), arithmetic_dtype(residual))


def add_rows_reference(
    input: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, rounded: bool, options: Options
) -> tuple[Tensor, Tensor]:
    """Add and normalize in plain PyTorch; the definition that the kernels are tested against."""
    wide = wide_dtype(input, residual)
    total = input.to(wide) + residual.to(wide)
    stream = total.to(residual.dtype)
    y = rows_reference(stream.to(wide) if rounded else total, weight, bias, *options)
    return y.to(input.dtype), stream.contiguous()


class AddRowsFunction(torch.autograd.Function):
    """First derivatives by the kernel; a backward that must itself be differentiable runs the reference."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        rounded: bool,
        options: Options,
    ) -> tuple[Tensor, Tensor]:
        y, stream, statistics = _row_operators.add_rows_forward(x, residual, weight, bias, *options, rounded)
        # the stream goes on and is kept anyway; the unrounded sum has to be added again
        ctx.save_for_backward(*((stream, None) if rounded else (x, residual)), weight, bias, statistics)
        ctx.set_materialize_grads(False)
        ctx.dtypes, ctx.options = (x.dtype, residual.dtype), options
        return y, stream

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        dy, dstream = gradients
        x, residual, weight, bias, statistics = ctx.saved_tensors
        x_dtype, residual_dtype = ctx.dtypes
        options: Options = ctx.options
        needed: tuple[bool, bool, bool, bool] = ctx.needs_input_grad[:4]
        if dy is None:
            if dstream is None:
                return (None,) * 6
            return dstream.to(x_dtype), dstream, None, None, None, None
        if torch.is_grad_enabled() or composite_required():
            dx, found = composite_backward(dy, dstream, x, residual, weight, bias, needed, options)
            both = (None, None) if dx is None else (dx.to(x_dtype), dx.to(residual_dtype))
            return (*both, *found, None, None)
        dx, dresidual, dweight, dbias = _row_operators.add_rows_backward(
            dy, dstream, x, residual, weight, bias, statistics, *options, *needed
        )
        outputs = (dx, dx if x_dtype == residual_dtype else dresidual, dweight, dbias)
        return (*(g if wanted else None for g, wanted in zip(outputs, needed, strict=True)), None, None)


def composite_backward(
    dy: Tensor,
    dstream: Tensor | None,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    needed: tuple[bool, bool, bool, bool],
    options: Options,
) -> tuple[Tensor | None, tuple[Tensor | None, Tensor | None]]:
    """The gradient of the sum in the arithmetic dtype, and those of weight and bias, by the reference."""
    create_graph = torch.is_grad_enabled()
    wide = arithmetic_dtype(x) if residual is None else wide_dtype(x, residual)
    flags = (needed[0] or needed[1], needed[2], needed[3])
    with torch.enable_grad():
        total = x.to(wide) if residual is None else x.to(wide) + residual.to(wide)
        # views, so that differentiation stops at this call's inputs where one of them depends on another
        source = total.view_as(total)
        inputs = [source, *(t if t is None else t.view_as(t) for t in (weight, bias))]
        y = rows_reference(source, inputs[1], inputs[2], *options)
        wanted = [t for t, need in zip(inputs, flags, strict=True) if need and t is not None]
        found = iter(torch.autograd.grad(y, wanted, dy.to(wide), create_graph=create_graph))
        dtotal = next(found) if flags[0] else None
        if dtotal is not None and dstream is not None:
            dtotal = dtotal + dstream.to(wide)
    return dtotal, (next(found) if flags[1] else None, next(found) if flags[2] else None)


def add_rows(
    name: str,
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    statistic: str,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    residual_rounding: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Check, choose the backend, and run: the body of `add_layer_norm` and `add_rms_norm`."""
    shape = as_shape(name, normalized_shape)
    check_options(name, eps_mode)
    if residual_rounding not in ROUNDINGS:
        raise InvalidArgumentError(
            f"{name}: residual_rounding must be one of {', '.join(ROUNDINGS)}, but got {residual_rounding!r}"
        )
    if not fits(input, shape, weight, bias):
        check_rows(name, input, shape, weight, bias)
    check_floating(name, "residual", residual)
    if residual.shape != input.shape:
        raise InvalidInputError(
            f"{name}: expected a residual of the input's shape {tuple(input.shape)}, but got {tuple(residual.shape)}; "
            "expand it first"
        )
    options = (len(shape), statistic, float(eps), eps_mode, float(weight_offset))
    rounded = residual_rounding == "rounded"
    chosen = _ops.choose("rows", backend, input, residual, weight, bias)
    mixed = arithmetic_dtype(input) != arithmetic_dtype(residual)
    if mixed and backend not in ("auto", "reference"):
        raise BackendError(
            f"{name}: backend={backend!r} adds float64 to float64 alone, but got {input.dtype} and {residual.dtype}; "
            "convert one, or use backend='auto'"
        )
    if mixed or chosen == "reference" or composite_required():
        return add_rows_reference(input, residual, weight, bias, rounded, options)
    if needs_gradient(input, weight, bias) or needs_gradient(residual, None, None):
        found: tuple[Tensor, Tensor] = AddRowsFunction.apply(input, residual, weight, bias, rounded, options)
        return found
    return _row_operators.add_rows_forward(input, residual, weight, bias, *options, rounded)[:2]


def add_layer_norm_reference(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    residual_rounding: ResidualRounding = "rounded",
) -> tuple[Tensor, Tensor]:
    """`add_layer_norm` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    options = (len(normalized_shape), "moments", eps, eps_mode, weight_offset)
    return add_rows_reference(input, residual, weight, bias, residual_rounding == "rounded", options)


def add_rms_norm_reference(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    residual_rounding: ResidualRounding = "rounded",
) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    eps = torch.finfo(wide_dtype(input, residual)).eps if eps is None else eps
    options = (len(normalized_shape), "rms", eps, eps_mode, weight_offset)
    return add_rows_reference(input, residual, weight, None, residual_rounding == "rounded", options)


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    residual_rounding: ResidualRounding = "rounded",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Add a branch to the residual stream and layer-normalize the sum, in one pass over memory.

    .. math:: h = x + r, \quad
        y = \frac{h - \mu}{\sqrt{\sigma^2 + \epsilon}} \, (\text{weight\_offset} + \gamma) + \beta

    The addends may differ in dtype: a float32 stream with bfloat16 branches keeps the stream exact. The sum is
    computed in float32 (float64 where either addend is float64) and returned in residual's dtype; y has input's.

    Args:
        input: (\*, \*normalized_shape), the branch, any floating dtype, any strides.
        residual: the same shape, the stream, any floating dtype, any strides.
        normalized_shape: the trailing sizes that share statistics.
        weight: γ, of shape normalized_shape, any floating dtype.
        bias: β, of shape normalized_shape, any floating dtype.
        eps: ε, added to the variance (or as ``eps_mode`` says).
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(σ, ε).
        weight_offset: added to the weight before use, in float32 (1 for the (1 + γ) family).
        residual_rounding: ``rounded`` normalizes the sum as the stream holds it: the bits of adding and normalizing
            one after the other, and nothing but the stream is kept for the backward. ``unrounded`` normalizes the sum
            before it is rounded to residual's dtype: more accurate in 16 bits, but both addends are kept. In float32
            the two are one.
        backend: ``auto``, ``reference`` or ``cpu``.

    Returns:
        (y, new residual), of the input's shape.

    Raises:
        InvalidInputError: shapes or dtypes do not fit.
        InvalidArgumentError: an unknown option.
        BackendError: the backend is missing or cannot run this input.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> y, stream = F.add_layer_norm(torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 2.0, 3.0]), (4,))
        >>> stream
        tensor([1., 2., 3., 4.])
        >>> y
        tensor([-1.3416, -0.4472,  0.4472,  1.3416])

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, on the sum of a residual connection (He et al., 2015).
    """
    if has_torch_function_variadic(input, residual, weight, bias):
        return handle_torch_function(
            add_layer_norm,
            (input, residual, weight, bias),
            input,
            residual,
            normalized_shape,
            weight=weight,
            bias=bias,
            eps=eps,
            **changed_options(
                eps_mode=eps_mode, weight_offset=weight_offset, residual_rounding=residual_rounding, backend=backend
            ),
        )
    return add_rows(
        "add_layer_norm",
        input,
        residual,
        normalized_shape,
        weight,
        bias,
        "moments",
        eps,
        eps_mode,
        weight_offset,
        residual_rounding,
        backend,
    )


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    residual_rounding: ResidualRounding = "rounded",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Add a branch to the residual stream and divide the sum by its root mean square, in one pass over memory.

    .. math:: h = x + r, \quad
        y = \frac{h}{\sqrt{\frac{1}{n}\sum_i h_i^2 + \epsilon}} \, (\text{weight\_offset} + \gamma)

    Dtypes, shapes and rounding are those of `add_layer_norm`.

    Args:
        input: (\*, \*normalized_shape), the branch, any floating dtype, any strides.
        residual: the same shape, the stream, any floating dtype, any strides.
        normalized_shape: the trailing sizes that share the statistic.
        weight: γ, of shape normalized_shape, any floating dtype.
        eps: ε; None means the machine epsilon of the arithmetic (float32's for float32, bfloat16 and float16).
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(rms, ε).
        weight_offset: added to the weight before use, in float32 (1 for the (1 + γ) family).
        residual_rounding: ``rounded`` normalizes the sum as the stream holds it, ``unrounded`` before it is rounded.
        backend: ``auto``, ``reference`` or ``cpu``.

    Returns:
        (y, new residual), of the input's shape.

    Raises:
        InvalidInputError: shapes or dtypes do not fit.
        InvalidArgumentError: an unknown option.
        BackendError: the backend is missing or cannot run this input.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> y, stream = F.add_rms_norm(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0]), (2,), eps=0.0)
        >>> y, stream
        (tensor([0.8485, 1.1314]), tensor([3., 4.]))

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, on the sum of a residual connection.
    """
    if has_torch_function_variadic(input, residual, weight):
        return handle_torch_function(
            add_rms_norm,
            (input, residual, weight),
            input,
            residual,
            normalized_shape,
            weight=weight,
            eps=eps,
            **changed_options(
                eps_mode=eps_mode, weight_offset=weight_offset, residual_rounding=residual_rounding, backend=backend
            ),
        )
    return add_rows(
        "add_rms_norm",
        input,
        residual,
        normalized_shape,
        weight,
        None,
        "rms",
        min(default_eps(input), default_eps(residual)) if eps is None else eps,
        eps_mode,
        weight_offset,
        residual_rounding,
        backend,
    )
