"""The checks of the channel norms' arguments, in torch's words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from evenkeel._errors import InvalidInputError
from evenkeel.functional._common import check_floating, check_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def check_channels(name: str, input: Tensor) -> None:
    """Raise `InvalidInputError` unless the input is a floating (batch, channels, ...)."""
    check_floating(name, "input", input)
    if input.ndim < 2:
        raise InvalidInputError(
            f"{name}: expected at least 2 dimensions (batch, channels, ...), but got input of shape "
            f"{tuple(input.shape)}"
        )


def check_vectors(name: str, channels: int, **vectors: Tensor | None) -> None:
    """Raise `InvalidInputError`, in torch's words, unless each vector has one element for each channel."""
    for label, vector in vectors.items():
        if vector is None:
            continue
        check_floating(name, label, vector)
        if tuple(vector.shape) != (channels,):
            raise InvalidInputError(
                f"{name}: {label} should contain {channels} elements not {vector.numel()}: "
                f"it has shape {tuple(vector.shape)} and the input has {channels} channels"
            )


def check_pair(name: str, running_mean: Tensor | None, running_var: Tensor | None) -> None:
    """Raise `InvalidInputError`, in torch's words, where only one of the running statistics is given."""
    if (running_mean is None) != (running_var is None):
        raise InvalidInputError(f"{name}: running_mean and running_var must either both be None or neither be None")


def check_values_per_channel(shape: Sequence[int]) -> None:
    """Raise `InvalidInputError`, in torch's words, where each statistic would come from a single value."""
    if shape[0] * math.prod(shape[2:]) == 1:
        raise InvalidInputError(
            f"Expected more than 1 value per channel when training, got input size {list(shape)}; "
            "a single value has no spread: use a larger batch or evaluation mode"
        )


def expand_mask(name: str, mask: Tensor | None, input: Tensor) -> Tensor | None:
    """View a mask as (batch, 1, *positions) so that it broadcasts over the input (batch, channels, *positions)."""
    if mask is None:
        return None
    check_tensor(name, "mask", mask)
    positions = (input.shape[0], *input.shape[2:])
    if mask.dtype != torch.bool:
        raise InvalidInputError(
            f"{name}: mask must be boolean (True where valid), but got {mask.dtype}; pass mask.bool()"
        )
    if mask.ndim == 0 or tuple(mask.shape) != positions[: mask.ndim]:
        raise InvalidInputError(
            f"{name}: mask must have the input's shape without its channel axis, {positions}, or its leading axes, "
            f"but got {tuple(mask.shape)} for an input of shape {tuple(input.shape)}"
        )
    leading = mask.reshape(mask.shape[0], 1, *mask.shape[1:], *[1] * (len(positions) - mask.ndim))
    return leading.expand(-1, 1, *input.shape[2:])
