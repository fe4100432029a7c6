"""The launches of the channel operators: for a shape, a layout and options they are found once."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evenkeel.kernels.triton import channels_backward_kernels as backward_kernels
from evenkeel.kernels.triton import channels_forward_kernels as forward_kernels
from evenkeel.kernels.triton._launch import (
    ALIGNMENT,
    CHANNEL_BLOCK,
    FEW_WARPS,
    GROUP_WARPS,
    TILE,
    WIDEST_VECTOR,
    Launch,
    channel_launch,
    merge_launch,
)
from evenkeel.kernels.triton._layout import dense, dividing
from evenkeel.kernels.triton._rows import smallest_scaled
from evenkeel.kernels.triton._start import Program, program

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import ChannelOptions

FEW_ELEMENTS = 64  # of a statistic: their gradients are computed in float64
FIRST_WIDE = 2**30  # elements of what a tile reaches from which on its places have 64 bits
SMALLEST_GROUP, LARGEST_GROUP = 1024, 16384  # elements of groups whose gradients one program computes
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
        period: positions after which the next sample's follow, or a mask begins again.
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

    def lengths(self) -> tuple[int, int, int, int]:
        """The positions that are walked in all, the period, and the factor and the shift that divide by it."""
        extent = self.positions * (self.samples if self.spans else 1)
        return extent, self.period, *dividing(self.period)

    def aligned(self, launch: Launch) -> int:
        """What divides every place of a tile's channels, as far as vectors profit from it."""
        return 1 if self.last else math.gcd(self.period, launch.block, WIDEST_VECTOR)

    def constants(self, launch: Launch) -> dict[str, Any]:
        """The compile-time arguments that the kernels share; of the positions, whether vectors fit."""
        runs = launch.block // self.positions + 2 if self.spans else launch.rows
        reached = launch.block * self.channels if self.last else runs * self.channels * self.positions
        return {
            "C": self.channels,
            "ALIGNED": self.aligned(launch),
            "LAST": self.last,
            "SPANS": self.spans,
            "CHANNELS": launch.rows,
            "BLOCK": launch.block,
            "WIDE": max(reached, self.positions) >= FIRST_WIDE,
        }


class Step(NamedTuple):
    """A launch but for its tensors; ``size`` is how many parts or statistics it writes."""

    program: Program
    grid: tuple[int, ...]
    integers: tuple[int, ...]
    floats: tuple[float, ...] = ()
    size: int = 0

    def __call__(self, *tensors: Tensor | None) -> None:
        self.program(self.grid, tensors, self.integers, self.floats)


class Call:
    """The launches of calls with one shape, layout and options, forward and backward; found once for each."""

    def __init__(
        self, shape: tuple[int, ...], layout: torch.memory_format | None, options: ChannelOptions, remembered: bool,
        masked: bool,
    ) -> None:  # fmt: skip
        self.remembered, self.masked = remembered, masked
        groups = 0 if remembered else shape[1] if options.groups < 0 else options.groups
        self.options = options._replace(groups=groups)
        self.samples, self.channels, self.positions = shape[0], shape[1], math.prod(shape[2:])
        if groups and self.positions < FEWEST_LAST:
            layout = None
        self.layout = layout or torch.contiguous_format
        self.last = layout is not None or (not groups and self.positions == 1)

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
        positions = self.share * self.positions
        return Walk(self.samples, groups, positions, self.positions if self.masked else positions, False, False)

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

    @cached_property
    def measure(self) -> Step:
        """(x, mask, partial): sums of chunks."""
        walk = self.measured()
        launch = walk.launch()
        kernel = program(forward_kernels.channels_measure_kernel, launch.warps, **walk.constants(launch))
        count = walk.parts(launch.chunk)
        integers = (*walk.lengths(), walk.chunks(launch.chunk), launch.chunk // launch.block, count)
        return Step(kernel, walk.programs(launch, launch.chunk), integers, (smallest_scaled(self.options),), count)

    @cached_property
    def merge(self) -> Step:
        """(partial, statistics, variances, running_mean, running_var, share): the statistics from the sums."""
        entries = self.measure.size // self.statistics
        merge = merge_launch(entries)
        kernel = program(
            forward_kernels.channels_merge_kernel, merge.warps, ROWS=merge.rows, BLOCK=merge.block, **self.eps()
        )
        return Step(kernel, (-(-self.statistics // merge.rows),), (self.statistics, entries), (0.0, 0.0))

    @cached_property
    def remember(self) -> Step:
        """(mean, variance, statistics, variances): the statistics that are given."""
        kernel = program(forward_kernels.channels_remember_kernel, C=self.channels, BLOCK=CHANNEL_BLOCK, **self.eps())
        return Step(kernel, (-(-self.channels // CHANNEL_BLOCK),), ())

    @cached_property
    def write(self) -> Step:
        """(x, weight, bias, mask, statistics, y): y from the statistics."""
        return self.whole(forward_kernels.channels_write_kernel)

    def whole(self, kernel: Any, **more: Any) -> Step:
        """What goes through a tensor tile by tile."""
        walk = self.walk(summed=False)
        launch = walk.launch()
        found = program(kernel, launch.warps, **walk.constants(launch), **self.affine(), **more)
        integers = (*walk.lengths(), walk.chunks(launch.block))
        return Step(found, walk.programs(launch, launch.block), integers, (self.options.weight_offset,))

    @cached_property
    def sums(self) -> Step:
        """(dy, x, weight, bias, mask, statistics, partial): each channel's sums over chunks of positions."""
        walk = self.walk(summed=True)
        launch = walk.launch()
        constants = walk.constants(launch) | self.affine() | {"FEW": self.few}
        warps = FEW_WARPS if self.few and launch.block * launch.rows == TILE else launch.warps
        kernel = program(backward_kernels.channels_sums_kernel, warps, **constants)
        count = walk.parts(launch.chunk)
        integers = (*walk.lengths(), walk.chunks(launch.chunk), launch.chunk // launch.block, count)
        return Step(
            kernel, walk.programs(launch, launch.chunk), integers, (self.options.weight_offset,), count
        )  # fmt: skip

    @property
    def chunks_of_sums(self) -> int:
        """Into how many chunks the sums of a channel are divided."""
        walk = self.walk(summed=True)
        return walk.chunks(walk.launch().chunk)

    @cached_property
    def means(self) -> Step:
        """(partial, weight, means): what the sums say of each statistic."""
        chunks = self.chunks_of_sums
        merge = merge_launch(chunks * self.share)
        kernel = program(
            backward_kernels.channels_means_kernel, merge.warps, SHARE=self.share,
            PARAMETERS=self.options.groups or self.channels, MASKED=self.masked, ROWS=merge.rows, BLOCK=merge.block,
        )  # fmt: skip
        integers = (self.statistics, chunks, self.elements)
        return Step(kernel, (-(-self.statistics // merge.rows),), integers, (self.options.weight_offset,))

    @cached_property
    def parameters(self) -> Step:
        """(partial, dweight, dbias): dγ and dβ from the sums."""
        return self.parameters_of(self.chunks_of_sums, self.sums.size)

    def parameters_of(self, chunks: int, size: int) -> Step:
        """The same from so many chunks of each channel, sums in all."""
        samples = self.samples if self.options.groups else 1
        merge = merge_launch(chunks if chunks > 1 else samples)
        kernel = program(
            backward_kernels.channels_parameters_kernel, merge.warps, C=self.channels, CHANNELS=merge.rows,
            BLOCK=merge.block,
        )  # fmt: skip
        return Step(kernel, (-(-self.channels // merge.rows),), (samples, chunks, size))

    @property
    def by_group(self) -> bool:
        """Whether one program takes a whole group, which is in the caches when it comes back to it."""
        return (
            self.options.groups > 0 and not self.last and not self.masked
            and SMALLEST_GROUP <= self.elements <= LARGEST_GROUP
        )  # fmt: skip

    def whole_groups(self, kernel: Any, **more: Any) -> tuple[Program, tuple[int]]:
        """A kernel with a program for each group of each sample, and its grid."""
        walk = self.walk_of_group()
        launch = walk.launch()
        found = program(
            kernel, GROUP_WARPS, C=self.channels, ALIGNED=walk.aligned(launch), CHANNELS=launch.rows,
            BLOCK=launch.block, SINGLE=self.positions <= launch.block,
            WHOLE=self.share % launch.rows == self.positions % launch.block == 0, SHARE=self.share,
            GROUPS=self.options.groups, EPS_MODE=self.options.eps_mode, ACTIVATION=self.options.activation, **more,
        )  # fmt: skip
        return found, (self.statistics,)

    def walk_of_group(self) -> Walk:
        """The channels and positions of a group."""
        return Walk(self.samples, self.share, self.positions, self.positions, False, False)

    @cached_property
    def group_forward(self) -> Step:
        """(x, weight, bias, statistics, variances, y): y and the statistics."""
        kernel, measured = forward_kernels.channels_group_forward_kernel, self.measured()
        flat = measured.launch()
        found = self.whole_groups(kernel, FLAT=flat.block, FLAT_ALIGNED=measured.aligned(flat), EPS=self.options.eps)
        return Step(*found, (self.positions,), (smallest_scaled(self.options), self.options.weight_offset))

    @cached_property
    def group_gradient(self) -> Step:
        """(dy, x, weight, bias, statistics, dx, partial): dx, and each channel's sums in a sample."""
        found, size = self.whole_groups(backward_kernels.channels_group_gradient_kernel), self.samples * self.channels
        return Step(*found, (self.positions, size), (self.options.weight_offset,), size)

    @cached_property
    def group_parameters(self) -> Step:
        """(partial, dweight, dbias): dγ and dβ from the sums of samples."""
        return self.parameters_of(1, self.group_gradient.size)

    @cached_property
    def gradient(self) -> Step:
        """(dy, x, weight, bias, mask, statistics, means, dx): dx from the means."""
        return self.whole(backward_kernels.channels_gradient_kernel, FEW=self.few)


found_call = lru_cache(maxsize=4096)(Call)


def call_of(x: Tensor, mask: Tensor | None, options: ChannelOptions, remembered: bool) -> tuple[Call, Tensor | None]:
    """The launches for a tensor, and the mask as bytes."""
    call = found_call(x.shape, channels_last_of(x), options, remembered, mask is not None)
    return call, None if mask is None else dense(mask.contiguous().view(torch.uint8))
