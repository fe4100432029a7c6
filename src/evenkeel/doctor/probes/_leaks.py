"""Whether an output depends, through the statistics of norms, on what it must not: another row, a later position."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from evenkeel.doctor.probes._records import Leak
from evenkeel.recognition import tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from evenkeel.doctor.probes._norms import Site
    from evenkeel.recognition import Call

__all__ = ["leaks"]

LEAST_POSITIONS = 4
ROUNDING = 1e-5  # of movements, in deviations of the output


def leaks(model: nn.Module, sites: Sequence[Site], call: Call) -> tuple[Leak, ...]:
    """Run the model in evaluation on changed inputs, with its norms alive and with their statistics kept.

    A dependence counts for the norms where it goes when their statistics are kept. The model has to be restored by the
    caller: nothing but its modes change.
    """
    alive = [site for site in sites if site.spec.shares != "token" and not (site.remembers or site.frozen)]
    inputs = [v for v in (*call.arguments, *call.keywords.values()) if isinstance(v, torch.Tensor) and v.ndim]
    if not alive or not inputs or len(inputs[0]) < 2:
        return ()
    model.eval()
    names = ", ".join(dict.fromkeys(site.name for site in alive))
    over_batch = [site for site in alive if site.spec.shares == "channel"]
    found = []
    if over_batch:
        rows = len(inputs[0])
        other = changed(call, lambda x: other_rows(x) if x.ndim and len(x) == rows else x)
        moved, held = movements(model, over_batch, call, other, lambda y: y[:1] if y.ndim and len(y) == rows else None)
        found.append(Leak(kind="batch", site=names, moved=moved, held=held))
    found += over_time(model, alive, call, inputs[0], names)
    return tuple(found)


def over_time(model: nn.Module, alive: Sequence[Site], call: Call, x: Tensor, names: str) -> list[Leak]:
    """Change the last position, on each axis that may be time, of a model in which information goes forward alone."""
    with torch.enable_grad():
        result = next(tensors_of(call(model)), None)
    if result is None:
        return []
    for axis in range(1, x.ndim):
        length = x.shape[axis]
        targets = [b for b in range(1, result.ndim) if result.shape[b] == length]
        if length < LEAST_POSITIONS or not targets:
            continue
        target = targets[0]
        late, early = (positions(x, axis, part) for part in (slice(length - 1, None), slice(0, 1)))

        def first(y: Tensor, b: int = target, n: int = length) -> Tensor | None:
            return y.narrow(b, 0, n - 1) if y.ndim > b and y.shape[b] == n else None

        def later(y: Tensor, b: int = target, n: int = length) -> Tensor | None:
            return y.narrow(b, 1, n - 1) if y.ndim > b and y.shape[b] == n else None

        moved, held = movements(model, alive, call, changed(call, late), first)
        _, forward = movements(model, alive, call, changed(call, early), later)
        if forward > ROUNDING > held:
            return [Leak(kind="time", site=names, moved=moved, held=held)]
    return []


def positions(like: Tensor, axis: int, part: slice) -> Callable[[Tensor], Tensor]:
    """A change of some positions on an axis of every tensor of one shape."""

    def change(x: Tensor) -> Tensor:
        if x.shape != like.shape:
            return x
        place = (slice(None),) * axis + (part,)
        other = x.clone()
        other[place] = other_values(x[place], x)
        return other

    return change


def other_rows(x: Tensor) -> Tensor:
    """Other values in all rows but the first."""
    other = x.clone()
    other[1:] = other_values(x[1:], x)
    return other


def other_values(part: Tensor, whole: Tensor) -> Tensor:
    """Other values of the same kind: larger and shifted ones, other tokens."""
    if part.is_floating_point():
        return part * 1.5 + whole.float().std().to(part.dtype)
    return part.roll(1, 0) if part.dtype == torch.bool else torch.where(part > 0, part - 1, part + 1)


def changed(call: Call, change: Callable[[Tensor], Tensor]) -> Call:
    """The call with its tensors changed, whole numbers too."""
    given = {
        name: change(v) if isinstance(v, torch.Tensor) and v.dtype != torch.bool else v
        for name, v in call.keywords.items()
    }
    return type(call)(
        tuple(change(v) if isinstance(v, torch.Tensor) and v.dtype != torch.bool else v for v in call.arguments), given
    )


def movements(
    model: nn.Module, alive: Sequence[Site], call: Call, other: Call, part: Callable[[Tensor], Tensor | None]
) -> tuple[float, float]:
    """How far a part of the outputs moves, with the norms alive and with their statistics kept."""
    kept: dict[int, list[tuple[Tensor, Tensor]]] = {}
    with ExitStack() as stack:
        for site in alive:
            stack.callback(site.module.register_forward_hook(recorder(kept)).remove)
        before = list(tensors_of(call(model)))
    live = list(tensors_of(other(model)))
    with ExitStack() as stack:
        turns = {key: iter(calls) for key, calls in kept.items()}
        for site in alive:
            stack.callback(site.module.register_forward_hook(replayer(turns)).remove)
        # in the first run too, so that both round alike
        same = list(tensors_of(call(model)))
        turns.update({key: iter(calls) for key, calls in kept.items()})
        held = list(tensors_of(other(model)))
    return movement(before, live, part), movement(same, held, part)


def recorder(kept: dict[int, list[tuple[Tensor, Tensor]]]) -> Any:
    """A hook that keeps a norm's input and result."""

    def after(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        kept.setdefault(id(module), []).append((given[0].detach(), output.detach()))

    return after


def replayer(turns: dict[int, Any]) -> Any:
    """A hook that lets a norm depend on each element alone: its former result, and the change of that input."""

    def after(module: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        x, y = next(turns[id(module)])
        return y + (given[0] - x)

    return after


def movement(before: list[Tensor], now: list[Tensor], part: Callable[[Tensor], Tensor | None]) -> float:
    """The largest difference between parts of outputs, in deviations of the whole output."""
    found = 0.0
    for a, b in zip(before, now, strict=True):
        if a.shape != b.shape or (first := part(a)) is None or (second := part(b)) is None or not first.numel():
            continue
        scale = float(a.detach().float().std()) or 1.0
        found = max(found, float((first.detach() - second.detach()).abs().max()) / scale)
    return found
