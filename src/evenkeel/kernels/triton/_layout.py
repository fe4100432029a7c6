"""Where the rows of strided tensors lie, for kernels that walk one or two axes of rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from evenkeel.kernels.triton._launch import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Rows(NamedTuple):
    """Tensors whose rows the kernels can reach, and how.

    Attributes:
        tensors: the given ones, or contiguous copies of those that cannot be reached.
        inner: rows along the inner of two axes, 1 where there is only one.
        strides: for each tensor one after the other, elements from a row to the next along the outer axis and the
            inner one.
    """

    tensors: list[Tensor | None]
    inner: int
    strides: list[int]


def merged_axes(t: Tensor, axes: int) -> list[tuple[int, int]] | None:
    """Sizes and strides of the leading axes, merged where they lie as one; None unless the trailing ones are dense."""
    sizes, strides = t.shape, t.stride()
    expected = 1
    for axis in range(t.ndim - 1, t.ndim - axes - 1, -1):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    merged: list[tuple[int, int]] = []
    for size, stride in zip(sizes[: t.ndim - axes], strides, strict=False):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def alignment(features: int) -> int:
    """The largest power of two that divides the features, as far as vectors profit from it."""
    return math.gcd(features, ALIGNMENT)


def dividing(divisor: int) -> tuple[int, int]:
    """The factor and the shift with which n // divisor is (2n * factor) >> (32 + shift) for all n below 2^31.

    The factor has 32 bits, and is given as the signed number of the same bits. Divisors from 2^31 on have none: what
    they divide has 64 bits.
    """
    if divisor >= 2**31:
        return 0, 0
    shift = (divisor - 1).bit_length()
    factor = (1 << 31 + shift) // divisor + 1
    return factor - 2**32 if factor >= 2**31 else factor, shift


def is_aligned(t: Tensor, merged: Sequence[tuple[int, int]], features: int) -> bool:
    """Whether whole vectors can be read: always the same ones, so that a row's bits do not depend on where it lies."""
    return t.data_ptr() % ALIGNMENT == 0 and all(stride % alignment(features) == 0 for _, stride in merged)


def reach(tensors: Sequence[Tensor | None], axes: int, features: int) -> Rows:
    """Lay tensors of one shape out for the kernels, with copies of those that have no such layout."""
    inner = 1
    reached: list[Tensor | None] = []
    layouts: list[list[tuple[int, int]]] = []
    for t in tensors:
        if t is None:
            reached.append(t)
            layouts.append([])
            continue
        if t.is_contiguous() and t.data_ptr() % ALIGNMENT == 0:
            reached.append(t)
            layouts.append([(0, features)])
            continue
        merged = merged_axes(t, axes)
        if merged is not None and len(merged) == 2 and inner == 1:
            inner = merged[1][0]
        fits = merged is not None and (len(merged) < 2 or (len(merged) == 2 and merged[1][0] == inner))
        if merged is None or not fits or not is_aligned(t, merged, features):
            t = t.clone(memory_format=torch.contiguous_format)
            merged = [(0, features)]
        reached.append(t)
        layouts.append(merged)
    return Rows(reached, inner, [stride for merged in layouts for stride in strides_of(merged, inner)])


def strides_of(merged: Sequence[tuple[int, int]], inner: int) -> tuple[int, int]:
    """Strides along two axes of which the inner one has a size, or along one where that is 1."""
    if len(merged) == 2:
        return merged[0][1], merged[1][1]
    stride = merged[0][1] if merged else 0
    return (stride * inner, stride) if inner > 1 else (stride, 0)


def dense(parameter: Tensor | None) -> Tensor | None:
    """A parameter whose values lie one after the other, from an aligned address on."""
    if parameter is None or (parameter.is_contiguous() and parameter.data_ptr() % ALIGNMENT == 0):
        return parameter
    return parameter.clone(memory_format=torch.contiguous_format)
