"""The code of one module's forward, followed by torch.fx, in which a sum and the norm of it become one call."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from evenkeel import functional as F
from evenkeel.convert._uses import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from evenkeel._spec import EpsMode, NormSpec

__all__ = ["Fused", "Pattern", "follow", "fused_class"]

SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device)
INSIDE = "block."  # of the names that fx gives what a block holds
ADDITIONS = (operator.add, torch.add)


def add_then_norm(
    norm: Any, a: Tensor, b: Tensor, statistic: str, eps: float | None, eps_mode: EpsMode, offset: float, bias: bool
) -> tuple[Tensor, Tensor]:
    """Add, and normalize the sum by the parameters of a norm: the norm's result and the sum."""
    weight = getattr(norm, "weight", None)
    shape = weight.shape if weight is not None else a.shape[-1:]
    if statistic == "rms":
        return F.add_rms_norm(a, b, shape, weight, eps, eps_mode=eps_mode, weight_offset=offset)
    assert eps is not None
    return F.add_layer_norm(
        a, b, shape, weight, norm.bias if bias else None, eps, eps_mode=eps_mode, weight_offset=offset
    )


@dataclass(frozen=True)
class Free:
    """The place of an argument that may be another at each call: a tensor, or an object that is only handed on.

    Attributes:
        kind: `torch.Tensor`, or the class of the object.
    """

    kind: type

    def takes(self, value: Any) -> bool:
        """Whether a value may stand here."""
        return isinstance(value, self.kind) if self.kind is torch.Tensor else type(value) is self.kind


class Pattern:
    """How a module was called: tensors and objects are free, numbers, words and the nesting are what they were."""

    def __init__(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self.made = pattern_of((tuple(arguments), dict(keywords)))
        self.count = len(self.placed(arguments, keywords) or ())

    def placed(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any] | None:
        """The free parts of a call, in order; None of a call of another pattern."""
        found: list[Any] = []
        return found if collect((tuple(arguments), dict(keywords)), self.made, found) else None

    def filled(self, parts: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and keywords of a call with these free parts."""
        arguments, keywords = fill(self.made, iter(parts))
        return arguments, keywords


def pattern_of(value: Any) -> Any:
    """The same nested tuples, lists and dictionaries with what is free marked."""
    if type(value) in (tuple, list):
        return type(value)(pattern_of(item) for item in value)
    if type(value) is dict:
        return {key: pattern_of(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return Free(torch.Tensor)
    return value if isinstance(value, SIMPLE) else Free(type(value))


def collect(value: Any, pattern: Any, found: list[Any]) -> bool:
    """Append the parts of a value that are free in a pattern, in its order; False of a value of another pattern."""
    if type(pattern) is Free:
        found.append(value)
        return pattern.takes(value)
    if type(value) is not type(pattern):
        return False
    if type(pattern) in (tuple, list):
        return len(value) == len(pattern) and all(collect(v, p, found) for v, p in zip(value, pattern, strict=True))
    if type(pattern) is dict:
        return value.keys() == pattern.keys() and all(collect(value[key], p, found) for key, p in pattern.items())
    return bool(value == pattern)


def fill(pattern: Any, parts: Iterator[Any]) -> Any:
    """A pattern with parts in its free places."""
    if type(pattern) is Free:
        return next(parts)
    if type(pattern) in (tuple, list):
        return type(pattern)(fill(item, parts) for item in pattern)
    if type(pattern) is dict:
        return {key: fill(item, parts) for key, item in pattern.items()}
    return pattern


class Flat(nn.Module):
    """A block whose arguments are the free parts of a pattern, one by one: fx follows no nested ones."""

    def __init__(self, block: nn.Module, pattern: Pattern) -> None:
        super().__init__()
        self.block, self.pattern = block, pattern

    def forward(self, *parts: Any) -> Any:
        """Run the code of the block."""
        arguments, keywords = self.pattern.filled(parts)
        return self.block.forward(*arguments, **keywords)


class Level(fx.Tracer):
    """Follows one module; those inside are called as they are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is called and not followed: all are."""
        return True

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """A placeholder for each free part."""
        root: Any = self.root
        names = (f"part_{k}" for k in range(root.pattern.count))
        return root_fn, [root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]


def follow(module: nn.Module, pattern: Pattern) -> fx.Graph:
    """Follow a module's forward in the mode that it is in.

    Raises:
        RefusedError: what it does depends on values or shapes, or fx cannot follow it.
    """
    try:
        graph = Level().trace(Flat(copy.deepcopy(module), pattern))
    except Exception as error:  # fx has many kinds for what it cannot follow
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RefusedError(f"the code of its block cannot be followed: {line}") from error
    for node in graph.nodes:
        node.type = None  # the annotations of the code
        if node.op in ("call_module", "get_attr"):
            if not node.target.startswith(INSIDE):
                raise RefusedError("the code of its block makes a tensor of its own, which would stay as it is now")
            node.target = node.target.removeprefix(INSIDE)
    return graph


def fuse(graph: fx.Graph, module: nn.Module, norms: Mapping[int, NormSpec]) -> set[int]:
    """Join each sum with the norm that is called on it; return the ids of the norms for which that was done."""
    done: set[int] = set()
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        norm, total = module.get_submodule(node.target), node.args[0]
        if id(norm) not in norms or not is_sum(total):
            continue
        with graph.inserting_before(total):
            held = graph.create_node("get_attr", node.target)
            spec = norms[id(norm)]
            answers = (spec.statistic, spec.eps, spec.eps_mode, spec.weight_offset, spec.bias)
            pair = graph.call_function(add_then_norm, (held, *total.args, *answers))
            result, stream = (graph.call_function(operator.getitem, (pair, k)) for k in (0, 1))
        total.replace_all_uses_with(stream)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(total)
        done.add(id(norm))
    return done


def is_sum(node: Any) -> bool:
    """Whether an fx node adds two tensors."""
    if not isinstance(node, fx.Node) or node.kwargs or len(node.args) != 2:
        return False
    added = (node.op == "call_function" and node.target in ADDITIONS) or (
        node.op == "call_method" and node.target == "add"
    )
    return added and all(isinstance(argument, fx.Node) for argument in node.args)


def code_of(graph: fx.Graph, module: nn.Module) -> Callable[..., Any]:
    """The function of a graph; its first argument is the module."""
    made: Callable[..., Any] = type(fx.GraphModule(module, graph)).forward
    return made


class Fused(nn.Module):
    """Mixin before the class of a block: calls of the pattern run the joined code, others the block's own."""

    fused_pattern: Pattern
    fused_code: dict[bool, Callable[..., Any]]

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the block."""
        placed = self.fused_pattern.placed(arguments, keywords)
        if placed is None:
            return super().forward(*arguments, **keywords)
        return self.fused_code[self.training](self, *placed)


def fused_class(
    module: nn.Module, pattern: Pattern, norms: Mapping[int, NormSpec], check: Callable[[bool, fx.Graph], None]
) -> tuple[type[nn.Module], set[int]]:
    """Make the class of a block whose sums and norms are joined.

    Args:
        module: the block.
        pattern: how it is called.
        norms: by the ids of those to join: what they compute.
        check: (training, graph) -> None; raises where the graph is not what the block does.

    Returns:
        The class, and the ids of the norms that are joined.

    Raises:
        RefusedError: the code cannot be followed, or none of the norms is called on a sum.
    """
    code: dict[bool, Callable[..., Any]] = {}
    joined: list[set[int]] = []
    before = module.training
    try:
        for training in (True, False):
            module.training = training
            graph = follow(module, pattern)
            check(training, graph)
            joined.append(fuse(graph, module, norms))
            code[training] = code_of(graph, module)
    finally:
        module.training = before
    if not joined[0] or joined[0] != joined[1]:
        raise RefusedError("in the code of its block it is not called on a sum")
    theirs = type(module)

    def plain(self: nn.Module, protocol: object) -> tuple[Any, ...]:
        return nn.Module.__new__, (theirs,), vars(self).copy()

    body = {"fused_pattern": pattern, "fused_code": code, "__module__": theirs.__module__}
    body |= {"__qualname__": theirs.__qualname__, "__deepcopy__": deep_copy, "__reduce_ex__": plain}
    return type(theirs.__name__, (Fused, theirs), body), joined[0]


def deep_copy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Copy a block of joined code, which has a class of its own that pickles do not know."""
    clone: nn.Module = object.__new__(type(self))
    memo[id(self)] = clone
    vars(clone).update(copy.deepcopy(vars(self), memo))
    return clone
