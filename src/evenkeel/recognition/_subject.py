"""A module under examination: fresh copies of it in any dtype, with any values, in either mode."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

from evenkeel.recognition._copies import CannotCopyError, bare_copy, floating_tensors, refill
from evenkeel.recognition._probes import RefusedError, attempt, gate_for, random_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

__all__ = ["FURTHER", "Subject"]

FURTHER = "its forward takes further inputs"


class Subject:
    """A module and what can be done to copies of it.

    Attributes:
        original: a copy with the values of the module.
        wide: the dtype in which its arithmetic is looked at: float64, or float32 where it refuses that.
        declared: its small float attributes: one may be its eps.
        gate: the name of its second input, where it takes one.
    """

    def __init__(self, module: nn.Module) -> None:
        self.gate = second_input(module)
        try:
            self.original = bare_copy(module)
        except CannotCopyError as error:
            raise RefusedError(str(error)) from error
        children = list(self.original.modules())
        numbers = [v for child in children for v in vars(child).values() if type(v) is float or type(v) is int]
        self.declared = [float(v) for v in dict.fromkeys(numbers) if 0 <= v < 0.1]
        self.names = list(floating_tensors(self.original))
        self.wide = torch.float64

    @property
    def precise(self) -> tuple[torch.dtype, ...]:
        """The dtypes of 32 bits and more that it takes."""
        return (torch.float64, torch.float32) if self.wide == torch.float64 else (torch.float32,)

    def values(self, seed: int = 0) -> dict[str, Tensor]:
        """Positive numbers for every tensor: a variance may be among them."""
        tensors = floating_tensors(self.original).values()
        shapes = {name: tensor.shape for name, tensor in zip(self.names, tensors, strict=True)}
        return {
            name: (0.5 + random_values(shape, 100 * seed + k).abs()).bfloat16().double()
            for k, (name, shape) in enumerate(shapes.items())
        }

    def copy(self, dtype: torch.dtype, values: dict[str, Tensor], *, training: bool = False) -> nn.Module:
        """A fresh copy with these values; whole numbers, which count calls, start at 0."""
        fresh = bare_copy(self.original).to(dtype).train(training)
        refill(fresh, values)
        for buffer in fresh.buffers():
            if not buffer.is_floating_point():
                buffer.zero_()
        if self.gate is not None:
            fresh.forward = with_gate(fresh.forward)
        return fresh

    def runner(
        self, dtype: torch.dtype, values: dict[str, Tensor], *, training: bool = False
    ) -> Callable[[Tensor], Tensor]:
        """A function that runs a copy, whose tensors have the same values before every call."""
        copy = self.copy(dtype, values, training=training)

        def run(x: Tensor) -> Tensor:
            refill(copy, values)
            return attempt(copy, x)

        return run

    def changed(self, x: Tensor, values: dict[str, Tensor], *, training: bool) -> list[str]:
        """The names of the tensors that a call changes."""
        copy = self.copy(self.wide, values, training=training)
        attempt(copy, x)
        now = floating_tensors(copy)
        return [name for name in self.names if not torch.equal(now[name].detach(), values[name].to(self.wide))]

    def effective(self, x: Tensor, values: dict[str, Tensor]) -> list[str]:
        """The names of the tensors on which the result depends, in evaluation or in training."""
        names = []
        for name in self.names:
            other = values | {name: values[name] * 1.5 + 0.25}
            results = [
                [self.runner(self.wide, given, training=training)(x) for given in (values, other)]
                for training in (False, True)
            ]
            if not all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in results):
                names.append(name)
        return names

    def observe(
        self, inputs: dict[str, Tensor], values: dict[str, Tensor], *, training: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Inputs, results and tensors in the inputs' dtype."""
        dtype = next(iter(inputs.values())).dtype
        run = self.runner(dtype, values, training=training)
        cast = {name: tensor.to(dtype) for name, tensor in values.items()}
        return inputs, {name: run(x) for name, x in inputs.items()}, cast


def with_gate(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A forward of two inputs as one of a single input, whose gate goes with it."""

    def gated(x: Tensor, gate: Tensor | None = None) -> Tensor:
        return forward(x, gate_for(x) if gate is None else gate)

    return gated


def second_input(module: nn.Module) -> str | None:
    """The name of a second input, which may be a gate; None of a module that takes one input alone.

    Raises:
        RefusedError: it takes none, or more than two.
    """
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError) as error:
        raise RefusedError("its forward has no signature") from error
    kinds = inspect.Parameter
    named = [p for p in parameters if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
    if not parameters:
        raise RefusedError("its forward takes no input")
    if len(named) > 2 or any(p.kind is kinds.KEYWORD_ONLY for p in named[1:]):
        raise RefusedError(f"{FURTHER}: {joined(p.name for p in named[1:])}")
    return named[1].name if len(named) == 2 else None


def joined(names: Iterable[str]) -> str:
    """The names, with commas."""
    return ", ".join(names)
