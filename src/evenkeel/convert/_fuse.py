"""Fusions that the data flow shows: a residual sum and the norm of it, a norm and the activation after it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from evenkeel.convert._follow import Pattern, code_of, fused_class
from evenkeel.convert._graph import ModuleCall, Node, tensors_in
from evenkeel.convert._modules import Passing, class_for
from evenkeel.convert._placement import Sum, residual_sums
from evenkeel.convert._site import Change, Site, Swap, refusal
from evenkeel.convert._uses import RefusedError, told
from evenkeel.recognition import Found, isolated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel._spec import Activation, NormSpec
    from evenkeel.convert._search import Search
    from evenkeel.convert._weights import Weights

__all__ = ["find_activations", "find_residual_sums"]

ACTIVATIONS: dict[str, tuple[Activation, type[nn.Module]]] = {
    "aten.relu": ("relu", nn.ReLU),
    "aten.relu_": ("relu", nn.ReLU),
    "aten.silu": ("silu", nn.SiLU),
    "aten.silu_": ("silu", nn.SiLU),
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(kw_only=True)
class ActivatedNorm(Change):
    """A norm applies the activation that was called on its result; the activation returns its input."""

    swap: Swap
    activation: nn.Module
    _kind: type[nn.Module] | None = field(default=None)

    def apply(self, weights: Weights) -> None:
        """Change both."""
        self.swap.apply(weights)
        self._kind = type(self.activation)
        self.activation.__class__ = class_for(Passing, self._kind)

    def revert(self) -> None:
        """Give both their classes back."""
        if self._kind is not None:
            self.activation.__class__ = self._kind
            self._kind = None
        self.swap.revert()


def find_activations(search: Search) -> Iterator[Site]:
    """Yield every norm of channels or groups whose result goes through ReLU or SiLU."""
    for found in search.norms:
        spec = found.recognition.spec
        if spec is None or spec.shares not in ("channel", "sample_group") or id(found.module) in search.taken:
            continue
        activations = [node for node in readers(search, found.module) if node.op in ACTIVATIONS]
        if not activations:
            continue
        site = site_of(found, "fuse_activation")
        try:
            site.change = activated(search, found, spec)
        except RefusedError as error:
            site.reason = str(error)
        else:
            call = activations[0].calls[-1]
            site.action, site.watched = "fuse_activation", (call.name,)
            site.note = f"with {call.name}"
            search.taken.add(id(found.module))
        yield site


def site_of(found: Found, action: str) -> Site:
    """A site where nothing is decided yet."""
    return Site(
        name=found.names[0],
        others=tuple(found.names[1:]),
        kind=type(found.module).__name__,
        recognition=found.recognition,
        sought=action,
        module=found.module,
    )


def readers(search: Search, module: nn.Module) -> list[Node]:
    """What reads the results of a norm."""
    calls = [node for node in search.graph.nodes if node.module is module]
    return [reader for node in calls for value in node.outputs for reader in value.readers]


def activated(search: Search, found: Found, spec: NormSpec) -> ActivatedNorm:
    """Join a norm with the activation after it.

    Raises:
        RefusedError: it cannot be.
    """
    module = found.module
    node = search.graph.node_of(module)
    if node is None:
        raise RefusedError("it is called several times")
    value, after = node.outputs[0], readers(search, module)
    if len(after) != 1 or value.is_result:
        raise RefusedError(f"its result is read by {told(after[0])} and by others")
    name, kind = ACTIVATIONS[after[0].op]
    owner = after[0].calls[-1] if after[0].calls else None
    if owner is None or type(owner.module) is not kind or [id(v) for v in owner.inputs] != [id(value)]:
        raise RefusedError(
            f"{name} is called in the code of {owner.name if owner and owner.name else 'the model'}, not as a module"
        )
    calls = len(search.graph.calls_of(owner.module))
    if calls > 1:
        raise RefusedError(f"the module {owner.name} is called {calls} times, on other results too")
    refuse_hooks(module)
    refuse_hooks(owner.module)
    reason = refusal(module, found.recognition, search.mode, value.dtype)
    if reason:
        raise RefusedError(reason)
    if spec.activation is not None:
        raise RefusedError(f"it applies {spec.activation} already")
    if name != "relu" and value.dtype.itemsize == 2 and search.mode == "exact":
        raise RefusedError(f"{name} after the norm rounds twice in {value.dtype}; mode='accurate' rounds once instead")
    chosen = replace(spec, activation=name, cast="late" if search.mode == "accurate" else spec.cast)
    return ActivatedNorm(swap=Swap(module=module, spec=chosen, recognition=found.recognition), activation=owner.module)


def refuse_hooks(module: nn.Module) -> None:
    """Refuse a module whose hooks would see other values.

    Raises:
        RefusedError: it has hooks.
    """
    if any(vars(module).get(name) for name in HOOKS):
        raise RefusedError(f"a {type(module).__name__} here has hooks, which would see other values")


@dataclass(kw_only=True)
class JoinedBlock(Change):
    """The code of a block in which sums and norms are joined; several sites share it."""

    block: nn.Module
    kind: type[nn.Module]
    before: type[nn.Module]

    def apply(self, weights: Weights) -> None:
        """Give the block the class with the joined code."""
        self.block.__class__ = self.kind

    def revert(self) -> None:
        """Give it its class back."""
        self.block.__class__ = self.before


def find_residual_sums(search: Search) -> Iterator[Site]:
    """Yield every norm of rows that is called on a sum ``x + f(x)``."""
    norms = {id(found.module): found for found in search.norms}
    sums = {id(item.node.outputs[0]): item for item in residual_sums(search.graph, set(norms))}
    wanted: dict[int, list[tuple[Site, Found]]] = {}
    blocks: dict[int, nn.Module] = {}
    sites = []
    for found in search.norms:
        nodes = [node for node in search.graph.nodes if node.module is found.module]
        read = [sums[id(node.inputs[0])] for node in nodes if node.inputs and id(node.inputs[0]) in sums]
        if not read or found.recognition.spec is None or id(found.module) in search.taken:
            continue
        site = site_of(found, "fuse_residual_add")
        sites.append(site)
        try:
            call = block_of(search, found, nodes, read)
        except RefusedError as error:
            site.reason = str(error)
        else:
            block = call.module
            blocks[id(block)] = block
            site.watched = (call.name,) if call.name else ()
            wanted.setdefault(id(block), []).append((site, found))
    calls = calls_of(search, list(blocks.values())) if blocks else {}
    for key, group in wanted.items():
        join(blocks[key], calls[key], group)
    yield from sites


def block_of(search: Search, found: Found, nodes: list[Node], read: list[Sum]) -> ModuleCall:
    """The call of the module in whose code both the sum and the norm are.

    Raises:
        RefusedError: there is none, or the norm is none that the kernels of sums serve.
    """
    spec, layout = found.recognition.spec, found.recognition.layout
    assert spec is not None
    if len(nodes) != 1:
        raise RefusedError("it is called several times")
    total, node = read[0], nodes[0]
    made, called = (item.calls[-1] if item.calls else None for item in (total.node, node))
    if made is None or called is None or made is not called:
        names = [call.name or "the model" if call else "the model" for call in (made, called)]
        raise RefusedError(f"the sum is made in the code of {names[0]}, and the norm is called in that of {names[1]}")
    if total.node.op == "aten.add_":
        raise RefusedError("the sum is written into the stream")
    addends = [value.dtype for value in total.node.inputs[:2]]
    if len({*addends, node.outputs[0].dtype}) > 1:
        raise RefusedError("stream, branch and result have different dtypes")
    simple = spec.statistic in ("moments", "rms") and spec.shares == "token"
    simple = simple and not (spec.activation or spec.gating or spec.groups)
    if not simple or layout is None or layout.channel_axis != -1 or spec.memory != "batch":
        raise RefusedError("no kernel adds before this norm")
    roles = found.recognition.roles
    if roles is None or roles.weight not in (None, "weight") or roles.bias not in (None, "bias"):
        raise RefusedError("its weight has another name")
    if roles.weight is None and layout.axes != 1:
        raise RefusedError("its axes are known from its weight alone, which it lacks")
    if spec.cast != "late" and search.mode == "exact" and addends[0].itemsize == 2:
        raise RefusedError("no kernel that adds rounds where it does; mode='accurate' rounds once instead")
    reason = refusal(found.module, found.recognition, search.mode, addends[0])
    if reason:
        raise RefusedError(reason)
    refuse_hooks(found.module)
    return made


def calls_of(search: Search, blocks: list[nn.Module]) -> dict[int, tuple[Any, Any] | str]:
    """Run the model, and keep what each block is called with, or why that cannot be kept."""
    assert search.call is not None
    kept: dict[int, tuple[Any, Any] | str] = {}

    def keep(module: nn.Module, arguments: Any, keywords: Any) -> None:
        if id(module) not in kept:
            try:  # the call may write into them: a cache of keys and values
                kept[id(module)] = copy.deepcopy((arguments, keywords))
            except Exception as error:  # they are of any class
                kept[id(module)] = f"its block takes what cannot be copied: {str(error) or type(error).__name__}"

    twin = search.model
    buffers = [(buffer, buffer.clone()) for buffer in twin.buffers()]
    handles = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in blocks]
    try:
        with isolated():
            search.call(twin)
    finally:
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    return kept


def join(block: nn.Module, call: tuple[Any, Any] | str, group: list[tuple[Site, Found]]) -> None:
    """Join the sums and norms of a block, or say at each site why not."""
    norms = {}
    for _, found in group:
        assert found.recognition.spec is not None
        norms[id(found.module)] = replace(found.recognition.spec, cast="late")
    try:
        if isinstance(call, str):
            raise RefusedError(call)
        pattern = Pattern(*call)
        kind, joined = fused_class(block, pattern, norms, lambda mode, graph: check(block, mode, graph, pattern, call))
    except RefusedError as error:
        for site, _ in group:
            site.reason = str(error)
        return
    change = JoinedBlock(block=block, kind=kind, before=type(block))
    for site, found in group:
        if id(found.module) not in joined:
            site.reason = "in the code of its block it is not called on a sum"
            continue
        site.action, site.change = "fuse_residual_add", change


def check(block: nn.Module, training: bool, graph: fx.Graph, pattern: Pattern, call: tuple[Any, Any]) -> None:
    """Run what was followed beside the block, bit for bit.

    Raises:
        RefusedError: it gives something else, or changes its arguments.
    """
    function = code_of(graph, block)
    results: list[list[torch.Tensor]] = []
    with isolated():
        for own in (True, False):
            twin, seen = copy.deepcopy(block).train(training), []
            torch.manual_seed(0)
            for _ in range(2):  # what a call leaves behind in the block may change the next
                arguments, keywords = copy.deepcopy(call)
                placed = pattern.placed(arguments, keywords)
                assert placed is not None
                try:
                    result = twin(*arguments, **keywords) if own else function(twin, *placed)
                except Exception as error:  # a block is the user's own code
                    line = (str(error).strip() or type(error).__name__).splitlines()[0]
                    raise RefusedError(f"the code of its block does not run apart from the model: {line}") from error
                seen += [*tensors_in(result), *tensors_in(placed)]
            results.append([*seen, *twin.buffers()])
    same = len(results[0]) == len(results[1]) and all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(*results, strict=True)
    )
    if not same:
        raise RefusedError("the code of its block, followed, gives other results")
