"""The row operators on the GPU: shapes, allocation and launches; the kernels compute."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._spec import RowOptions
from evenkeel.kernels import _fakes
from evenkeel.kernels.triton._launch import SUMS_LAUNCH, TREE_LAUNCH, Launch, backward_launch, forward_launch
from evenkeel.kernels.triton._layout import Rows, alignment, dense, is_aligned, merged_axes, reach
from evenkeel.kernels.triton.rows_backward_kernels import (
    long_rows_backward_kernel,
    long_rows_sums_kernel,
    rows_backward_kernel,
    tree_kernel,
)
from evenkeel.kernels.triton.rows_forward_kernels import long_rows_forward_kernel, rows_forward_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import ChannelOptions

    Gradients = tuple[Tensor, Tensor, Tensor, Tensor]

# Beyond these the output does not determine the normalized row: its errors would grow by as much.
SMALLEST_RECOMPUTABLE_WEIGHT, MOST_SHIFT_OF_WEIGHT = 2.0**-10, 16.0
UNFUSED = {"enable_fp_fusion": False}  # what is fused says so: one order of roundings on every GPU


def on_device(x: Tensor) -> Any:
    """A context in which kernels are launched where a tensor lies."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


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


def common(launch: Launch, features: int, options: RowOptions, rows: Rows) -> dict[str, Any]:
    """The compile-time arguments that the kernels share."""
    return {
        "N": features,
        "BLOCK": launch.block,
        "ROWS": launch.rows,
        "STATISTIC": options.statistic,
        "EPS_MODE": options.eps_mode,
        "ROUNDED": options.rounded,
        "NESTED": rows.inner > 1,
        "ALIGNED": alignment(features),
        "num_warps": launch.warps,
        **UNFUSED,
    }


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
    launch = forward_launch(features)
    rows = reach((*addends, y), axes, features)
    x, residual, written = rows.tensors
    weight, bias = map(dense, parameters)
    kernel = long_rows_forward_kernel if launch.looped else rows_forward_kernel
    strides = [stride for pair in rows.strides for stride in pair]
    with on_device(y):
        kernel[(-(-count // launch.rows),)](
            x, residual, weight, bias, written, total, statistics, count, features, rows.inner, *strides,
            options.eps, smallest_scaled(options), options.weight_offset,
            EARLY=early_code(options, addends[0], weight), **common(launch, features, options, rows),
        )  # fmt: skip
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
    scale = (weight.float() + options.weight_offset).abs()
    shift = torch.zeros_like(scale) if bias is None else bias.float().abs()
    enough = (scale >= SMALLEST_RECOMPUTABLE_WEIGHT) & (shift <= MOST_SHIFT_OF_WEIGHT * scale)
    torch._assert_async(
        enough.all(),
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
    count, features = split(x, axes)
    dx, dresidual, dweight, dbias = (t if t.numel() else None for t in gradients)
    if features == 0:
        return gradients
    rows = reach((dy, dsum, x, residual), axes, features)
    call = Backward(
        rows, (dense(weight), dense(bias)), statistics.contiguous(), count, features, options, arguments[-1]
    )
    with on_device(x):
        call.run(dx, dresidual, dweight, dbias)
    return gradients


class Backward:
    """The launches of one backward."""

    def __init__(
        self,
        rows: Rows,
        parameters: tuple[Tensor | None, Tensor | None],
        statistics: Tensor,
        count: int,
        features: int,
        options: RowOptions,
        from_output: bool,
    ) -> None:
        self.rows, self.parameters, self.statistics = rows, parameters, statistics
        self.count, self.features, self.options, self.from_output = count, features, options, from_output
        self.launch = backward_launch(features)

    def run(self, dx: Tensor | None, dresidual: Tensor | None, dweight: Tensor | None, dbias: Tensor | None) -> None:
        """Write the gradients that have a place."""
        chunk = SUMS_LAUNCH.chunk if self.launch.looped else self.launch.chunk
        chunks = -(-self.count // chunk)
        partials = [
            None if out is None else self.statistics.new_empty((chunks, self.features)) for out in (dweight, dbias)
        ]
        if chunks and self.launch.looped:
            self.run_long(dx, dresidual, partials, chunks)
        elif chunks:
            self.run_resident(dx, dresidual, partials, chunks)
        for partial, out in zip(partials, (dweight, dbias), strict=True):
            if partial is not None:
                tree = TREE_LAUNCH
                tree_kernel[(-(-self.features // tree.block),)](
                    partial, out, chunks, N=self.features, BLOCK=tree.block, ROWS=tree.rows, num_warps=tree.warps,
                    **UNFUSED,
                )  # fmt: skip

    def compiled(self, launch: Launch) -> dict[str, Any]:
        """The compile-time arguments."""
        return {**common(launch, self.features, self.options, self.rows), "FROM_OUTPUT": self.from_output}

    def run_resident(
        self, dx: Tensor | None, dresidual: Tensor | None, partials: list[Tensor | None], chunks: int
    ) -> None:
        """One kernel for all: a program has a chunk of rows."""
        strides = [stride for pair in self.rows.strides for stride in pair]
        rows_backward_kernel[(chunks,)](
            *self.rows.tensors, *self.parameters, self.statistics, dx, dresidual, *partials, self.count,
            self.rows.inner, *strides, self.options.weight_offset,
            CHUNK=self.launch.chunk, **self.compiled(self.launch),
        )  # fmt: skip

    def run_long(self, dx: Tensor | None, dresidual: Tensor | None, partials: list[Tensor | None], chunks: int) -> None:
        """Sums of rows and for the parameters, a program a chunk of rows and block of columns; then dx from them."""
        strides = [stride for pair in self.rows.strides for stride in pair]
        offset, launch = self.options.weight_offset, SUMS_LAUNCH
        dy, _, x, residual = self.rows.tensors
        blocks, sums = -(-self.features // launch.block), None
        if dx is not None or dresidual is not None:
            sums = torch.empty((self.count, blocks, 2), dtype=torch.float32, device=self.statistics.device)
        if sums is not None or partials != [None, None]:
            long_rows_sums_kernel[(chunks, blocks)](
                dy, x, residual, *self.parameters, self.statistics, sums, *partials, self.count, self.rows.inner,
                *strides[:2], *strides[4:], offset, CHUNK=launch.chunk, **self.compiled(launch),
            )  # fmt: skip
        if sums is not None:
            long_rows_backward_kernel[(self.count * -(-self.features // self.launch.block),)](
                *self.rows.tensors, *self.parameters, self.statistics, sums, dx, dresidual, self.count,
                self.rows.inner, *strides, offset, SUMMED=launch.block, **self.compiled(self.launch),
            )  # fmt: skip
