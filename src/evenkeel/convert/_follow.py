"""The code of one module's forward, followed by torch.fx, in which a sum and the norm of it become one call."""

from __future__ import annotations

import copy
import inspect
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from evenkeel import functional as F
from evenkeel.convert._uses import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from evenkeel._spec import EpsMode, NormSpec

__all__ = ["Fused", "Pattern", "follow", "fused_class"]

SIMPLE = (bool, int, float, str, type(None))
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


class Pattern:
    """How a module was called: its tensors are free, its other arguments are what they were.

    Raises:
        RefusedError: an argument is neither, or may be any number of arguments.
    """

    def __init__(self, module: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        signature = inspect.signature(module.forward)
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
            raise RefusedError("its block takes any number of arguments")
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        self.values = tuple(bound.arguments.items())
        strange = [value for _, value in self.values if not isinstance(value, (torch.Tensor, *SIMPLE))]
        if strange:
            raise RefusedError(f"its block takes a {type(strange[0]).__name__}, whose parts fx does not follow")
        self.given = (len(arguments), tuple(keywords))
        names = [name for name, _ in self.values]
        self.places = [*range(len(arguments)), *(names.index(name) for name in keywords)]
        self.fixed = {name: value for name, value in self.values if not isinstance(value, torch.Tensor)}

    def placed(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any] | None:
        """All arguments in the order of the signature; None of a call of another pattern."""
        if (len(arguments), tuple(keywords)) != self.given:
            return None
        found = [value for _, value in self.values]
        for place, value in zip(self.places, (*arguments, *keywords.values()), strict=True):
            expected = found[place]
            is_tensor = isinstance(expected, torch.Tensor)
            if is_tensor != isinstance(value, torch.Tensor) or not (is_tensor or same(value, expected)):
                return None
            found[place] = value
        return found


def same(a: Any, b: Any) -> bool:
    """Whether two plain values are one."""
    return type(a) is type(b) and bool(a == b)


class Level(fx.Tracer):
    """Follows one module; those inside are called as they are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is called and not followed: all are."""
        return True


def follow(module: nn.Module, pattern: Pattern) -> fx.Graph:
    """Follow a module's forward in the mode that it is in.

    Raises:
        RefusedError: what it does depends on values or shapes, or fx cannot follow it.
    """
    try:
        return Level().trace(copy.deepcopy(module), pattern.fixed)
    except Exception as error:  # fx has many kinds for what it cannot follow
        raise RefusedError(f"the code of its block cannot be followed: {str(error) or type(error).__name__}") from error


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
