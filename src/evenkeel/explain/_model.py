"""A norm inside a model: the activation that reaches it, and the walk through it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from evenkeel._errors import InvalidInputError
from evenkeel._options.names import NEAREST, nearest
from evenkeel.explain._data import Check, Explanation
from evenkeel.explain._recognise import CLOSE, Guess, distance, recognise
from evenkeel.explain._walk import explain
from evenkeel.recognition import survey

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["norm_layers", "walk_layer"]

NAMED = 12  # so many candidates are named, the rest are counted
WHOLE = 1_000_000  # activations with more numbers are explained by one row


def norm_layers(model: nn.Module) -> list[str]:
    """The names of a model's layers that are norms, by what they compute, or look like one.

    Args:
        model: any module.

    Returns:
        Names as `torch.nn.Module.get_submodule` takes them.

    Example:
        >>> import torch
        >>> norm_layers(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)))
        ['1']
    """
    return [found.names[0] for found in survey(model) if found.names[0]]


def walk_layer(
    model: nn.Module,
    layer: str,
    input: Any,
    *,
    row: int = 0,
    call: int = 0,
    backward: bool = False,
    upstream: Any = None,
) -> Explanation:
    """Explain a norm inside a model on the activation that reaches it.

    The model runs once in evaluation mode without gradients. What the layer computes is told from what
    copies of it do, and believed only where the walk reproduces the layer's own output; the last check shows how well.

    Args:
        model: any module.
        layer: the layer's name, such as ``blocks.3.norm``.
        input: what the model is called with: a tensor, a tuple of positional or a dictionary of keyword arguments.
        row: the group that the formulas show; of more than a million numbers, the row that is explained.
        call: which call of the layer, counted from 0, where the model calls it several times.
        backward: whether to go on to the gradients.
        upstream: ∂L/∂y of the layer's output; fixed pseudo-random numbers by default.

    Returns:
        The explanation, with a check against the layer.

    Raises:
        InvalidInputError: there is no such layer, it is not reached, or not so often, it is no norm that is
            known, or the model does not take the input.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
        >>> walk_layer(model, "1", torch.ones(2, 4)).checks[-1].id
        'layer'
    """
    modules = dict(model.named_modules())
    if layer not in modules or not layer:
        raise InvalidInputError(f"explain: the model has no layer {layer!r}; {candidates(model, layer)}")
    module = modules[layer]
    x, y, calls = capture(model, module, layer, input, call)
    kind = f"{layer} is a {type(module).__name__}"
    guess, reason = recognise(module, x, y)
    if guess is None:
        raise InvalidInputError(f"explain: {kind}, which does none of the norms known ({reason}); {candidates(model)}")
    x, y, show, part = cut(x, y, guess, row)
    explanation = explain(guess.set_up(x), show, backward, upstream)
    times = f", called {calls} times; call {call} (counted from 0) is explained" if calls > 1 else ""
    return replace(
        explanation,
        title=f"{layer}: {explanation.title}",
        checks=(*explanation.checks, layer_check(explanation, y, kind)),
        notes=(f"{kind}{times}.{part}", *explanation.notes),
    )


def cut(x: Tensor, y: Tensor, guess: Guess, row: int) -> tuple[Tensor, Tensor, int, str]:
    """Cut a very large activation to one row where rows are independent.

    Returns the activation and output to explain, the group to show, and a sentence about the cut.
    """
    axes = guess.given.get("axis", (1,))
    if axes == (1,) or x.numel() <= WHOLE:
        return x, y, row, ""
    rows = x.reshape(-1, *x.shape[x.ndim - len(axes) :])
    if not 0 <= row < len(rows):
        raise InvalidInputError(f"explain: there is no row {row}: the activation has {len(rows):,}, counted from 0")
    shape = " × ".join(map(str, x.shape))
    return rows[row], y.reshape(rows.shape)[row], 0, f" Of its {shape} input, row {row} is explained."


def candidates(model: nn.Module, layer: str = "") -> str:
    """Name layers that may be norms, in words: those of a name like this one, if one was meant."""
    names = norm_layers(model)
    if not names:
        return "none of its layers looks like a norm"
    if layer and len(names) > NEAREST:
        return f"of the layers that look like norms, did you mean {nearest(layer, names)}?"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"layers that look like norms: {', '.join(names[:NAMED])}{more}"


def capture(model: nn.Module, module: nn.Module, layer: str, input: Any, call: int) -> tuple[Tensor, Tensor, int]:
    """Run the model; return the input and output of one of the layer's calls, and the number of calls."""
    seen: list[tuple[Tensor, Tensor]] = []
    entering: list[Tensor] = []
    calls = 0

    def before(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = [*arguments, *keywords.values()]
        entering[:] = [a.detach().clone() for a in given[:1] if isinstance(a, torch.Tensor)]

    def after(_: nn.Module, arguments: Any, output: Any) -> None:
        nonlocal calls
        output = output[0] if isinstance(output, tuple) else output
        if calls == call and entering and isinstance(output, torch.Tensor):
            seen.append((entering[0], output.detach().clone()))
        calls += 1

    modes = {m: m.training for m in model.modules()}
    hooks = [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)]
    try:
        model.eval()
        with torch.no_grad():
            run(model, input)
    finally:
        for hook in hooks:
            hook.remove()
        for one, training in modes.items():
            one.training = training
    if not 0 <= call < max(calls, 1):
        raise InvalidInputError(
            f"explain: there is no call {call} of {layer}: the model calls it {calls} time{'s' * (calls != 1)}, "
            "counted from 0"
        )
    if not seen:
        raise InvalidInputError(f"explain: the model ran, but its layer {layer} was never reached with a tensor")
    return *seen[0], calls


def run(model: nn.Module, input: Any) -> None:
    """Call the model; floating inputs get the dtype of its parameters."""
    if isinstance(input, dict):
        arguments, keywords = (), {name: fit(model, value) for name, value in input.items()}
    else:
        arguments = tuple(fit(model, value) for value in (input if isinstance(input, tuple) else (input,)))
        keywords = {}
    try:
        model(*arguments, **keywords)
    except Exception as error:  # whatever the model raises is about this input, as far as we can tell
        shapes = ", ".join(
            f"{tuple(a.shape)} {a.dtype}" for a in (*arguments, *keywords.values()) if isinstance(a, torch.Tensor)
        )
        raise InvalidInputError(
            f"explain: the model does not take this input ({shapes}): {type(error).__name__}: {error}"
        ) from error


def fit(model: nn.Module, value: Any) -> Any:
    """Move an input to the model's device, floating ones to its dtype; numpy arrays become tensors."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, torch.Tensor):
        return value
    parameter = next((p for p in model.parameters() if p.dtype.is_floating_point), None)
    if parameter is None:
        return value
    return value.to(parameter.device, parameter.dtype if value.dtype.is_floating_point else value.dtype)


def layer_check(explanation: Explanation, y: Tensor, kind: str) -> Check:
    """Compare the walk's output with the layer's own."""
    error = distance(explanation.step("output").value, y)
    return Check(
        id="layer",
        title="difference from the layer's own output, in ulps",
        value=error,
        expected=0.0,
        passed=error <= CLOSE,
        note=f"{kind}; ulps of {str(y.dtype).removeprefix('torch.')} at the largest value, at most {CLOSE:g}",
    )
