"""What a training step costs, and how much of it the norms take."""

from __future__ import annotations

import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from evenkeel.lab.model import Transformer, next_byte_loss

__all__ = ["measure_cost"]

ROUNDS = 9


def measure_cost(
    model: Transformer,
    make_optimizer: Callable[[Transformer], torch.optim.Optimizer],
    windows: Tensor,
    rounds: int = ROUNDS,
) -> dict[str, float | None]:
    """Time whole training steps and the norms alone in turn, so that other load on the machine disturbs both alike.

    A copy of the model trains, with a learning rate of 0. The norms run alone, forward and backward, on the inputs
    that reach them in a step; alone, a norm finds its input in the cache more often than inside a step, so its share is
    a lower bound. Norms of the same type and input shape are timed once a round and counted as often as they occur.

    Args:
        model: is left as it is.
        make_optimizer: makes the optimizer of the copy; its learning rate must be 0.
        windows: a batch of byte sequences (batch, context + 1).
        rounds: how often to measure.

    Returns:
        ``step_seconds`` and ``norm_seconds``, medians, and ``norm_share``, the median of the rounds' shares.
    """
    twin = copy.deepcopy(model).train()
    optimizer = make_optimizer(twin)
    norms = norm_calls(twin, windows[:, :-1])

    def step() -> None:
        optimizer.zero_grad()
        next_byte_loss(twin, windows).backward()
        optimizer.step()

    steps, alone = [], []
    for _ in range(rounds + 1):  # the first warms up
        steps.append(seconds(step))
        alone.append(sum(count * seconds(call) for call, count in norms))
    steps, alone = steps[1:], alone[1:]
    shares = [norm / whole for norm, whole in zip(alone, steps, strict=True)]
    medians = (statistics.median(values) for values in (steps, alone, shares))
    return dict(zip(("step_seconds", "norm_seconds", "norm_share"), medians, strict=True))


def norm_calls(model: Transformer, tokens: Tensor) -> list[tuple[Callable[[], Any], int]]:
    """Return a forward and backward call of each kind of norm on its input, and how many norms are of that kind."""
    inputs: dict[nn.Module, Tensor] = {}
    hooks = [
        norm.register_forward_hook(lambda norm, args, _: inputs.update({norm: args[0].detach()}))
        for norm in model.norms().values()
    ]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    counts = Counter((type(norm), x.shape) for norm, x in inputs.items())
    kinds = {(type(norm), x.shape): (norm, x) for norm, x in inputs.items()}
    return [(both_passes(*kinds[kind]), count) for kind, count in counts.items()]


def both_passes(norm: nn.Module, x: Tensor) -> Callable[[], Any]:
    """Return a call that runs a norm forward and backward."""
    x = x.clone().requires_grad_()
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    wanted = [x, *norm.parameters()]
    return lambda: torch.autograd.grad(norm(x), wanted, upstream)


def seconds(call: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
