"""Where batch norms, affines of norms and data scalers can be folded, and why elsewhere not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrize

from evenkeel._spec import machine_epsilon
from evenkeel.convert._fold import Affine, Fold, consumers, producer, refuse_uses
from evenkeel.convert._site import Site
from evenkeel.convert._uses import RefusedError, Use, owner_of, places_of, refuse_shared, told
from evenkeel.nn import FeatureAffine, PixelNormalize
from evenkeel.recognition import Found, Layout, Recognition, Roles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from evenkeel.convert._graph import Node
    from evenkeel.convert._search import Search

__all__ = [
    "attribute",
    "find_affines",
    "find_batch_norms",
    "find_scalers",
    "neutral_of",
    "own",
    "parts_of",
    "single_call",
]


def find_batch_norms(search: Search) -> Iterator[Site]:
    """Yield every norm over channels: in evaluation it only multiplies and shifts."""
    for found in search.norms:
        spec = found.recognition.spec
        if spec is not None and spec.shares == "channel":
            yield folded(search, found, "fold_batch_norm", fold_of_batch_norm)


def find_affines(search: Search) -> Iterator[Site]:
    """Yield every norm with a weight or a bias; remembered statistics belong to another action."""
    for found in search.norms:
        spec = found.recognition.spec
        if id(found.module) in search.taken:
            continue
        if spec is not None and (spec.weight or spec.bias) and spec.shares != "channel":
            yield folded(search, found, "fold_affine", fold_of_affine)


def find_scalers(search: Search) -> Iterator[Site]:
    """Yield every fitted data scaler."""
    for name, module in search.model.named_modules():
        if isinstance(module, FeatureAffine) and (search.where is None or search.where(module, name)):
            found = Found(module, [name], Recognition(spec=None, reason="a fitted data scaler", agreement={}))
            yield folded(search, found, "fold_scaler", fold_of_scaler)


def folded(search: Search, found: Found, action: str, fold_of: Callable[[Search, Found], Fold]) -> Site:
    """The site of a fold, or of its refusal."""
    module, names, recognition = found
    site = Site(
        name=names[0],
        others=tuple(names[1:]),
        kind=type(module).__name__,
        recognition=recognition,
        sought=action,
        module=module,
    )
    try:
        fold = fold_of(search, found)
    except RefusedError as error:
        site.reason = str(error)
        return site
    into = list(dict.fromkeys(owner_of(search.model, use)[2] for use in fold.uses))
    site.action, site.change = action, fold
    site.note = f"into {places_of(search.model, fold.uses)}"
    site.watched = (site.name,) if fold.before else tuple(into)
    own_results = [value for node in search.graph.nodes if node.module is module for value in node.outputs]
    own_inputs = [value for node in search.graph.nodes if node.module is module for value in node.inputs]
    changed = [*own_inputs, *(use.result for use in fold.uses)] if fold.before else own_results
    site.rescaled = search.graph.names_with(changed)
    if fold.passing:
        search.taken.add(id(module))
    return site


def fold_of_batch_norm(search: Search, found: Found) -> Fold:
    """Fold a norm of remembered statistics into what makes its input, or else into what reads its result.

    Raises:
        RefusedError: it cannot be.
    """
    module, recognition = found.module, found.recognition
    spec, (roles, layout) = recognition.spec, parts_of(found)
    assert spec is not None
    if spec.memory != "running" or roles.mean is None or roles.variance is None:
        raise RefusedError("its statistics are those of the batch")
    if module.training and not recognition.frozen:
        raise RefusedError("in training its statistics are those of the batch; call eval() before")
    refuse_activation(found)
    mean, variance = own(module, roles.mean), own(module, roles.variance)
    weight = torch.ones_like(mean) if roles.weight is None else own(module, roles.weight) + spec.weight_offset
    bias = torch.zeros_like(mean) if roles.bias is None else own(module, roles.bias)
    eps = machine_epsilon(torch.float32) if spec.eps is None else spec.eps
    scale = weight * (variance + eps).rsqrt()
    affine = Affine(scale, bias - mean * scale)
    neutral = neutral_of(search, found, [(roles.mean, 0.0), (roles.variance, 1.0 - eps)], spec.weight_offset)
    node = single_call(search, module)
    axis = layout.channel_axis % len(node.outputs[0].shape)
    tried = []
    for before in (True, False):
        try:
            uses = [producer(node.inputs[0], axis)] if before else consumers(node.outputs[0], axis)
            refuse_uses(search.model, search.graph, uses, affine, before=before)
        except RefusedError as error:
            tried.append(str(error))
        else:
            return fold(search, module, affine, uses, before, neutral, passing=True)
    raise RefusedError("; ".join(tried))


def fold_of_affine(search: Search, found: Found) -> Fold:
    """Fold weight and bias of a norm into every product that reads its result.

    Raises:
        RefusedError: it cannot be.
    """
    module, spec = found.module, found.recognition.spec
    roles, layout = parts_of(found)
    assert spec is not None
    refuse_activation(found)
    weight = None if roles.weight is None else own(module, roles.weight) + spec.weight_offset
    bias = None if roles.bias is None else own(module, roles.bias)
    like = weight if weight is not None else bias
    assert like is not None
    if sum(size > 1 for size in like.shape) > 1 or layout.axes > 1:
        raise RefusedError("its weight has several axes")
    scale = torch.ones_like(like) if weight is None else weight
    shift = torch.zeros_like(like) if bias is None else bias
    affine = Affine(scale.flatten(), shift.flatten())
    if affine.is_neutral:
        raise RefusedError("its weight is 1 and its bias 0: there is nothing to fold")
    neutral = neutral_of(search, found, [], spec.weight_offset)
    uses: list[Use] = []
    for node in calls_of(search, module):
        for output in node.outputs:
            uses += consumers(output, layout.channel_axis % len(output.shape))
    refuse_uses(search.model, search.graph, uses, affine)
    return fold(search, module, affine, uses, False, neutral)


def fold_of_scaler(search: Search, found: Found) -> Fold:
    """Fold a fitted data scaler into every product that reads its result.

    Raises:
        RefusedError: it cannot be.
    """
    module = found.module
    assert isinstance(module, FeatureAffine)
    if module.clip is not None:
        raise RefusedError(f"it clips to {module.clip}")
    if getattr(module, "layout", "CHW") != "CHW":
        raise RefusedError("it also turns HWC into CHW")
    node = single_call(search, module)
    if not node.inputs or not node.inputs[0].dtype.is_floating_point:
        raise RefusedError("its input are integers, which the next layer does not take")
    if node.inputs[0].dtype != node.outputs[0].dtype:
        raise RefusedError("it also changes the dtype")
    affine = Affine(module.scale.cpu(), (module.offset - module.shift * module.scale).cpu())
    output = node.outputs[0]
    uses = consumers(output, module.axis % len(output.shape))
    refuse_uses(search.model, search.graph, uses, affine)
    neutral = [(module.shift, 0.0), (module.offset, 0.0), (module.scale, 1.0)]
    if isinstance(module, PixelNormalize):
        neutral += [(module.mean, 0.0), (module.std, 1.0 / module.max_value)]
    return fold(search, module, affine, uses, False, neutral, passing=True)


def fold(
    search: Search,
    module: nn.Module,
    affine: Affine,
    uses: list[Use],
    before: bool,
    neutral: list[tuple[Tensor, float]],
    *,
    passing: bool = False,
) -> Fold:
    """What is to do at a site."""
    return Fold(
        model=search.model,
        module=module,
        affine=affine,
        uses=uses,
        before=before,
        neutral=neutral,
        passing=passing,
    )


def calls_of(search: Search, module: nn.Module) -> list[Node]:
    """The operations that are calls of a norm.

    Raises:
        RefusedError: it did not run, or a call takes more than its input.
    """
    nodes = [node for node in search.graph.nodes if node.module is module]
    if not nodes:
        raise RefusedError("it did not run on the example inputs")
    if any(len(node.inputs) != 1 for node in nodes):
        raise RefusedError("it reads more than its input")
    return nodes


def single_call(search: Search, module: nn.Module) -> Node:
    """The one call of a module.

    Raises:
        RefusedError: it was called several times, or not.
    """
    nodes = calls_of(search, module)
    if len(nodes) > 1:
        raise RefusedError(f"it is called {len(nodes)} times")
    return nodes[0]


def refuse_activation(found: Found) -> None:
    """Refuse a norm that does more than to multiply and shift at its end.

    Raises:
        RefusedError: it does.
    """
    spec = found.recognition.spec
    if spec is not None and spec.activation is not None:
        raise RefusedError(f"it applies {spec.activation} after the affine")
    if parametrize.is_parametrized(found.module):
        raise RefusedError("its weight is computed from other parameters")


def neutral_of(
    search: Search, found: Found, more: list[tuple[str, float]], offset: float
) -> list[tuple[Tensor, float]]:
    """The tensors of a norm, and the numbers with which it does nothing more than its statistics.

    Raises:
        RefusedError: something besides the norm reads them.
    """
    (roles, _), module = parts_of(found), found.module
    tensors = []
    for name, value in [(roles.weight, 1.0 - offset), (roles.bias, 0.0), *more]:
        tensor = None if name is None else attribute(module, name)
        if tensor is None:
            continue
        known = next((v for v in search.graph.parameters.values() if v.tensor is tensor), None)
        if known is not None:
            if len({id(search.model.get_submodule(n.rpartition(".")[0])) for n in known.names}) > 1:
                raise RefusedError(f"{known.names[0]} is also {known.names[1]}")
            if known.readers and any(node.module is not module for node in known.readers):
                raise RefusedError(f"{known.names[0]} is also read by {told(known.readers[0])}")
            refuse_shared(search.model, search.graph, known, known.readers)
        tensors.append((tensor, value))
    return tensors


def parts_of(found: Found) -> tuple[Roles, Layout]:
    """Which tensors play which part, and where the features lie; a module of evenkeel's has torch.nn's names."""
    spec, roles, layout = found.recognition.spec, found.recognition.roles, found.recognition.layout
    if roles is not None and layout is not None:
        return roles, layout
    assert spec is not None
    names = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
    held = {part: name for part, name in names.items() if getattr(found.module, name, None) is not None}
    axes = len(getattr(found.module, "normalized_shape", (1,)))
    return Roles(**held), Layout(shares=spec.shares, axes=axes, channel_axis=-1 if spec.shares == "token" else 1)


def attribute(module: nn.Module, name: str) -> Tensor | None:
    """A tensor of a module or of one inside."""
    path, _, last = name.rpartition(".")
    found = getattr(module.get_submodule(path), last, None)
    return found if isinstance(found, torch.Tensor) else None


def own(module: nn.Module, name: str) -> Tensor:
    """A tensor of a norm, flat and in float64.

    Raises:
        RefusedError: its values are not here.
    """
    tensor = attribute(module, name)
    if tensor is None or tensor.is_meta or type(tensor.detach()) is not torch.Tensor:
        raise RefusedError(f"its {name} has no values here")
    return tensor.detach().double().cpu().flatten()
