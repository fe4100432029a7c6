"""Parts and transfers of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["local", "sample", "to_numbers"]

SAMPLE = 4096  # elements by which a weight is told to have moved


def local(tensor: Tensor) -> Tensor:
    """The part of a distributed tensor that lies here; other tensors as they are."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def sample(p: Tensor) -> Tensor:
    """Some elements of a weight, at equal distances."""
    flat = local(p.detach()).reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)]


def to_numbers(scalars: Sequence[Tensor]) -> list[float]:
    """The values of scalars, brought over by one transfer a device."""
    found = [0.0] * len(scalars)
    places: dict[torch.device, list[int]] = {}
    for k, scalar in enumerate(scalars):
        places.setdefault(scalar.device, []).append(k)
    for indices in places.values():
        numbers = torch.stack([scalars[k].detach().float().reshape(()) for k in indices]).tolist()
        for k, number in zip(indices, numbers, strict=True):
            found[k] = number
    return found
