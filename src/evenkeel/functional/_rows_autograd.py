"""The gradients of the row norms: by the kernel, or by the reference where they must be differentiable again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evenkeel._errors import InvalidInputError
from evenkeel.functional._common import compute_dtype, needs_gradient, reference_gradients
from evenkeel.functional._rows_reference import rows_reference, sum_dtype
from evenkeel.functional._specs import spec_of_rows
from evenkeel.kernels import (
    NEAR_BYTES,
    composite_required,
    is_compiling,
    nodes,
    normalize_small,
    rows_backward,
    rows_forward,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel.functional._specs import CallSpec

    Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class RowsFunction(torch.autograd.Function):
    """First derivatives by the kernel; a backward that must itself be differentiable runs the reference.

    With a residual it returns two tensors, y and the sum, otherwise y. ``from_output`` saves y instead of x;
    ``computed`` are y and the statistics where they are there already.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        axes: int,
        spec: CallSpec,
        from_output: bool,
        computed: tuple[Tensor, Tensor] | None = None,
    ) -> Any:
        if computed is not None:
            y, statistics = computed
        else:
            y, total, statistics = rows_forward(x, residual, weight, bias, axes, spec.row_options, from_output)
        ctx.axes, ctx.spec, ctx.from_output = axes, spec, from_output
        if residual is None:
            # the following layer keeps y anyway, so that it costs nothing to keep it here
            ctx.save_for_backward(y if from_output else x, None, weight, bias, statistics)
            return y
        # the stream goes on and is kept anyway; the unrounded sum has to be added again
        addends = (x, residual) if spec.residual_rounding == "unrounded" else (total, None)
        ctx.save_for_backward(*addends, weight, bias, statistics)
        ctx.set_materialize_grads(False)
        ctx.dtypes = x.dtype, residual.dtype
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None = None) -> tuple[Tensor | None, ...]:
        needed: tuple[bool, bool, bool, bool] = ctx.needs_input_grad[:4]
        if dy is None:  # only of a sum whose norm nobody used
            addends = (None, None) if dsum is None else (dsum.to(ctx.dtypes[0]), dsum)
            return (*addends, None, None, None, None, None, None)
        return (*gradients(ctx, dy, dsum, needed), None, None, None, None)


class RowsContext(NamedTuple):
    """What `RowsFunction` keeps, where a compiled node kept it: x, no residual, weight, bias and statistics."""

    saved_tensors: tuple[Tensor, None, Tensor | None, Tensor | None, Tensor]
    axes: int
    spec: CallSpec
    dtypes: tuple[torch.dtype, torch.dtype]
    from_output: bool = False


def direct_rows(
    spec: CallSpec, input: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """Normalize tensors with dense rows that fit, before any check; None for all others."""
    y: Tensor | None
    if nodes is not None:
        y = None if is_compiling() else nodes.normalize_rows(input, shape, weight, bias, spec.row_options)
        return y
    trained = needs_gradient(input, weight, bias)
    y = computed = normalize_small(input, shape, weight, bias, spec.row_options, trained)
    if trained and computed is not None:
        y = RowsFunction.apply(input, None, weight, bias, len(shape), spec, False, computed)
    return y


def direct_sum(
    spec: CallSpec,
    input: Tensor,
    residual: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """Add and normalize tensors of one dtype with dense rows that fit, before any check; None for all others."""
    both: tuple[Tensor, Tensor] | None = None
    if nodes is not None and spec.residual_rounding == "rounded" and not is_compiling():
        both = nodes.normalize_sum(input, residual, shape, weight, bias, spec.row_options, NEAR_BYTES)
    return both


def node_gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    options: Sequence[float],
    needed: tuple[bool, bool, bool],
    dsum: Tensor | None = None,
    adds: bool = False,
) -> Sequence[Tensor | None]:
    """dx, dweight and dbias for a compiled node that somebody observes, or of tensors that it does not take.

    Where it adds first, ``x`` is the sum, ``dsum`` its own gradient, and dresidual comes last.
    """
    axes, *encoded = options
    spec = spec_of_rows(encoded, "rounded" if adds else None)
    ctx = RowsContext((x, None, weight, bias, statistics), int(axes), spec, (x.dtype, x.dtype))
    dx, dresidual, dweight, dbias = gradients(ctx, dy, dsum, (needed[0], adds and needed[0], *needed[1:]))
    return dx, dweight, dbias, dresidual


def gradients(ctx: Any, dy: Tensor, dsum: Tensor | None, needed: tuple[bool, bool, bool, bool]) -> Gradients:
    """dx, dresidual, dweight and dbias, None for one that is not needed."""
    if torch.is_grad_enabled() or composite_required():
        return gradients_by_reference(ctx, dy, dsum, needed)
    dx, dresidual, dweight, dbias = rows_backward(
        dy, dsum, ctx.saved_tensors, ctx.axes, ctx.spec.row_options, needed, ctx.from_output
    )
    if needed[1] and ctx.dtypes[0] == ctx.dtypes[1]:
        dresidual = dx
    # written out: this function takes longer than the work on a few rows
    return (
        dx if needed[0] else None,
        dresidual if needed[1] else None,
        dweight if needed[2] else None,
        dbias if needed[3] else None,
    )


def gradients_by_reference(
    ctx: Any, dy: Tensor, dsum: Tensor | None, needed: tuple[bool, bool, bool, bool]
) -> Gradients:
    """The same gradients, differentiable again."""
    if ctx.from_output:
        raise InvalidInputError(
            "memory_efficient=True keeps no input to differentiate twice or with function transforms, but "
            "create_graph=True or a transform asked for that; pass memory_efficient=False"
        )
    x, residual, weight, bias, _ = ctx.saved_tensors

    def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return rows_reference(x, weight, bias, ctx.axes, ctx.spec)

    if ctx.spec.residual_rounding is None:
        dx, dweight, dbias = reference_gradients(reference, (x, weight, bias), (needed[0], *needed[2:]), dy)
        return dx, None, dweight, dbias
    wide = compute_dtype(x) if residual is None else sum_dtype(x, residual)
    with torch.enable_grad():
        total = x.to(wide) if residual is None else x.to(wide) + residual.to(wide)
    flags = (needed[0] or needed[1], *needed[2:])
    dtotal, dweight, dbias = reference_gradients(reference, (total, weight, bias), flags, dy.to(wide))
    if dtotal is None:
        return None, None, dweight, dbias
    if dsum is not None:
        dtotal = dtotal + dsum.to(wide)
    return dtotal.to(ctx.dtypes[0]), dtotal.to(ctx.dtypes[1]), dweight, dbias
