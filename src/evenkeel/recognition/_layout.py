"""Which elements of an input share a statistic, found by changing one element and looking which outputs move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenkeel.recognition._copies import floating_tensors
from evenkeel.recognition._probes import random_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from evenkeel._spec import Shares

__all__ = ["Layout", "candidate_shapes", "layout_of", "sharing"]

FREE_SIZES = (3, 5, 4, 6, 7)  # of the axes that no parameter decides
FEW_SIZES = (2, 3, 2, 3, 2)  # the same where the features are many
MANY = 512
DEFAULT_SIZE = 12
# An activation hides the outputs that it sets to zero: the same input with the other sign shows them.
TRIALS = ((0, 1.0, 0.5, -1.25), (0, -1.0, 0.5, -1.25), (1, 1.0, 6.0, -5.0), (1, -1.0, -4.0, 7.0))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the sharing elements lie.

    Attributes:
        shares: as in `evenkeel.NormSpec`; None where every element stands for itself.
        axes: how many trailing axes share one statistic, for ``token``.
        channel_axis: the axis that the parameters belong to: 1, or -1 for the last.
        groups: into how many groups the channels, or the trailing axes, are divided.
        contiguous: whether the result of a contiguous input is contiguous, so that it can be viewed.

    Example:
        >>> import torch, evenkeel as ek
        >>> ek.convert.recognize(torch.nn.LayerNorm((4, 6))).layout.axes
        2
    """

    shares: Shares | None
    axes: int = 1
    channel_axis: int = -1
    groups: int | None = None
    contiguous: bool = True


def candidate_shapes(module: nn.Module, example: Tensor | None = None) -> Iterator[tuple[int, ...]]:
    """Yield shapes of inputs that a norm with these parameters may take, those with the most axes first."""
    if example is not None:
        yield tuple(example.shape)
        return
    tail = feature_shape(module)
    sizes = FREE_SIZES if math.prod(tail) <= MANY else FEW_SIZES
    a, b, c, d = ([size for size in sizes if size not in tail] + list(sizes))[:4]
    if len(tail) == 1:
        (size,) = tail
        shapes: list[tuple[int, ...]] = [
            (a, size, 2, b, c),
            (a, size, b, c),
            (a, b, c, size),
            (a, size, b),
            (a, b, size),
            (d, size),
        ]
    else:
        shapes = [(a, b, *tail), (b, *tail)]
    yield from dict.fromkeys(shapes)


def feature_shape(module: nn.Module) -> tuple[int, ...]:
    """The sizes of the parameters, or of the attributes that tell one."""
    shapes = [tuple(s for s in t.shape if s != 1) for t in floating_tensors(module).values() if t.numel() > 1]
    if shapes:
        return max(shapes, key=len)
    declared: list[Any] = [vars(child).get("normalized_shape") for child in module.modules()]
    for given in declared:
        if isinstance(given, tuple | list) and given and all(isinstance(size, int) for size in given):
            return tuple(given)
    sizes = [v for child in module.modules() for v in vars(child).values() if type(v) is int and 3 < v <= 2**16]
    return (max(sizes, default=DEFAULT_SIZE),)


def sharing(run: Callable[[Tensor], Tensor], shape: Sequence[int], dtype: torch.dtype) -> list[set[int]] | str:
    """Which outputs depend on an element of the middle: along each axis, the indices; or why that is no box."""
    place = tuple(size // 2 for size in shape)
    moved = torch.zeros(tuple(shape), dtype=torch.bool)
    for seed, sign, before, after in TRIALS:
        x = sign * random_values(shape, seed).to(dtype)
        x[place] = before
        other = x.clone()
        other[place] = after
        y, z = run(x), run(other)
        if y.shape != x.shape:
            return f"its result has the shape {tuple(y.shape)} for an input of {tuple(shape)}"
        moved |= ~((y == z) | (y.isnan() & z.isnan()))
    if not moved.any():
        return "its result does not depend on its input"
    indices = [set(moved.nonzero()[:, axis].tolist()) for axis in range(len(shape))]
    if int(moved.sum()) != math.prod(map(len, indices)):
        return "the elements that share a statistic fill no box of axes"
    return indices


def layout_of(indices: list[set[int]], shape: Sequence[int], size: tuple[int, ...]) -> Layout | str:
    """Name the layout of a sharing set, or say why it has no name here.

    ``size`` is the shape of the parameters: it tells a normalization of all channels from one of the trailing axes.
    """
    whole = [len(found) == length for found, length in zip(indices, shape, strict=True)]
    single = [len(found) == 1 for found in indices]
    rank = len(shape)
    if all(single):
        return Layout(shares=None, channel_axis=channel_of(shape, size))
    part = [axis for axis in range(rank) if not (whole[axis] or single[axis])]
    if rank > 2 and part == [1] and single[0] and all(whole[2:]) and is_block(indices[1], shape[1]):
        return Layout(shares="sample_group", channel_axis=1, groups=shape[1] // len(indices[1]))
    if part == [rank - 1] and all(single[:-1]) and size == (shape[-1],) and is_block(indices[-1], shape[-1]):
        return Layout(shares="token", groups=shape[-1] // len(indices[-1]))
    if part:
        along = "the last axis" if part == [rank - 1] else f"axis {part[0]}"
        return f"its statistics are those of a part of {along}, which a spec cannot say"
    return whole_axes(tuple(axis for axis in range(rank) if whole[axis]), shape, size)


def whole_axes(full: tuple[int, ...], shape: Sequence[int], size: tuple[int, ...]) -> Layout | str:
    """Name the layout whose statistics cover whole axes."""
    rank, axes = len(shape), len(full)
    positions = tuple(range(2, rank))
    if full == (0, *positions):
        return Layout(shares="channel", channel_axis=1)
    if full == tuple(range(rank - 1)):
        return Layout(shares="channel", channel_axis=-1)
    if rank > 2 and full == (1, *positions) and len(size) == 1 and shape[1] == size[0] != shape[-1]:
        return Layout(shares="sample_group", channel_axis=1, groups=1)
    if rank > 2 and full == positions and len(size) == 1 and shape[1] == size[0]:
        return Layout(shares="sample_channel", channel_axis=1)
    if full == tuple(range(rank - axes, rank)):
        if axes < len(size) and tuple(shape[rank - len(size) :]) == size:  # weights of each head, say
            return Layout(shares="token", axes=len(size), groups=math.prod(size[:-axes]))
        return Layout(shares="token", axes=axes)
    if full == (1,):
        return Layout(shares="token", channel_axis=1)
    return f"its statistics cover the axes {full} of {rank}, which a spec cannot say"


def is_block(indices: set[int], length: int) -> bool:
    """Whether indices are one of the equal parts that an axis is divided into."""
    count = len(indices)
    return length % count == 0 and min(indices) % count == 0 and max(indices) - min(indices) == count - 1


def channel_of(shape: Sequence[int], size: tuple[int, ...]) -> int:
    """The axis whose length is that of the parameters: the first but the batch, or the last."""
    return 1 if len(size) == 1 and len(shape) > 1 and shape[1] == size[0] else -1
