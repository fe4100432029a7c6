"""Changes of parameters: computed in float64, rounded once, and taken back bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Weights"]


class Weights:
    """The parameters and buffers that a plan changes; the objects stay, and so does their memory."""

    def __init__(self) -> None:
        self._wide: dict[int, tuple[Tensor, Tensor]] = {}  # a tensor and what it becomes
        self._before: list[tuple[Tensor, Tensor]] = []
        self._places: list[tuple[nn.Module, str, nn.Parameter | None]] = []

    @property
    def touched(self) -> set[int]:
        """The ids of the tensors that were changed or put into a place."""
        return {id(tensor) for tensor, _ in self._before} | {id(m._parameters.get(name)) for m, name, _ in self._places}

    def wide(self, tensor: Tensor) -> Tensor:
        """What a tensor becomes, in float64; write into it."""
        if id(tensor) not in self._wide:
            self._wide[id(tensor)] = (tensor, tensor.detach().to(torch.float64, copy=True))
        return self._wide[id(tensor)][1]

    def put(self, module: nn.Module, name: str, value: Tensor, like: Tensor) -> nn.Parameter:
        """Give a module a new parameter in a place that held None, or one shared with others.

        Args:
            module: whose parameter it becomes.
            name: in the module.
            value: in any dtype.
            like: a tensor that has the dtype, the device and the need of gradients.
        """
        self._places.append((module, name, module._parameters.get(name)))
        parameter = nn.Parameter(value.detach().to(like.device, like.dtype, copy=True), like.requires_grad)
        module._parameters[name] = parameter
        return parameter

    def write(self) -> None:
        """Round what was changed, once."""
        with torch.no_grad():
            for tensor, wide in self._wide.values():
                self._before.append((tensor, tensor.detach().clone()))
                tensor.copy_(wide)
        self._wide.clear()

    def restore(self) -> None:
        """Give every tensor its bits back, and every place what it held."""
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)
        for module, name, held in reversed(self._places):
            module._parameters[name] = held
        self._wide.clear()
        self._before.clear()
        self._places.clear()
