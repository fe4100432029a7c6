"""Whether a module's gradients are those of its spec: one that stops a gradient gives the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evenkeel.recognition._copies import floating_tensors
from evenkeel.recognition._probes import RefusedError, distance, gate_for, random_values

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel.recognition._fit import Fit
    from evenkeel.recognition._subject import Subject

__all__ = ["check_gradients"]

CLOSE = 1e-4  # some compute in float32, where differences of gradients cancel


def check_gradients(subject: Subject, fit: Fit, shape: tuple[int, ...], *, training: bool) -> None:
    """Compare the gradients of the input and of the learned tensors, for a random cotangent.

    Raises:
        RefusedError: they differ, or there are none.
    """
    values = subject.values(seed=9)
    values = {name: tensor.to(subject.wide) for name, tensor in values.items()}
    x, cotangent = (random_values(shape, seed).to(subject.wide) for seed in (61, 62))
    copy = subject.copy(subject.wide, values, training=training)
    tensors = floating_tensors(copy)
    wanted = [n for n in (fit.roles.weight, fit.roles.bias) if n is not None and tensors[n].requires_grad]
    gated = fit.roles.gate is not None
    with torch.enable_grad():
        inputs = [x.clone().requires_grad_(), *([gate_for(x).requires_grad_()] if gated else [])]
        try:
            y = copy(*inputs)
            theirs = torch.autograd.grad(y, [*inputs, *(tensors[n] for n in wanted)], cotangent.to(y.dtype))
        except RuntimeError as error:
            raise RefusedError(f"it has no gradients: {str(error).splitlines()[0][:100]}") from error
        mine = own_gradients(fit, x, values, wanted, cotangent, training=training)
    named = ["the input", *([fit.roles.gate] if gated else []), *wanted]
    for name, own, other in zip(named, mine, theirs, strict=True):
        if (off := distance(other, own)) > CLOSE:
            raise RefusedError(f"its gradient of {name} is not that of its result: off by {off:.1g} of the largest")


def own_gradients(
    fit: Fit, x: Tensor, values: dict[str, Tensor], wanted: list[str], cotangent: Tensor, *, training: bool
) -> tuple[Tensor, ...]:
    """The gradients of the spec's reference."""
    leaves = {name: values[name].clone().requires_grad_() for name in wanted}
    inputs = x.clone().requires_grad_()
    given = {name: tensor.clone() for name, tensor in values.items()} | leaves
    gates = [] if fit.roles.gate is None else [gate_for(x).requires_grad_()]
    y = fit(inputs, given, 0.0 if training else None, *gates)
    return torch.autograd.grad(y, [inputs, *gates, *leaves.values()], cotangent)
