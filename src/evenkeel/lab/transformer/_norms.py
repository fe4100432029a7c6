"""The norms of the transformer's arms."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

import evenkeel.nn as ek_nn
from evenkeel._options.arms import Arm


class TokenBatchNorm(ek_nn.BatchNorm1d):
    """BatchNorm over all valid positions of the batch, for activations of shape (batch, time, channels).

    In training its statistics cross positions and examples: a causal model then sees, through them, text that it is
    asked to predict. In evaluation it uses running statistics.

    Example:
        >>> import torch
        >>> from evenkeel.lab import TokenBatchNorm
        >>> TokenBatchNorm(3)(torch.randn(2, 5, 3)).shape
        torch.Size([2, 5, 3])
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # (batch, time, channels)
        """Normalize each channel over the positions where mask (batch, time) is True; the others become 0."""
        if mask is None:  # rows of channels take two thirds of the time of a transposed tensor
            return super().forward(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return super().forward(x.transpose(1, 2), mask=mask).transpose(1, 2)


# What `NORM_NAMES` names.
NORMS: dict[str, Callable[[int, Arm], nn.Module]] = {
    "none": lambda width, arm: nn.Identity(),
    "layer": lambda width, arm: ek_nn.LayerNorm(width, eps=arm.eps, bias=arm.bias),
    "rms": lambda width, arm: ek_nn.RMSNorm(width, eps=arm.eps, weight_offset=arm.weight_offset),
    "batch": lambda width, arm: TokenBatchNorm(width, eps=arm.eps),
    "dyt": lambda width, arm: ek_nn.DyT(width, bias=arm.bias),
}
