"""Which elements of an input share statistics in a norm that is explained, told from shapes alone."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._options.explain import TABLES


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Which axes of an input a norm shares statistics over, as its row of `assets/explain.json` says.

    Attributes:
        rows: the default axis of a norm of rows or columns; None for the per-channel norms.
        channels_from: from this number of axes on, the channels are axis 1, before that axis 0.
        samples: whether each sample has statistics of its own, from that number of axes on.
        lone_vector: whether a vector is one channel, with one weight.
    """

    rows: int | None = None
    channels_from: int = 2
    samples: bool = False
    lone_vector: bool = False


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Who shares in an input of some shape, and which parameters it has.

    Attributes:
        shared: the axes over which statistics are taken.
        groups: how many groups of elements share, each with its own statistics.
        parameter_axes: the axes that weight and bias have.
        parameter_shape: their sizes.
        sample_axis, channel_axis: of the per-channel norms and images.
        num_groups: of GroupNorm.
    """

    shared: tuple[int, ...]
    groups: int
    parameter_axes: tuple[int, ...]
    parameter_shape: tuple[int, ...]
    sample_axis: int | None = None
    channel_axis: int | None = None
    num_groups: int | None = None


def sharing_of(norm: str, shape: tuple[int, ...], given: Mapping[str, Any], colours: int) -> Sharing:
    """Return who shares in a norm's input; ``colours`` counts an image's given statistics.

    Raises:
        InvalidArgumentError: an axis does not exist, or the groups do not divide the channels.
        InvalidInputError: an image has no axis of colours.
    """
    row, ndim = TABLES["norms"][norm], len(shape)
    axes = Axes(**row["axes"])
    if axes.rows is not None:
        shared = resolve_axes(given.get("axis", axes.rows), shape)
        return share(shape, shared, shared)
    channel = resolve_axes(given["channel_axis"], shape)[0] if "channel_axis" in given else None
    if axes.lone_vector and ndim == 1:
        return share(shape, (0,), ())
    if row["family"] == "image":
        channel = image_channel_axis(shape, channel, colours)
    elif channel is None:
        channel = 1 if ndim >= axes.channels_from else 0
    samples = axes.samples and ndim >= axes.channels_from
    sample = next(a for a in range(ndim) if a != channel) if samples else None
    groups = check_groups(given, shape, channel) if "groups" in row["options"] else None
    return share(shape, others(shape, channel, sample), (channel,), channel=channel, sample=sample, groups=groups)


def share(
    shape: tuple[int, ...],
    shared: tuple[int, ...],
    parameter_axes: tuple[int, ...],
    *,
    channel: int | None = None,
    sample: int | None = None,
    groups: int | None = None,
) -> Sharing:
    """Return who shares where these axes are shared; with ``groups``, neighbouring channels share too."""
    kept = others(shape, *shared) if groups is None else (() if sample is None else (sample,))
    return Sharing(
        shared=shared,
        groups=math.prod(shape[a] for a in kept) * (groups or 1),
        parameter_axes=parameter_axes,
        parameter_shape=tuple(shape[a] for a in parameter_axes),
        sample_axis=sample,
        channel_axis=channel,
        num_groups=groups,
    )


def others(shape: Sequence[int], *axes: int | None) -> tuple[int, ...]:
    """Return the other axes."""
    return tuple(a for a in range(len(shape)) if a not in axes)


def resolve_axes(axes: int | Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Check axes and return them sorted, counted from 0."""
    ndim = len(shape)
    try:
        numbers = [operator.index(a) for a in ([axes] if isinstance(axes, int) else axes)]
    except TypeError as error:
        raise InvalidArgumentError(f"explain: an axis is a whole number, but got {axes}") from error
    for axis in numbers:
        if not -ndim <= axis < ndim:
            raise InvalidArgumentError(
                f"explain: axis {axis} does not exist: the input has shape {shape}, so axes go from {-ndim} to "
                f"{ndim - 1}"
            )
    resolved = sorted({axis % ndim for axis in numbers})
    if len(resolved) != len(numbers) or not resolved:
        raise InvalidArgumentError(f"explain: the axes must be different and at least one, but got {numbers}")
    return tuple(resolved)


def check_groups(given: Mapping[str, Any], shape: tuple[int, ...], channel: int) -> int:
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


def check_group(group: int, sharing: Sharing) -> int:
    """Return the group to show, which has to exist."""
    if not 0 <= group < sharing.groups:
        raise InvalidArgumentError(
            f"explain: there is no group {group} to show: there are {sharing.groups}, counted from 0"
        )
    return group


def check_parameter(name: str, shape: tuple[int, ...], sharing: Sharing) -> None:
    """Raise unless weight or bias has one number, or one for each parameter."""
    if math.prod(shape) != 1 and shape != sharing.parameter_shape:
        raise InvalidInputError(
            f"explain: {name} has shape {shape}, but this norm needs {sharing.parameter_shape}, or one number for all"
        )


def check_statistic(name: str, count: int, norm: str, sharing: Sharing) -> None:
    """Raise unless a given statistic has one number, or one for each group."""
    if count not in (1, sharing.groups):
        raise InvalidInputError(
            f"explain: {name} has {count} numbers, but {TABLES['norms'][norm]['name']} has {sharing.groups} groups "
            "here; give one for each, or one for all"
        )


def positions_of(shape: tuple[int, ...], sharing: Sharing) -> tuple[int, ...]:
    """Return the sizes of an input's axes but that of its channels."""
    return tuple(size for axis, size in enumerate(shape) if axis != sharing.channel_axis)


def check_mask(mask: tuple[int, ...], shape: tuple[int, ...], sharing: Sharing) -> None:
    """Raise unless a mask has the input's shape, that without the channels, or its leading axes."""
    positions = positions_of(shape, sharing)
    if mask != shape and (not mask or mask != positions[: len(mask)]):
        alike = "" if sharing.channel_axis is None else f", the same without its channel axis {positions},"
        raise InvalidInputError(
            f"explain: the mask has shape {mask}, but the input has {shape}; give the input's shape{alike} or its "
            "leading axes"
        )


def check_upstream(upstream: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise unless an upstream gradient has the input's shape."""
    if upstream != shape and not math.prod(upstream) == math.prod(shape) == 1:
        raise InvalidInputError(
            f"explain: the upstream gradient has shape {upstream}, but the input {shape}; give one number for each "
            "element"
        )
