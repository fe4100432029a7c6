"""The channel operators on the GPU: allocation and launches; the kernels compute."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._spec import ChannelOptions
from evenkeel.kernels import _fakes
from evenkeel.kernels.triton import channels_forward_kernels as forward_kernels
from evenkeel.kernels.triton._channel_calls import Call, Step, call_of, laid_out
from evenkeel.kernels.triton._launch import CHANNEL_BLOCK
from evenkeel.kernels.triton._layout import dense
from evenkeel.kernels.triton._start import on_device, program

if TYPE_CHECKING:
    from torch import Tensor

    Gradients = tuple[Tensor, Tensor, Tensor]
    Moved = tuple[Tensor, Tensor, float | Tensor]


def parts_of(momentum: float) -> tuple[float, float]:
    """A number as the sum of two of float32, which a kernel's numbers are."""
    high = ctypes.c_float(momentum).value
    return high, momentum - high


def channels_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    mask: Tensor | None,
    *options: Any,
    moved: Moved | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the statistics of each channel or group as columns, and their variances.

    ``moved`` are running statistics and their momentum, a number or a tensor: they move in the same launch.
    """
    y, statistics, variances = _fakes.channels_forward(x, weight, bias, mean, variance, mask, *options)
    if x.numel() == 0:
        return y, statistics.zero_(), variances.zero_()
    call, valid = call_of(x, mask, ChannelOptions(*options), mean is not None)
    with on_device(x):
        source, written = laid_out(x, call.layout), call.place(y)
        parameters = dense(weight), dense(bias)
        by_group = call.by_group and moved is None
        if by_group:
            call.group_forward(source, *parameters, statistics, variances, written)
        elif mean is not None and variance is not None:
            call.remember(dense(mean), dense(variance), statistics, variances)
        else:
            partial = torch.empty((3, call.measure.size), dtype=torch.float64, device=x.device)
            call.measure(source, valid, partial)
            merge_and_move(call.merge, (partial, statistics, variances), moved)
        if not by_group:
            call.write(source, *parameters, valid, statistics, written)
    if written is not y:
        y.copy_(written)
    return y, statistics, variances


def merge_and_move(merge: Step, tensors: tuple[Tensor, ...], moved: Moved | None) -> None:
    """Merge the sums, and move running statistics with a momentum towards what comes out."""
    if moved is None:
        merge(*tensors, None, None, None)
        return
    mean, variance, momentum = moved
    if isinstance(momentum, torch.Tensor):
        merge(*tensors, mean, variance, momentum)
    else:
        merge._replace(floats=parts_of(momentum))(*tensors, mean, variance, None)


def channels_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    mask: Tensor | None,
    remembered: bool,
    *arguments: Any,
) -> Gradients:
    """dx, dweight and dbias; one that is not needed is empty."""
    gradients = _fakes.channels_backward(dy, x, weight, bias, statistics, mask, remembered, *arguments)
    dx, dweight, dbias = (t if t.numel() else None for t in gradients)
    if x.numel() == 0:
        for t in gradients:
            t.zero_()
        return gradients
    call, valid = call_of(x, mask, ChannelOptions(*arguments[:-3]), remembered)
    tensors = (laid_out(dy, call.layout), laid_out(x, call.layout), dense(weight), dense(bias), valid)
    saved = statistics.contiguous()
    with on_device(x):
        if call.by_group:
            differentiate_groups(call, tensors[:4], saved, (dx, dweight, dbias))
            return gradients
        means = None
        if dweight is not None or dbias is not None or not remembered:
            partial = saved.new_empty((2 if valid is None else 3, call.sums.size), dtype=torch.float64)
            call.sums(*tensors, saved, partial)
            if dweight is not None or dbias is not None:
                call.parameters(partial, dweight, dbias)
            if dx is not None and not remembered:
                means = partial.new_empty((call.statistics, 2))
                call.means(partial, tensors[2], means)
        if dx is not None:
            written = call.place(dx)
            call.gradient(*tensors, saved, means, written)
            if written is not dx:
                dx.copy_(written)
    return gradients


def differentiate_groups(
    call: Call, tensors: tuple[Tensor | None, ...], statistics: Tensor, gradients: tuple[Tensor | None, ...]
) -> None:
    """Write dx, dweight and dbias, those that have a place, group by group."""
    dx, dweight, dbias = gradients
    summed = dweight is not None or dbias is not None
    partial = statistics.new_empty((2, call.group_gradient.size), dtype=torch.float64) if summed else None
    written = None if dx is None else call.place(dx)
    call.group_gradient(*tensors, statistics, written, partial)
    if summed:
        call.group_parameters(partial, dweight, dbias)
    if dx is not None and written is not None and written is not dx:
        dx.copy_(written)


def update_running(
    running_mean: Tensor, running_var: Tensor, statistics: Tensor, variances: Tensor, momentum: float, count: int
) -> None:
    """Move running statistics towards those of a batch of ``count`` values a channel, in one launch."""
    channels = variances.numel()
    if channels == 0:
        return
    constants = {"C": channels, "WIDTH": statistics.shape[1], "BLOCK": CHANNEL_BLOCK}
    update = program(forward_kernels.channels_update_kernel, **constants)
    with on_device(variances):
        tensors = (running_mean, running_var, statistics, variances)
        update((-(-channels // CHANNEL_BLOCK),), tensors, (count,), parts_of(momentum))
