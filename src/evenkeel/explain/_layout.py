"""Who shares statistics with whom, and which weight belongs to which element."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._options.explain import check_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenkeel.explain._norms import Norm

__all__ = ["Layout", "build_layout", "expand_mask"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Groups and parameters of one input.

    Attributes:
        order: (groups, members), flat indices of the input.
        shared: the axes over which statistics are taken.
        parameter_axes: the axes that weight and bias have.
        parameter_shape: their sizes.
        parameter_of: for every element, flat, the number of its parameter.
        sample_axis, channel_axis: of the per-channel norms and images.
        num_groups: of GroupNorm.
    """

    order: np.ndarray
    shared: tuple[int, ...]
    parameter_axes: tuple[int, ...]
    parameter_shape: tuple[int, ...]
    parameter_of: np.ndarray
    sample_axis: int | None = None
    channel_axis: int | None = None
    num_groups: int | None = None


def build_layout(norm: Norm, shape: tuple[int, ...], given: dict[str, Any], colours: int) -> Layout:
    """Return the layout of a norm on an input; ``colours`` counts an image's given statistics."""
    ndim, axes = len(shape), norm.axes
    if axes.rows is not None:
        shared = resolve_axes(given.get("axis", axes.rows), shape)
        return make(shape, shared, shared)
    channel = resolve_axes(given["channel_axis"], shape)[0] if "channel_axis" in given else None
    if axes.lone_vector and ndim == 1:
        return make(shape, (0,), ())
    if norm.family == "image":
        channel = image_channel_axis(shape, channel, colours)
    elif channel is None:
        channel = 1 if ndim >= axes.channels_from else 0
    samples = axes.samples and ndim >= axes.channels_from
    sample = next(a for a in range(ndim) if a != channel) if samples else None
    groups = check_groups(given, shape, channel) if "groups" in norm.options else None
    return make(shape, others(shape, channel, sample), (channel,), channel=channel, sample=sample, groups=groups)


def make(
    shape: tuple[int, ...],
    shared: tuple[int, ...],
    parameter_axes: tuple[int, ...],
    *,
    channel: int | None = None,
    sample: int | None = None,
    groups: int | None = None,
) -> Layout:
    """Return the layout with these axes shared; with ``groups``, neighbouring channels share too."""
    index = np.arange(math.prod(shape)).reshape(shape)
    kept = others(shape, *shared)
    if groups is None:
        order = index.transpose(*kept, *shared).reshape(math.prod(shape[a] for a in kept), -1)
    else:
        front = [a for a in (sample, channel) if a is not None]
        samples = 1 if sample is None else shape[sample]
        order = index.transpose(*front, *shared).reshape(samples * groups, -1)
    parameter_shape = tuple(shape[a] for a in parameter_axes)
    numbers = np.arange(math.prod(parameter_shape)).reshape(
        [shape[a] if a in parameter_axes else 1 for a in range(len(shape))]
    )
    return Layout(
        order=order,
        shared=shared,
        parameter_axes=parameter_axes,
        parameter_shape=parameter_shape,
        parameter_of=np.broadcast_to(numbers, shape).reshape(-1),
        sample_axis=sample,
        channel_axis=channel,
        num_groups=groups,
    )


def others(shape: Sequence[int], *axes: int | None) -> tuple[int, ...]:
    """Return the other axes."""
    return tuple(a for a in range(len(shape)) if a not in axes)


def resolve_axes(axes: int | Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Check axes and return them sorted, counted from 0."""
    try:
        numbers = [operator.index(a) for a in ([axes] if isinstance(axes, int) else axes)]
    except TypeError as error:
        raise InvalidArgumentError(f"explain: an axis is a whole number, but got {axes}") from error
    check_axes(numbers, shape)
    resolved = sorted({axis % len(shape) for axis in numbers})
    if len(resolved) != len(numbers) or not resolved:
        raise InvalidArgumentError(f"explain: the axes must be different and at least one, but got {numbers}")
    return tuple(resolved)


def check_groups(given: dict[str, Any], shape: tuple[int, ...], channel: int) -> int:
    """Return the number of groups, which has to divide the channels."""
    groups, channels = given.get("groups", 1), shape[channel]
    if not isinstance(groups, int) or groups < 1 or channels % groups:
        divisors = ", ".join(str(n) for n in range(1, channels + 1) if channels % n == 0) if channels < 10_000 else ""
        raise InvalidArgumentError(
            f"explain: groups must divide the {channels} channels (axis {channel} of shape {shape}), but got {groups}; "
            f"possible: {divisors or 'its divisors'}"
        )
    return groups


def image_channel_axis(shape: tuple[int, ...], given: int | None, channels: int) -> int:
    """Return an image's colour axis: the given one, or the last or first that fits."""
    likely = (1, 3) if len(shape) == 4 else (len(shape) - 1, 0)
    axis = next((a for a in likely if shape[a] == channels), None) if given is None else given
    if axis is None or (shape[axis] != channels and channels != 1):
        raise InvalidInputError(
            f"explain: an image needs an axis with {channels} channels, as many as mean and std have numbers, but got "
            f"shape {shape}; pass channel_axis, or mean and std with a number for each channel"
        )
    return axis


def expand_mask(mask: Any, shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """Expand a mask (of the input's shape, without the channel axis, or of leading axes) to the input's shape."""
    if mask is None:
        return np.ones(shape, dtype=bool)
    array = mask.detach().cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask)
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise InvalidInputError("explain: a mask holds True (or 1) where valid and False (or 0) elsewhere")
    array = array.astype(bool)
    if array.shape == shape:
        return array
    channel = layout.channel_axis
    positions = shape if channel is None else tuple(n for a, n in enumerate(shape) if a != channel)
    if array.ndim == 0 or array.shape != positions[: array.ndim]:
        raise InvalidInputError(
            f"explain: the mask has shape {array.shape}, but the input has {shape}; give the input's shape"
            + ("" if channel is None else f", the same without its channel axis {positions},")
            + " or its leading axes"
        )
    full = array.reshape(*array.shape, *[1] * (len(positions) - array.ndim))
    if channel is not None:
        full = np.expand_dims(full, channel)
    return np.broadcast_to(full, shape).copy()
