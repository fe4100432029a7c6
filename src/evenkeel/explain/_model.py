"""A norm inside a model: the activation that reaches it, which norm it is, and the walk through it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from evenkeel._errors import InvalidInputError
from evenkeel.explain._data import Check, Explanation
from evenkeel.explain._norms import find_norm, norm_of
from evenkeel.explain._setup import set_up
from evenkeel.explain._walk import explain, output_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from evenkeel._spec import NormSpec
    from evenkeel.explain._setup import Setup

__all__ = ["norm_layers", "walk_layer"]

# The modules that say what they are, by torch.nn's classes, and the norms they compute; the first that fits counts.
TYPES: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.instancenorm._InstanceNorm, "instance"),
    (nn.modules.batchnorm._NormBase, "batch"),
    (nn.GroupNorm, "group"),
    (nn.LayerNorm, "layer"),
    (nn.RMSNorm, "rms"),
)
EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "norm_eps")
NAMED = 12
WHOLE = 1_000_000  # activations with more numbers are explained by one row
PROBED = 64
# Two guesses that differ by less than this cannot be told apart: the layer's own rounding is as large.
ALIKE = 1.0
CLOSE = 8.0  # ulps of a row's largest value: a right guess is within 3, a wrong one off by thousands


def norm_layers(model: nn.Module) -> list[str]:
    """The names of a model's layers that may be norms, by type, by its name, or by an ε among their attributes.

    Args:
        model: any module.

    Returns:
        Names as `torch.nn.Module.get_submodule` takes them.

    Example:
        >>> import torch
        >>> norm_layers(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)))
        ['1']
    """
    types = tuple(kind for kind, _ in TYPES)
    return [
        name
        for name, module in model.named_modules()
        if name and (isinstance(module, types) or (looks_like_norm(module) and not list(module.children())))
    ]


def looks_like_norm(module: nn.Module) -> bool:
    """Whether a module keeps an ε, or is called a norm: some have their ε in the code."""
    return own_eps(module) is not None or "norm" in type(module).__name__.lower()


def own_eps(module: nn.Module) -> float | None:
    """A module's ε, under whichever name it keeps it."""
    values = (getattr(module, name, None) for name in EPS_NAMES)
    return next((float(eps) for eps in values if isinstance(eps, int | float)), None)


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

    The model runs once in evaluation mode without gradients. What the layer computes is told from its type and
    attributes, and believed only where the walk reproduces the layer's own output; the last check shows how well.

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
        raise InvalidInputError(f"explain: the model has no layer {layer!r}; {candidates(model)}")
    module = modules[layer]
    x, y, calls = capture(model, module, layer, input, call)
    guess = recognise(module, x, y, layer, model)
    x, y, show, part = cut(x, y, guess, row)
    explanation = explain(guess.set_up(x), show, backward, upstream)
    kind = f"{layer} is a {type(module).__name__}"
    times = f", called {calls} times; call {call} (counted from 0) is explained" if calls > 1 else ""
    return replace(
        explanation,
        title=f"{layer}: {explanation.title}",
        checks=(*explanation.checks, layer_check(explanation, y, kind)),
        notes=(f"{kind}{times}.{part}", *explanation.notes),
    )


def candidates(model: nn.Module) -> str:
    """The layers that may be norms, in words."""
    names = norm_layers(model)
    if not names:
        return "none of its layers looks like a norm"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"layers that look like norms: {', '.join(names[:NAMED])}{more}"


def capture(model: nn.Module, module: nn.Module, layer: str, input: Any, call: int) -> tuple[Tensor, Tensor, int]:
    """The input and output of one of the layer's calls, and how often it was called."""
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
    """An input on the model's device, floating ones in its dtype; numpy arrays become tensors."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, torch.Tensor):
        return value
    parameter = next((p for p in model.parameters() if p.dtype.is_floating_point), None)
    if parameter is None:
        return value
    return value.to(parameter.device, parameter.dtype if value.dtype.is_floating_point else value.dtype)


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What a layer may compute.

    Attributes:
        spec: its norm and options.
        given: what no spec holds: axes, parameters, remembered statistics.
    """

    spec: NormSpec
    given: dict[str, Any]

    def set_up(self, x: Tensor) -> Setup:
        """The setup of a walk over an activation."""
        given = {name: value for name, value in self.given.items() if value is not None}
        return set_up(x, norm_of(self.spec), self.spec, given)


def recognise(module: nn.Module, x: Tensor, y: Tensor, layer: str, model: nn.Module) -> Guess:
    """The guess that comes closest to what the layer put out."""
    tried = []
    for guess in guesses(module, x):
        inputs, outputs = probe(x, y, guess)
        tried.append((distance(output_of(guess.set_up(inputs)), outputs), guess))
    least = min((error for error, _ in tried), default=math.inf)
    # The first of equals: where ε cannot be told apart, the usual way.
    best_error, best = next((one for one in tried if one[0] <= least + ALIKE), (math.inf, None))
    if best is None or best_error > CLOSE:
        name = "" if best is None else norm_of(best.spec).key
        closest = f" (the closest, {name}, is off by {best_error:.3g} ulps)" if name else ""
        raise InvalidInputError(
            f"explain: {layer} is a {type(module).__name__}, which does none of the norms known{closest}; "
            f"{candidates(model)}"
        )
    return best


def probe(x: Tensor, y: Tensor, guess: Guess) -> tuple[Tensor, Tensor]:
    """Enough of a large activation to tell norms of rows apart."""
    if "axis" not in guess.given or x.numel() <= WHOLE // 10:
        return x, y
    tail = x.shape[x.ndim - len(guess.given["axis"]) :]
    return x.reshape(-1, *tail)[:PROBED], y.reshape(-1, *tail)[:PROBED]


def cut(x: Tensor, y: Tensor, guess: Guess, row: int) -> tuple[Tensor, Tensor, int, str]:
    """What is explained of an activation, the group to show, and what to say of the rest.

    All of it, or one row of a very large one where rows are independent.
    """
    axes = guess.given.get("axis")
    if axes is None or x.numel() <= WHOLE:
        return x, y, row, ""
    rows = x.reshape(-1, *x.shape[x.ndim - len(axes) :])
    if not 0 <= row < len(rows):
        raise InvalidInputError(f"explain: there is no row {row}: the activation has {len(rows):,}, counted from 0")
    shape = " × ".join(map(str, x.shape))
    return rows[row], y.reshape(rows.shape)[row], 0, f" Of its {shape} input, row {row} is explained."


def distance(result: np.ndarray, output: Tensor) -> float:
    """The largest difference in ulps of the output's dtype at its largest value."""
    expected = output.double().cpu().numpy()
    if result.shape != expected.shape:
        return math.inf
    result, expected = result.reshape(-1), expected.reshape(-1)
    fine = np.isfinite(result) & np.isfinite(expected)
    if not fine.any():
        return math.inf
    info = torch.finfo(output.dtype)
    unit = info.eps * max(float(np.abs(expected[fine]).max()), info.tiny)
    return float(np.abs(result - expected)[fine].max()) / unit


def spec_of(module: nn.Module) -> NormSpec:
    """The spec of a norm of torch.nn or evenkeel.nn; any other module is taken for an RMSNorm with the ε it names."""
    key = next((key for kind, key in TYPES if isinstance(module, kind)), "rms")
    spec, eps = find_norm(key).spec, own_eps(module)
    mode: Any = getattr(module, "eps_mode", "inside")
    offset = float(getattr(module, "weight_offset", 0.0))
    return replace(spec, eps=spec.eps if eps is None else eps, eps_mode=mode, weight_offset=offset)


def guesses(module: nn.Module, x: Tensor) -> Iterator[Guess]:
    """What a module may compute, likeliest first."""
    spec = spec_of(module)
    affine = {"weight": tensor_of(module, "weight"), "bias": tensor_of(module, "bias")}
    if spec.shares == "token":
        yield from row_guesses(module, x, spec, affine)
    elif spec.shares == "sample_group":
        yield Guess(spec=spec, given=affine | {"groups": module.num_groups})
    else:
        mean, variance = tensor_of(module, "running_mean"), tensor_of(module, "running_var")
        if mean is not None:
            spec = replace(spec, shares="channel")
        yield Guess(spec=spec, given=affine | {"mean": mean, "variance": variance})


def row_guesses(module: nn.Module, x: Tensor, spec: NormSpec, affine: dict[str, Tensor | None]) -> Iterator[Guess]:
    """LayerNorm and RMSNorm of the last axes, in every mode, with what the attributes say of weight and ε."""
    weight, bias = affine["weight"], affine["bias"]
    declared = getattr(module, "normalized_shape", None)
    axes = weight.ndim if weight is not None else len(declared) if isinstance(declared, tuple) else 1
    if axes == 0 or axes > x.ndim or (weight is not None and tuple(x.shape[x.ndim - axes :]) != tuple(weight.shape)):
        return
    axis = tuple(range(-axes, 0))
    alpha = tensor_of(module, "alpha")
    if alpha is not None and alpha.numel() == 1:
        yield Guess(spec=find_norm("dyt").spec, given=affine | {"axis": axis, "alpha": alpha.item()})
    layer = find_norm("layer").spec
    kinds = (layer,) if bias is not None or spec.statistic == "moments" else (find_norm("rms").spec, layer)
    for eps in [spec.eps] if spec.eps is not None else [None, 1e-6, 1e-5, 1e-12, 0.0]:
        for offset in dict.fromkeys((spec.weight_offset, 0.0, 1.0) if weight is not None else (0.0,)):
            for mode in dict.fromkeys((spec.eps_mode, "inside", "outside", "clamp")):
                for kind in kinds:
                    number = kind.eps if eps is None else eps
                    guess = replace(kind, eps=number, eps_mode=mode, weight_offset=offset)
                    parameters = affine if kind is layer else {"weight": weight}
                    yield Guess(spec=guess, given=parameters | {"axis": axis})


def tensor_of(module: nn.Module, name: str) -> Tensor | None:
    """A floating tensor attribute, or None."""
    value = getattr(module, name, None)
    return value.detach().cpu() if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else None


def layer_check(explanation: Explanation, y: Tensor, kind: str) -> Check:
    """The walk against what the layer itself put out."""
    error = distance(explanation.step("output").value, y)
    return Check(
        id="layer",
        title="difference from the layer's own output, in ulps",
        value=error,
        expected=0.0,
        passed=error <= CLOSE,
        note=f"{kind}; ulps of {str(y.dtype).removeprefix('torch.')} at the largest value, at most {CLOSE:g}",
    )
