"""Where norms stand around the branches of a residual stream, told by the data flow alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenkeel.convert._graph import MODULE, Graph, Node, Value
from evenkeel.convert._streams import is_dropped

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Placement", "Sum", "placements", "residual_sums"]

# what a stream or a branch passes through without being another: its layout, its dtype, dropout, a factor
MOVES = """alias detach clone _to_copy view _unsafe_view reshape permute transpose t expand squeeze unsqueeze roll
native_dropout dropout"""
FACTORS = ("aten.mul", "aten.mul_", "aten.div")
PASSING = {f"aten.{name}" for name in MOVES.split()}
PRODUCTS = {f"aten.{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution")}
NAMES = {(True, True): "peri", (True, False): "pre", (False, True): "output-only"}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the norms of one branch stand: ``x + f(x)``.

    Attributes:
        block: the module whose code makes the sum.
        placement: ``pre`` where f begins with a norm, ``output-only`` where it ends with one, ``peri`` where both,
            ``post`` where the sum goes through a norm, ``none``.
        norms: their names.
        evidence: what was seen in the data flow.

    Example:
        >>> import torch, evenkeel as ek
        >>> class Block(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.norm, self.feed = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)
        ...     def forward(self, x):
        ...         return x + self.feed(self.norm(x))
        >>> found = ek.convert.plan(torch.nn.Sequential(Block()), torch.randn(2, 4)).placement()
        >>> [(item.block, item.placement, item.norms) for item in found]
        [('0', 'pre', ('0.norm',))]
    """

    block: str
    placement: str
    norms: tuple[str, ...]
    evidence: str


@dataclass(frozen=True)
class Sum:
    """An addition ``x + f(x)``.

    Attributes:
        node: the addition.
        stream: x, as f reads it.
        branch: the result of f.
        inner: the operations of f.
    """

    node: Node
    stream: Value
    branch: Value
    inner: tuple[Node, ...]


def residual_sums(graph: Graph, norms: Collection[int]) -> Iterator[Sum]:
    """Yield the additions of a value and of what products with parameters make of it.

    Args:
        graph: the data flow.
        norms: the ids of the modules that are norms.
    """
    order = {id(node): place for place, node in enumerate(graph.nodes)}
    roots: dict[int, Value] = {}  # by the id of a sum: its stream, which a branch beside may read
    for node in graph.nodes:
        pair = addends(node)
        if pair is None:
            continue
        for a, branch in (pair, pair[::-1]):
            streams = [a] if id(a) not in roots else [a, roots[id(a)]]
            found = next(((x, inner) for x in streams if (inner := between(x, branch, order))), None)
            if found is not None and any(is_product(step, norms) for step in found[1]):
                stream, inner = found
                roots[id(node.outputs[0])] = stream  # a branch beside this one reads it too
                yield Sum(node, stream, branch, inner)
                break


def addends(node: Node) -> tuple[Value, Value] | None:
    """What an addition adds, where it is one of two values of one shape."""
    a, b = node.arguments.get("self"), node.arguments.get("other")
    if node.op not in ("aten.add", "aten.add_") or not isinstance(a, Value) or not isinstance(b, Value):
        return None
    if a.shape != b.shape or a.tensor is not None or b.tensor is not None or node.arguments.get("alpha", 1) != 1:
        return None
    return a, b


def is_product(node: Node, norms: Collection[int]) -> bool:
    """Whether an operation mixes features: a product, or a module whose inside was not seen."""
    return node.op in PRODUCTS or (node.op == MODULE and id(node.module) not in norms)


def between(start: Value, end: Value, order: dict[int, int]) -> tuple[Node, ...]:
    """The operations on the ways from a value to another, in order; none where there is no way."""
    first = -1 if start.producer is None else order[id(start.producer)]
    seen: dict[int, Node] = {}
    left = [end]
    while left:
        value = left.pop()
        node = value.producer
        if value is start or node is None or id(node) in seen or order[id(node)] <= first:
            continue
        seen[id(node)] = node
        left += node.inputs
    reached: dict[int, Node] = {}
    for node in sorted(seen.values(), key=lambda node: order[id(node)]):
        if any(value is start or id(value.producer) in reached for value in node.inputs):
            reached[id(node)] = node
    return tuple(reached.values())


def placements(graph: Graph, norms: dict[int, str]) -> list[Placement]:
    """Tell each residual branch's norms.

    Args:
        graph: the data flow.
        norms: the names of the modules that are norms, by their ids.
    """
    sums = list(residual_sums(graph, norms))
    streams = {id(item.stream) for item in sums}
    through = [reader_of_sum(item, norms) for item in sums]
    carried = [node is not None and bool({id(value) for value in node.outputs} & streams) for node in through]
    # the norm after the last sum is the last branch's where other branches have theirs there
    like_others = any(carried) or len(sums) == 1
    return [
        placed(item, norms, node if node is not None and (onward or like_others) else None, onward=onward)
        for item, node, onward in zip(sums, through, carried, strict=True)
    ]


def reader_of_sum(item: Sum, norms: dict[int, str]) -> Node | None:
    """The norm that alone reads a sum; None where there is none."""
    node = only_reader(item.node.outputs[0])
    return node if node is not None and id(node.module) in norms else None


def placed(item: Sum, norms: dict[int, str], through: Node | None, *, onward: bool) -> Placement:
    """Tell where the norms of a branch stand; ``through`` is one that its sum goes through, ``onward`` as a stream."""
    starts = list(dict.fromkeys(beginnings(item.stream, item.inner)))
    first = [node for node in starts if id(node.module) in norms]
    before = bool(first) and len(first) == len(starts)
    last = ending(item.branch, item.inner)
    if last is None or id(last.module) not in norms or last in first:
        last = None
    kind = NAMES.get((before, last is not None), "none")
    if through is not None and (onward or kind == "none"):
        kind = "post" if kind == "none" else f"{kind} and post"
    else:
        through = None
    told = [f"f begins with {joined(first, norms)}"] if before else []
    if first and not before:
        told.append(f"{joined(first, norms)} reads x, and so do others")
    told += [f"f ends with {norms[id(last.module)]}"] if last is not None else []
    told += [f"the sum goes through {norms[id(through.module)]} alone"] if through is not None else []
    found = [*(first if before else []), *(node for node in (last, through) if node is not None)]
    return Placement(
        block=item.node.calls[-1].name if item.node.calls else "",
        placement=kind,
        norms=tuple(dict.fromkeys(norms[id(node.module)] for node in found)),
        evidence=f"x + f(x) with {len(item.inner)} operations in f; {'; '.join(told) or 'no norm at either end of f'}",
    )


def joined(nodes: Collection[Node], norms: dict[int, str]) -> str:
    """The names of norms."""
    return " and ".join(dict.fromkeys(norms[id(node.module)] for node in nodes))


def beginnings(stream: Value, inner: Collection[Node]) -> Iterator[Node]:
    """The operations of a branch that read the stream, past what only moves it."""
    held = {id(node) for node in inner}
    for node in stream.readers:
        if id(node) not in held:
            continue
        if node.op in PASSING or is_factor(node):
            for output in node.outputs:
                yield from beginnings(output, inner)
        else:
            yield node


def ending(branch: Value, inner: Collection[Node]) -> Node | None:
    """The operation that makes a branch's result, before what only moves or scales it."""
    held, value = {id(node) for node in inner}, branch
    while (node := value.producer) is not None and id(node) in held:
        if node.op not in PASSING and not is_factor(node):
            return node
        inside = [v for v in node.inputs if v.producer is not None and id(v.producer) in held]
        if len(inside) != 1:
            return node
        value = inside[0]
    return None


def is_factor(node: Node) -> bool:
    """Whether an operation multiplies by a parameter, a number or the mask of a dropout."""
    if node.op not in FACTORS:
        return False
    return sum(value.tensor is None for value in node.inputs) == 1 or is_dropped(node)


def only_reader(value: Value) -> Node | None:
    """The one operation that reads a value, past what only moves it."""
    if value.is_result or len(value.readers) != 1:
        return None
    node = value.readers[0]
    if node.op in PASSING and len(node.outputs) == 1:
        return only_reader(node.outputs[0])
    return node


def names_of(norms: Collection[Any]) -> dict[int, str]:
    """The first names of norms by the ids of their modules."""
    found: dict[int, str] = {}
    for item in norms:
        module: nn.Module = item.module
        found[id(module)] = item.names[0]
    return found
