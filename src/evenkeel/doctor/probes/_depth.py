"""Gradients along the depth of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evenkeel.doctor.probes._records import Depth
from evenkeel.doctor.probes._tensors import local

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

__all__ = ["depth_scalars", "depths"]


def depth_scalars(
    order: Mapping[str, nn.Module], gradients: Mapping[int, Tensor | None]
) -> tuple[list[str], list[Tensor]]:
    """The names of the weights that a gradient reached, in the order of calls, and on the device two sizes of each."""
    names, scalars = [], []
    for name, module in order.items():
        weight = module.weight
        gradient = gradients.get(id(weight))
        if gradient is not None and isinstance(weight, torch.Tensor):
            names.append(name)
            own, step = local(weight.detach()), local(gradient)
            scalars += [step.float().square().mean().sqrt(), own.float().square().mean().sqrt()]
    return names, scalars


def depths(names: list[str], numbers: Iterator[float]) -> tuple[Depth, ...]:
    """The records, from the values of the scalars in their order."""
    pairs = [(name, next(numbers), next(numbers)) for name in names]
    return tuple(Depth(site=name, gradient=g / w) for name, g, w in pairs if w > 0)
