"""Calls of a model: their arguments in any dtype, the tensors of their results, and what each module is given."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from evenkeel.recognition._probes import isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

__all__ = ["Call", "seen_inputs", "tensors_of"]


@dataclass(frozen=True)
class Call:
    """Positional and keyword arguments of a model."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    @classmethod
    def of(cls, inputs: Any) -> Call:
        """A tensor, a tuple or list of arguments, or a mapping of keyword arguments."""
        if isinstance(inputs, Mapping):
            return cls((), dict(inputs))
        return cls(tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {})

    def changed(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with other floating tensors."""
        return Call(tuple(mapped(value, change) for value in self.arguments), mapped(self.keywords, change))

    def floating(self) -> list[Tensor]:
        """The floating tensors."""
        return list(tensors_of([self.arguments, self.keywords]))

    def __call__(self, model: nn.Module) -> Any:
        """Call a model."""
        return model(*self.arguments, **self.keywords)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change the floating tensors of nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (
            [mapped(item, change) for item in value]
            if isinstance(value, list)
            else tuple(mapped(v, change) for v in value)
        )
    return value


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the floating tensors of nested lists, tuples and mappings, which results of models are too."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def seen_inputs(model: nn.Module, call: Call) -> dict[int, Tensor]:
    """Run a model in evaluation and return the first input of every module that gets one tensor, by the module's id."""
    seen: dict[int, Tensor] = {}

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        if len(given) == 1 and isinstance(given[0], torch.Tensor) and given[0].is_floating_point():
            seen.setdefault(id(module), given[0].detach())

    modes = [(module, module.training) for module in model.modules()]
    with ExitStack() as stack:
        stack.enter_context(isolated())
        for module, _ in modes:
            stack.callback(module.register_forward_pre_hook(note).remove)
        try:
            model.eval()
            call(model)
        finally:
            for module, training in modes:
                module.training = training
    return seen
