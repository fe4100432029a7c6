"""A norm inside a model: the activation that reaches it, which norm it is, and the walk through it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from evenkeel._errors import InvalidInputError
from evenkeel.explain._data import Check, Explanation
from evenkeel.explain._walk import output_of, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

__all__ = ["norm_layers", "walk_layer"]

EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "norm_eps")
NAMED = 12
WHOLE = 1_000_000  # activations with more numbers are explained by one row
PROBED = 64
CLOSE = 8.0  # ulps of a row's largest value: a right guess is within 3, a wrong one off by thousands


def norm_layers(model: nn.Module) -> list[str]:
    """The names of a model's layers that may be norms, by type or by an ε among their attributes.

    Args:
        model: any module.

    Returns:
        Names as `torch.nn.Module.get_submodule` takes them.

    Example:
        >>> import torch
        >>> norm_layers(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)))
        ['1']
    """
    types = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return [
        name
        for name, module in model.named_modules()
        if name and (isinstance(module, types) or (own_eps(module) is not None and not list(module.children())))
    ]


def own_eps(module: nn.Module) -> float | None:
    """A module's ε, under whichever name it keeps it."""
    found = (getattr(module, name, None) for name in EPS_NAMES)
    return next((float(eps) for eps in found if isinstance(eps, int | float)), None)


def walk_layer(
    model: nn.Module, layer: str, input: Any, *, row: int = 0, backward: bool = False, upstream: Any = None
) -> Explanation:
    """Explain a norm inside a model on the activation that reaches it.

    The model runs once in evaluation mode without gradients. What the layer computes is told from its type and
    attributes, and believed only where the walk reproduces the layer's own output; the last check shows how well.

    Args:
        model: any module.
        layer: the layer's name, such as ``blocks.3.norm``.
        input: what the model is called with: a tensor, a tuple of positional or a dictionary of keyword arguments.
        row: the group that the formulas show; of more than a million numbers, the row that is explained.
        backward: whether to go on to the gradients.
        upstream: ∂L/∂y of the layer's output; fixed pseudo-random numbers by default.

    Returns:
        The explanation, with a check against the layer.

    Raises:
        InvalidInputError: there is no such layer, it is not reached, it is no norm that is known, or the model does
            not take the input.

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
    x, y, calls = capture(model, module, layer, input)
    x, y, options, note = recognise(module, x, y, layer, model, row)
    explanation = walk(x, **options, backward=backward, upstream=upstream)
    kind = f"{layer} is a {type(module).__name__}"
    times = f", called {calls} times (the first call is explained)" if calls > 1 else ""
    return Explanation(
        norm=explanation.norm,
        title=f"{layer}: {explanation.title}",
        options=explanation.options,
        shown=explanation.shown,
        steps=explanation.steps,
        checks=(*explanation.checks, layer_check(explanation, y, kind)),
        notes=(f"{kind}{times}.{note}", *explanation.notes),
    )


def candidates(model: nn.Module) -> str:
    """The layers that may be norms, in words."""
    names = norm_layers(model)
    if not names:
        return "none of its layers looks like a norm"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"layers that look like norms: {', '.join(names[:NAMED])}{more}"


def capture(model: nn.Module, module: nn.Module, layer: str, input: Any) -> tuple[Tensor, Tensor, int]:
    """The layer's first input and output, and how often it was called."""
    seen: list[tuple[Tensor, Tensor]] = []
    entering: list[Tensor] = []
    calls = 0

    def before(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = [*arguments, *keywords.values()]
        entering.extend(a.detach().clone() for a in given[:1] if isinstance(a, torch.Tensor))

    def after(_: nn.Module, arguments: Any, output: Any) -> None:
        nonlocal calls
        calls += 1
        output = output[0] if isinstance(output, tuple) else output
        if not seen and entering and isinstance(output, torch.Tensor):
            seen.append((entering[0], output.detach().clone()))

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


def recognise(
    module: nn.Module, x: Tensor, y: Tensor, layer: str, model: nn.Module, row: int
) -> tuple[Tensor, Tensor, dict[str, Any], str]:
    """The activation to explain, the layer's output there, the options of the walk and what was left out."""
    best: dict[str, Any] | None = None
    best_error = math.inf
    for options in guesses(module, x):
        inputs, outputs = probe(x, y, options)
        error = distance(output_of(inputs, options), outputs)
        # the first of equals: where ε cannot be told apart, the usual way
        if error < best_error:
            best, best_error = options, error
    if best is None or best_error > CLOSE:
        closest = "" if best is None else f" (the closest, {best['norm']}, is off by {best_error:.3g} ulps)"
        raise InvalidInputError(
            f"explain: {layer} is a {type(module).__name__}, which does none of the norms known{closest}; "
            f"{candidates(model)}"
        )
    return cut(x, y, best, row)


def probe(x: Tensor, y: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Enough of a large activation to tell norms of rows apart."""
    if "axis" not in options or x.numel() <= WHOLE // 10:
        return x, y
    tail = x.shape[x.ndim - len(options["axis"]) :]
    return x.reshape(-1, *tail)[:PROBED], y.reshape(-1, *tail)[:PROBED]


def cut(x: Tensor, y: Tensor, options: dict[str, Any], row: int) -> tuple[Tensor, Tensor, dict[str, Any], str]:
    """All of an activation, or one row of a very large one where rows are independent."""
    axes = options.get("axis")
    if axes is None or x.numel() <= WHOLE:
        return x, y, options | {"show": row}, ""
    n = len(axes)
    rows = x.reshape(-1, *x.shape[x.ndim - n :])
    if not 0 <= row < len(rows):
        raise InvalidInputError(f"explain: there is no row {row}: the activation has {len(rows):,}, counted from 0")
    shape = " × ".join(map(str, x.shape))
    return rows[row], y.reshape(rows.shape)[row], options, f" Of its {shape} input, row {row} is explained."


def distance(found: np.ndarray, output: Tensor) -> float:
    """The largest difference in ulps of the output's dtype at its largest value."""
    wanted = output.double().cpu().numpy()
    if found.shape != wanted.shape:
        return math.inf
    found, wanted = found.reshape(-1), wanted.reshape(-1)
    fine = np.isfinite(found) & np.isfinite(wanted)
    if not fine.any():
        return math.inf
    unit = torch.finfo(output.dtype).eps * max(float(np.abs(wanted[fine]).max()), torch.finfo(output.dtype).tiny)
    return float(np.abs(found - wanted)[fine].max()) / unit


def guesses(module: nn.Module, x: Tensor) -> Iterator[dict[str, Any]]:
    """What a module may compute, likeliest first."""
    weight, bias = tensor_of(module, "weight"), tensor_of(module, "bias")
    affine = {"weight": weight, "bias": bias}
    if isinstance(module, nn.modules.batchnorm._NormBase):
        remembered = tensor_of(module, "running_mean"), tensor_of(module, "running_var")
        per_channel = isinstance(module, nn.modules.instancenorm._InstanceNorm)
        options = {"norm": "instance" if per_channel else "batch", **affine, **own_options(module)}
        if remembered[0] is not None:
            options |= {"norm": "batch", "mean": remembered[0], "variance": remembered[1]}
        yield options
    elif isinstance(module, nn.GroupNorm):
        yield {"norm": "group", "groups": module.num_groups, **affine, **own_options(module)}
    else:
        yield from row_guesses(module, x, weight, bias)


def row_guesses(module: nn.Module, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Iterator[dict[str, Any]]:
    """LayerNorm and RMSNorm of the last axes, in every mode, with what the attributes say of weight and ε."""
    declared = getattr(module, "normalized_shape", None)
    axes = weight.ndim if weight is not None else len(declared) if isinstance(declared, tuple) else 1
    if axes == 0 or axes > x.ndim or (weight is not None and tuple(x.shape[x.ndim - axes :]) != tuple(weight.shape)):
        return
    shared = {"axis": tuple(range(-axes, 0))}
    alpha = tensor_of(module, "alpha")
    if alpha is not None and alpha.numel() == 1:
        yield {"norm": "dyt", **shared, "alpha": alpha.item(), "weight": weight, "bias": bias}
    own = own_options(module)
    epsilons = [own["eps"]] if own["eps"] is not None else [None, *(1e-6, 1e-5, 1e-12, 0.0)]
    for eps in epsilons:
        for offset in dict.fromkeys((own["weight_offset"], 0.0, 1.0) if weight is not None else (0.0,)):
            for mode in dict.fromkeys((own["eps_mode"], "inside", "outside", "clamp")):
                options = {**shared, "eps": eps, "eps_mode": mode, "weight": weight, "weight_offset": offset}
                kinds = ("layer",) if bias is not None or isinstance(module, nn.LayerNorm) else ("rms", "layer")
                for kind in kinds:
                    yield {"norm": kind, **options, **({"bias": bias} if kind == "layer" else {})}


def tensor_of(module: nn.Module, name: str) -> Tensor | None:
    """A floating tensor attribute, or None."""
    value = getattr(module, name, None)
    return value.detach().cpu() if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else None


def own_options(module: nn.Module) -> dict[str, Any]:
    """ε, its mode and the weight's offset, as far as the module says so."""
    return {
        "eps": own_eps(module),
        "eps_mode": getattr(module, "eps_mode", "inside"),
        "weight_offset": float(getattr(module, "weight_offset", 0.0)),
    }


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
