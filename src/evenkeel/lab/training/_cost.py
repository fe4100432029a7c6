"""What a training step costs, and how much of it the norms take."""

from __future__ import annotations

import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evenkeel._options.study import Compute
from evenkeel.lab.training._steps import PLAIN, autocast, loss_backward, make_optimizer
from evenkeel.lab.transformer import Transformer

ROUNDS = 9
Call = Callable[[], Any]


def measure_cost(model: Transformer, windows: Tensor, rounds: int = ROUNDS) -> dict[str, float | None]:
    """Time whole training steps and the norms alone in turn, so that other load on the machine disturbs both alike.

    A copy of the model trains, with a learning rate of 0. The norms run alone, forward and backward, on the inputs
    that reach them in a step; alone, a norm finds its input in the cache more often than inside a step, so its share is
    a lower bound. Norms of the same type and input shape are timed once a round and counted as often as they occur.

    Args:
        model: is left as it is.
        windows: a batch of sequences (batch, context + 1).
        rounds: how often to measure.

    Returns:
        ``step_seconds`` and ``norm_seconds``, medians, and ``norm_share``, the median of the rounds' shares.
    """
    measured = list(steps_and_norms(copy.deepcopy(model).train(), windows, rounds))
    step, norm, share = zip(*((step, norm, norm / step) for step, norm in measured), strict=True)
    values = {"step_seconds": step, "norm_seconds": norm, "norm_share": share}
    return {name: statistics.median(column) for name, column in values.items()}


def steps_and_norms(
    model: Transformer, windows: Tensor, rounds: int, compute: Compute = PLAIN
) -> Iterator[tuple[float, float]]:
    """Yield for each round the seconds of a training step with a learning rate of 0, and of the norms alone."""
    with autocast(compute):
        norms = norm_calls(model, windows[:, :-1])
    calls = [training_step(model, windows, compute), *(call for call, _ in norms)]
    by_round = zip(*seconds_in_turn(calls, rounds), strict=True)
    for step, *alone in by_round:
        yield step, sum(count * seconds for (_, count), seconds in zip(norms, alone, strict=True))


def measure_in_turn(
    models: Mapping[str, Callable[[], Transformer]], windows: Tensor, rounds: int = ROUNDS, compute: Compute = PLAIN
) -> dict[str, dict[str, list[float]]]:
    """Time a training step of every model, and its norms alone, in turn: other load on the machine meets all alike.

    Args:
        models: makes each model anew for each round, so that the memory holds one at a time.
        windows: a batch of sequences (batch, context + 1).
        rounds: how often to measure; each begins with a step that is not measured.
        compute: how a step is computed; a compiled model's is timed without that, since each would be compiled anew.

    Returns:
        For each model ``step_seconds`` and ``norm_seconds``, a value a round.
    """
    times: dict[str, dict[str, list[float]]] = {name: {"step_seconds": [], "norm_seconds": []} for name in models}
    windows = windows.to(compute.device)
    for _ in range(rounds):
        for name, build in models.items():
            ((step, norm),) = steps_and_norms(build().to(compute.device).train(), windows, rounds=1, compute=compute)
            times[name]["step_seconds"].append(step)
            times[name]["norm_seconds"].append(norm)
    return times


def seconds_in_turn(calls: Sequence[Call], rounds: int) -> list[list[float]]:
    """Return the seconds of each call in each round, the calls taken in turn; a round before the first warms up.

    Every round begins with another call: what a call leaves in the caches then helps or hurts all others alike.
    """
    times: list[list[float]] = [[] for _ in calls]
    finish = torch.cuda.synchronize if torch.cuda.is_initialized() else nothing
    for turn in range(rounds + 1):
        for index in range(turn, turn + len(calls)):
            start = time.perf_counter()
            calls[index % len(calls)]()
            finish()
            times[index % len(calls)].append(time.perf_counter() - start)
    return [taken[1:] for taken in times]


def nothing() -> None:
    """Do nothing."""


def training_step(model: Transformer, windows: Tensor, compute: Compute = PLAIN) -> Call:
    """Return a call that makes one training step with a learning rate of 0."""
    optimizer = make_optimizer(model, weight_decay=0.0)

    def step() -> None:
        loss_backward(model, optimizer, windows, compute=compute)
        optimizer.step()

    return step


def norm_calls(model: Transformer, tokens: Tensor) -> list[tuple[Call, int]]:
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


def both_passes(norm: nn.Module, x: Tensor) -> Call:
    """Return a call that runs a norm forward and backward."""
    x = x.clone().requires_grad_()
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    differentiated = [x, *norm.parameters()]
    return lambda: torch.autograd.grad(norm(x), differentiated, upstream)
