"""The row operators on the GPU: shapes, allocation and launches; the kernels compute."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._spec import RowOptions
from evenkeel.kernels import _fakes
from evenkeel.kernels.triton._launch import (
    PARAMETER_BLOCK,
    SUMS_LAUNCH,
    TREE_LAUNCH,
    Launch,
    backward_launch,
    forward_launch,
)
from evenkeel.kernels.triton._layout import Rows, alignment, dense, is_aligned, merged_axes, reach
from evenkeel.kernels.triton._start import Program, on_device, program
from evenkeel.kernels.triton.rows_backward_kernels import long_rows_backward_kernel, rows_backward_kernel, tree_kernel
from evenkeel.kernels.triton.rows_forward_kernels import (
    long_rows_forward_kernel,
    recomputable_kernel,
    rows_forward_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import ChannelOptions

    Gradients = tuple[Tensor, Tensor, Tensor, Tensor]

# Beyond these the output does not determine the normalized row: its errors would grow by as much.
SMALLEST_RECOMPUTABLE_WEIGHT, MOST_SHIFT_OF_WEIGHT = 2.0**-10, 16.0


def split(x: Tensor, axes: int) -> tuple[int, int]:
    """How many rows and features a tensor has."""
    leading = x.ndim - axes
    return math.prod(x.shape[:leading]), math.prod(x.shape[leading:])


def early_code(options: RowOptions, x: Tensor, weight: Tensor | None) -> int:
    """0 for one rounding at the end, 1 for one before the weight, 2 where the product is rounded too."""
    if not options.early:
        return 0
    return 2 if weight is not None and weight.dtype == x.dtype and options.weight_offset == 0.0 else 1


def smallest_scaled(options: RowOptions | ChannelOptions) -> float:
    """The size up to which values need no bits of their own, because eps decides."""
    size = math.sqrt(abs(options.eps)) if options.eps_mode == 0 else abs(options.eps)
    return min(max(size, 2.0**-126), 2.0**126)


def common(launch: Launch, features: int, statistic: int, eps_mode: int) -> dict[str, Any]:
    """The compile-time arguments that the kernels share."""
    return {
        "N": features,
        "BLOCK": launch.block,
        "STATISTIC": statistic,
        "EPS_MODE": eps_mode,
        "ALIGNED": alignment(features),
    }


@cache
def forward_program(
    features: int, statistic: int, eps_mode: int, early: int, rounded: bool, nested: bool
) -> tuple[Launch, Program]:
    """The forward kernel of rows with these features."""
    launch = forward_launch(features)
    kernel = long_rows_forward_kernel if launch.looped else rows_forward_kernel
    constants = common(launch, features, statistic, eps_mode)
    return launch, program(
        kernel, launch.warps, ROWS=launch.rows, EARLY=early, ROUNDED=rounded, NESTED=nested, **constants
    )


def normalize(
    y: Tensor,
    addends: tuple[Tensor, Tensor | None],
    parameters: tuple[Tensor | None, Tensor | None],
    axes: int,
    options: RowOptions,
    total: Tensor | None = None,
    statistics: Tensor | None = None,
) -> None:
    """Normalize rows into y, their sum with a residual into total, and their statistics where these have a place."""
    count, features = split(y, axes)
    if count == 0 or features == 0:
        return
    (x, residual, written), inner, strides = reach((*addends, y), axes, features)
    weight, bias = parameters
    early = early_code(options, addends[0], weight)
    launch, kernel = forward_program(features, options.statistic, options.eps_mode, early, options.rounded, inner > 1)
    with on_device(y):
        kernel(
            (-(-count // launch.rows),),
            (x, residual, dense(weight), dense(bias), written, total, statistics),
            (count, features, inner, *strides),
            (options.eps, smallest_scaled(options), options.weight_offset),
        )
    if written is not y and written is not None:
        y.copy_(written)


def rows_forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, axes: int, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the sum in residual's dtype, the statistics of each row; the last argument asks for a y to go back from."""
    *options, recomputable = arguments
    code = RowOptions(*options)
    if recomputable:
        require_recomputable(weight, bias, code)
    y, total, statistics = _fakes.rows_forward(x, residual, weight, bias, axes, *arguments)
    normalize(y, (x, residual), (weight, bias), axes, code, None if residual is None else total, statistics)
    return y, total, statistics


def require_recomputable(weight: Tensor | None, bias: Tensor | None, options: RowOptions) -> None:
    """Raise, without waiting for the GPU, unless the output determines the normalized values."""
    if weight is None:
        return
    enough = torch.empty((), dtype=torch.bool, device=weight.device)
    with on_device(weight):
        found = program(
            recomputable_kernel, SMALLEST=SMALLEST_RECOMPUTABLE_WEIGHT, MOST=MOST_SHIFT_OF_WEIGHT, BLOCK=PARAMETER_BLOCK
        )
        found((1,), (dense(weight), dense(bias), enough), (weight.numel(),), (options.weight_offset,))
    torch._assert_async(
        enough,
        "evenkeel: memory_efficient recomputes the normalized values from the output, which needs every "
        "|weight_offset + weight| to be at least 2^-10 and every |bias| at most 16 times that; "
        "pass memory_efficient=False",
    )


def rows_inference(x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, *options: Any) -> Tensor:
    """y alone."""
    y = _fakes.rows_inference(x, weight, bias, axes, *options)
    normalize(y, (x, None), (weight, bias), axes, RowOptions(*options))
    return y


def rows_out(x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, *arguments: Any) -> None:
    """y into the last argument, whose rows are dense."""
    *options, out = arguments
    merged = merged_axes(out, axes)
    _, features = split(out, axes)
    direct = merged is not None and len(merged) < 2 and is_aligned(out, merged, features)
    y = out if direct else torch.empty_like(out, memory_format=torch.contiguous_format)
    normalize(y, (x, None), (weight, bias), axes, RowOptions(*options))
    if not direct:
        out.copy_(y)


def rows_backward(
    dy: Tensor,
    dsum: Tensor | None,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    axes: int,
    *arguments: Any,
) -> Gradients:
    """dx, dresidual, dweight and dbias; one that is not needed is empty, and so is dresidual in dx's dtype."""
    options = RowOptions(*arguments[:6])
    gradients = _fakes.rows_backward(dy, dsum, x, residual, weight, bias, statistics, axes, *arguments)
    _, features = split(x, axes)
    if features:
        rows = reach((dy, dsum, x, residual), axes, features)
        saved = (dense(weight), dense(bias), statistics.contiguous())
        places = [t if t.numel() else None for t in gradients]
        with on_device(x):
            differentiate(rows, saved, features, options, arguments[-1], places)
    return gradients


@cache
def backward_program(
    features: int,
    size: int,
    options: tuple[int, int, bool],
    from_output: bool,
    nested: bool,
    lines: bool,
    columns: bool,
) -> tuple[Launch, int, Program]:
    """The backward kernel of rows with these features, and how many programs a chunk of long ones has.

    An element has ``size`` bytes. ``lines`` says whether it writes the gradients of rows, ``columns`` whether the sums
    for dγ and dβ.
    """
    launch = backward_launch(features, size)
    statistic, eps_mode, rounded = options
    constants = common(launch, features, statistic, eps_mode)
    constants |= {"ROUNDED": rounded, "FROM_OUTPUT": from_output, "NESTED": nested, "CHUNK": launch.chunk}
    if not launch.looped:
        return launch, 1, program(rows_backward_kernel, launch.warps, ROWS=launch.rows, **constants)
    sums = SUMS_LAUNCH
    kinds = {"LINES": launch.chunk if lines else 0, "BLOCKS": -(-features // sums.block) if columns else 0}
    constants |= kinds
    found = program(long_rows_backward_kernel, launch.warps, ROWS=sums.rows, COLUMNS=sums.block, **constants)
    return launch, sum(kinds.values()), found


@cache
def tree_program(features: int) -> Program:
    """The tree over the chunks."""
    tree = TREE_LAUNCH
    return program(tree_kernel, tree.warps, N=features, BLOCK=tree.block, ROWS=tree.rows)


def differentiate(
    rows: Rows,
    saved: tuple[Tensor | None, Tensor | None, Tensor],
    features: int,
    options: RowOptions,
    from_output: bool,
    gradients: Sequence[Tensor | None],
) -> None:
    """Write dx, dresidual, dweight and dbias, those that have a place; ``saved`` are weight, bias and statistics."""
    (dy, dsum, x, residual), inner, strides = rows
    dx, dresidual, *summed = gradients
    statistics, columns = saved[2], any(out is not None for out in summed)
    launch, programs, kernel = backward_program(
        features, x.element_size() if x is not None else 0, (options.statistic, options.eps_mode, options.rounded),
        from_output, inner > 1, dx is not None or dresidual is not None, columns,
    )  # fmt: skip
    count = statistics.shape[0]
    chunks = -(-count // launch.chunk)
    partials = [None if out is None else statistics.new_empty((chunks, features)) for out in summed]
    if chunks and programs:
        kernel(
            (chunks * programs,),
            (dy, dsum, x, residual, *saved, dx, dresidual, *partials),
            (count, features, inner, *strides),
            (options.weight_offset,),
        )
    if columns:
        tree_program(features)((-(-features // TREE_LAUNCH.block), 2), (*partials, *summed), (chunks,))
