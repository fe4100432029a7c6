"""The doors to the channel operators: small tensors, and those on a GPU, go past torch's dispatcher.

It takes longer than the work on the ones and the start of a kernel for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel.kernels._small import differentiate_channels, normalize_channels
from evenkeel.kernels._state import unobserved
from evenkeel.kernels._triton import is_direct, kernels

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import ChannelOptions

    Moved = tuple[Tensor, Tensor, float | Tensor]  # running mean and variance, and their momentum


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


def moves_with_launch(x: Tensor, running: tuple[Tensor | None, Tensor | None], momentum: float | Tensor) -> bool:
    """Whether the kernels move running statistics in the launch that finds those of the input."""
    if not is_direct(x) or x.numel() == 0:
        return False
    number = type(momentum) is float or (
        isinstance(momentum, torch.Tensor) and momentum.numel() == 1 and momentum.device == x.device
    )
    return number and all(t is not None and t.is_contiguous() for t in running)


def channels_forward(
    x: Tensor,
    parameters: tuple[Tensor | None, Tensor | None],
    remembered: tuple[Tensor | None, Tensor | None],
    valid: Tensor | None,
    options: ChannelOptions,
    moved: Moved | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the statistics and their variances; ``moved`` only where `moves_with_launch`."""
    tensors = (x, *parameters, *remembered, valid)
    results: tuple[Tensor, Tensor, Tensor]
    if is_direct(x):
        results = kernels().channels_forward(*tensors, *options, moved=moved)
    else:
        results = torch.ops.evenkeel.channels_forward.default(*tensors, *options)
    return results


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
    operator = kernels().channels_backward if is_direct(x) else torch.ops.evenkeel.channels_backward.default
    gradients: tuple[Tensor, Tensor, Tensor] = operator(dy, *saved, remembered, *options, *needed)
    return gradients
