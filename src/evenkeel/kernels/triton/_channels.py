"""The channel operators on the GPU: layouts, allocation and launches; the kernels compute."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evenkeel._spec import ChannelOptions
from evenkeel.kernels import _fakes
from evenkeel.kernels.triton import channels_backward_kernels as backward_kernels
from evenkeel.kernels.triton import channels_forward_kernels as forward_kernels
from evenkeel.kernels.triton._launch import ALIGNMENT, CHANNEL_BLOCK, Launch, channel_launch, merge_launch
from evenkeel.kernels.triton._layout import dense
from evenkeel.kernels.triton._rows import UNFUSED, on_device, smallest_scaled

if TYPE_CHECKING:
    from torch import Tensor

    Gradients = tuple[Tensor, Tensor, Tensor]

FEW_ELEMENTS = 64  # of a statistic: their gradients are computed in float64
FEWEST_LAST = 16  # positions of a sample from which on groups are summed where the channels lie innermost


def channels_last_of(t: Tensor) -> torch.memory_format | None:
    """The format of a tensor whose channels lie innermost, unless it is contiguous as well."""
    if t.is_contiguous():
        return None
    for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if t.ndim == ndim and t.is_contiguous(memory_format=layout):
            return layout
    return None


def laid_out(t: Tensor, layout: torch.memory_format) -> Tensor:
    """A tensor in a layout, from an aligned address on: itself or a copy."""
    if t.is_contiguous(memory_format=layout) and t.data_ptr() % ALIGNMENT == 0:
        return t
    return t.clone(memory_format=layout)


class Walk(NamedTuple):
    """What a kernel walks: some samples of channels and positions, or with ``spans`` the positions of all of them.

    Attributes:
        samples: how many.
        channels: of a sample; groups of them where they lie as one.
        positions: of a channel of a sample.
        period: of them, positions of the mask.
        last: whether the channels lie innermost.
        spans: whether a statistic is over all samples.
    """

    samples: int
    channels: int
    positions: int
    period: int
    last: bool
    spans: bool

    def launch(self) -> Launch:
        """How it is launched."""
        return channel_launch(self.channels, self.positions, self.last, self.spans)

    def chunks(self, size: int) -> int:
        """How many chunks of positions there are."""
        return -(-self.positions * (self.samples if self.spans else 1) // size)

    def parts(self, size: int) -> int:
        """How many sums there are of chunks."""
        return (1 if self.spans else self.samples) * self.channels * self.chunks(size)

    def programs(self, launch: Launch, size: int) -> tuple[int]:
        """The grid of a kernel that takes a chunk at a time."""
        return ((1 if self.spans else self.samples) * -(-self.channels // launch.rows) * self.chunks(size),)

    def constants(self, launch: Launch) -> dict[str, Any]:
        """The compile-time arguments that the kernels share."""
        runs = launch.block // self.positions + 2 if self.spans else launch.rows
        reached = launch.block * self.channels if self.last else runs * self.channels * self.positions
        return {
            "C": self.channels,
            "P": self.positions,
            "PERIOD": self.period,
            "LAST": self.last,
            "SPANS": self.spans,
            "CHANNELS": launch.rows,
            "BLOCK": launch.block,
            "WIDE": max(reached, self.positions) >= 2**30,
            "num_warps": launch.warps,
            **UNFUSED,
        }


class Call:
    """A tensor with its layout, options and mask; the launches that both directions share."""

    def __init__(self, x: Tensor, mask: Tensor | None, options: ChannelOptions, remembered: bool) -> None:
        self.remembered = remembered
        self.options = options._replace(
            groups=0 if remembered else x.shape[1] if options.groups < 0 else options.groups
        )
        self.samples, self.channels, self.positions = x.shape[0], x.shape[1], math.prod(x.shape[2:])
        groups = self.options.groups
        layout = channels_last_of(x)
        if groups and self.positions < FEWEST_LAST:
            layout = None
        self.layout = layout or torch.contiguous_format
        self.last = layout is not None or (not groups and self.positions == 1)
        self.mask = None if mask is None else dense(mask.contiguous().view(torch.uint8))

    @property
    def share(self) -> int:
        """Channels of a statistic."""
        return self.channels // self.options.groups if self.options.groups else 1

    @property
    def statistics(self) -> int:
        """How many statistics there are."""
        return self.samples * self.options.groups if self.options.groups else self.channels

    @property
    def elements(self) -> int:
        """Elements of a statistic, those included that a mask leaves out."""
        return self.samples * self.channels * self.positions // self.statistics

    @property
    def few(self) -> bool:
        """Whether gradients are computed in float64."""
        return not self.remembered and self.elements <= FEW_ELEMENTS

    def walk(self, *, summed: bool) -> Walk:
        """Channels and positions; what is summed for BatchNorm goes on from sample to sample."""
        spans = not self.options.groups and (summed or self.last)
        return Walk(self.samples, self.channels, self.positions, self.positions, self.last, spans)

    def measured(self) -> Walk:
        """What statistics are measured of: contiguous groups are walked as one."""
        groups = self.options.groups
        if not groups or self.last:
            return self.walk(summed=True)
        return Walk(self.samples, groups, self.share * self.positions, self.positions, False, False)

    def place(self, t: Tensor) -> Tensor:
        """Memory for a result of the kernels: the result itself where it has their layout."""
        return t if t.is_contiguous(memory_format=self.layout) else torch.empty_like(t, memory_format=self.layout)

    def eps(self) -> dict[str, Any]:
        """How eps enters."""
        return {"EPS": self.options.eps, "EPS_MODE": self.options.eps_mode}

    def affine(self) -> dict[str, Any]:
        """The compile-time arguments of the kernels that apply statistics."""
        return {
            "SHARE": self.share,
            "GROUPS": self.options.groups,
            "EPS_MODE": self.options.eps_mode,
            "ACTIVATION": self.options.activation,
            "REMEMBERED": self.remembered,
        }

    def measure(self, x: Tensor, statistics: Tensor, variances: Tensor) -> None:
        """Sums of chunks, and the statistics from them."""
        walk = self.measured()
        launch = walk.launch()
        chunks, count = walk.chunks(launch.chunk), walk.parts(launch.chunk)
        partial = torch.empty((3, count), dtype=torch.float64, device=x.device)
        forward_kernels.channels_measure_kernel[walk.programs(launch, launch.chunk)](
            x, self.mask, partial, self.samples, chunks, launch.chunk // launch.block, count,
            smallest_scaled(self.options), CHUNK=launch.chunk, **walk.constants(launch),
        )  # fmt: skip
        entries = count // self.statistics
        merge = merge_launch(entries)
        forward_kernels.channels_merge_kernel[(-(-self.statistics // merge.rows),)](
            partial, statistics, variances, self.statistics, entries, ROWS=merge.rows, BLOCK=merge.block,
            num_warps=merge.warps, **self.eps(), **UNFUSED,
        )  # fmt: skip

    def remember(self, mean: Tensor, variance: Tensor, statistics: Tensor, variances: Tensor) -> None:
        """The statistics that are given."""
        forward_kernels.channels_remember_kernel[(-(-self.channels // CHANNEL_BLOCK),)](
            dense(mean), dense(variance), statistics, variances, C=self.channels, BLOCK=CHANNEL_BLOCK, **self.eps(),
            **UNFUSED,
        )  # fmt: skip

    def write(self, x: Tensor, parameters: tuple[Tensor | None, Tensor | None], statistics: Tensor, y: Tensor) -> None:
        """y from the statistics."""
        walk = self.walk(summed=False)
        launch = walk.launch()
        forward_kernels.channels_write_kernel[walk.programs(launch, launch.block)](
            x, *parameters, self.mask, statistics, y, self.samples, walk.chunks(launch.block),
            self.options.weight_offset, **walk.constants(launch), **self.affine(),
        )  # fmt: skip

    def sums(
        self, dy: Tensor, x: Tensor, parameters: tuple[Tensor | None, Tensor | None], statistics: Tensor
    ) -> tuple[Tensor, int]:
        """Each channel's sums over chunks of positions, and how many chunks there are."""
        walk = self.walk(summed=True)
        launch = walk.launch()
        chunks, count = walk.chunks(launch.chunk), walk.parts(launch.chunk)
        partial = statistics.new_empty((2 if self.mask is None else 3, count), dtype=torch.float64)
        backward_kernels.channels_sums_kernel[walk.programs(launch, launch.chunk)](
            dy, x, *parameters, self.mask, statistics, partial, self.samples, chunks, launch.chunk // launch.block,
            count, self.options.weight_offset, CHUNK=launch.chunk, FEW=self.few, **walk.constants(launch),
            **self.affine(),
        )  # fmt: skip
        return partial, chunks

    def means(self, partial: Tensor, chunks: int, weight: Tensor | None) -> Tensor:
        """What the sums say of each statistic."""
        means = partial.new_empty((self.statistics, 2))
        merge = merge_launch(chunks * self.share)
        backward_kernels.channels_means_kernel[(-(-self.statistics // merge.rows),)](
            partial, weight, means, self.statistics, chunks, self.elements, self.options.weight_offset,
            SHARE=self.share, PARAMETERS=self.options.groups or self.channels, MASKED=self.mask is not None,
            ROWS=merge.rows, BLOCK=merge.block, num_warps=merge.warps, **UNFUSED,
        )  # fmt: skip
        return means

    def parameters(self, partial: Tensor, chunks: int, dweight: Tensor | None, dbias: Tensor | None) -> None:
        """dγ and dβ from the sums."""
        merge = merge_launch(chunks)
        samples = self.samples if self.options.groups else 1
        backward_kernels.channels_parameters_kernel[(-(-self.channels // merge.rows),)](
            partial, dweight, dbias, samples, chunks, partial.shape[1], C=self.channels, CHANNELS=merge.rows,
            BLOCK=merge.block, num_warps=merge.warps, **UNFUSED,
        )  # fmt: skip

    def gradient(
        self,
        tensors: tuple[Tensor, Tensor],
        parameters: tuple[Tensor | None, Tensor | None],
        statistics: Tensor,
        means: Tensor | None,
        dx: Tensor,
    ) -> None:
        """dx from the means."""
        walk = self.walk(summed=False)
        launch = walk.launch()
        backward_kernels.channels_gradient_kernel[walk.programs(launch, launch.block)](
            *tensors, *parameters, self.mask, statistics, means, dx, self.samples, walk.chunks(launch.block),
            self.options.weight_offset, FEW=self.few, **walk.constants(launch), **self.affine(),
        )  # fmt: skip


def channels_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    mask: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the statistics of each channel or group as columns, and their variances."""
    y, statistics, variances = _fakes.channels_forward(x, weight, bias, mean, variance, mask, *options)
    if x.numel() == 0:
        return y, statistics.zero_(), variances.zero_()
    call = Call(x, mask, ChannelOptions(*options), mean is not None)
    with on_device(x):
        source, written = laid_out(x, call.layout), call.place(y)
        if mean is not None and variance is not None:
            call.remember(mean, variance, statistics, variances)
        else:
            call.measure(source, statistics, variances)
        call.write(source, (dense(weight), dense(bias)), statistics, written)
    if written is not y:
        y.copy_(written)
    return y, statistics, variances


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
    call = Call(x, mask, ChannelOptions(*arguments[:-3]), remembered)
    tensors = (laid_out(dy, call.layout), laid_out(x, call.layout))
    affine, saved = (dense(weight), dense(bias)), statistics.contiguous()
    with on_device(x):
        means = None
        if dweight is not None or dbias is not None or not remembered:
            partial, chunks = call.sums(*tensors, affine, saved)
            if dweight is not None or dbias is not None:
                call.parameters(partial, chunks, dweight, dbias)
            if dx is not None and not remembered:
                means = call.means(partial, chunks, affine[0])
        if dx is not None:
            written = call.place(dx)
            call.gradient(tensors, affine, saved, means, written)
            if written is not dx:
                dx.copy_(written)
    return gradients


def update_running(
    running_mean: Tensor, running_var: Tensor, statistics: Tensor, variances: Tensor, momentum: float, count: int
) -> None:
    """Move running statistics towards those of a batch of ``count`` values a channel, in one launch."""
    high = ctypes.c_float(momentum).value  # a kernel's numbers are float32
    channels = variances.numel()
    if channels == 0:
        return
    with on_device(variances):
        forward_kernels.channels_update_kernel[(-(-channels // CHANNEL_BLOCK),)](
            running_mean, running_var, statistics, variances, high, momentum - high, count, C=channels,
            WIDTH=statistics.shape[1], BLOCK=CHANNEL_BLOCK, **UNFUSED,
        )  # fmt: skip
