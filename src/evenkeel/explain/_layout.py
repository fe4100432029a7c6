"""Who shares statistics with whom, and which weight belongs to which element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evenkeel._errors import InvalidInputError
from evenkeel._options.axes import Sharing, check_mask, others, positions_of, sharing_of

__all__ = ["Layout", "build_layout", "expand_mask"]


@dataclass(frozen=True, kw_only=True)
class Layout(Sharing):
    """Groups and parameters of one input, and where each element belongs.

    Attributes:
        order: (groups, members), flat indices of the input.
        parameter_of: for every element, flat, the number of its parameter.
    """

    order: np.ndarray
    parameter_of: np.ndarray


def build_layout(norm: str, shape: tuple[int, ...], given: dict[str, Any], colours: int) -> Layout:
    """Return the layout of a norm on an input; ``colours`` counts an image's given statistics."""
    sharing = sharing_of(norm, shape, given, colours)
    index = np.arange(math.prod(shape)).reshape(shape)
    if sharing.num_groups is None:
        front = others(shape, *sharing.shared)
    else:
        front = tuple(a for a in (sharing.sample_axis, sharing.channel_axis) if a is not None)
    numbers = np.arange(math.prod(sharing.parameter_shape)).reshape(
        [size if axis in sharing.parameter_axes else 1 for axis, size in enumerate(shape)]
    )
    return Layout(
        **vars(sharing),
        order=index.transpose(*front, *sharing.shared).reshape(sharing.groups, -1),
        parameter_of=np.broadcast_to(numbers, shape).reshape(-1),
    )


def expand_mask(mask: Any, shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """Expand a mask (of the input's shape, without the channel axis, or of leading axes) to the input's shape."""
    if mask is None:
        return np.ones(shape, dtype=bool)
    array = mask.detach().cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask)
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise InvalidInputError("explain: a mask holds True (or 1) where valid and False (or 0) elsewhere")
    array, channel = array.astype(bool), layout.channel_axis
    check_mask(array.shape, shape, layout)
    if array.shape == shape:
        return array
    full = array.reshape(*array.shape, *[1] * (len(positions_of(shape, layout)) - array.ndim))
    if channel is not None:
        full = np.expand_dims(full, channel)
    return np.broadcast_to(full, shape).copy()
