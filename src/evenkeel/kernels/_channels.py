"""The doors to the channel operators: small tensors go past torch's dispatcher, which takes longer than their work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel.kernels._small import differentiate_channels, normalize_channels
from evenkeel.kernels._state import unobserved

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import ChannelOptions


def normalize_small_channels(
    x: Tensor,
    parameters: tuple[Tensor | None, Tensor | None],
    running: tuple[Tensor | None, Tensor | None],
    options: ChannelOptions,
    remembered: bool,
    momentum: float,
    with_statistics: bool,
) -> Any:
    """Normalize small, dense CPU tensors: y, or y and the statistics.

    ``remembered`` says whether the running statistics are used; otherwise they move towards those of x. None for any
    other tensors, and for those that do not fit, which are checked as they are read.
    """
    if not unobserved():
        return None
    return normalize_channels(x, *parameters, *running, options, remembered, momentum, with_statistics)


def channels_backward(
    dy: Tensor,
    saved: tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None],
    options: ChannelOptions,
    remembered: bool,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx, dweight and dbias; one that is not needed is empty or None. ``saved`` ends with statistics and mask."""
    x, weight, bias, statistics, valid = saved
    if valid is None and unobserved():
        small = differentiate_channels(dy, x, weight, bias, statistics, options, remembered, *needed)
        if small is not None:
            found: tuple[Tensor | None, Tensor | None, Tensor | None] = small
            return found
    operator = torch.ops.evenkeel.channels_backward.default
    gradients: tuple[Tensor, Tensor, Tensor] = operator(dy, *saved, remembered, *options, *needed)
    return gradients
