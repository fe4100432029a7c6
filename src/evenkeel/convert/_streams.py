"""A stream: the tensors that are one sum, from all that write into it to all that read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evenkeel.convert._axes import axis_after, axis_before, broadcast_axis

if TYPE_CHECKING:
    from evenkeel.convert._graph import Graph, ModuleCall, Node, Value

__all__ = ["Stream", "gate_of", "is_dropped", "stream_of"]

SUMS = ("aten.add", "aten.add_", "aten.sub", "aten.sub_")
SCALES = ("aten.div", "aten.div_", "aten.mul", "aten.mul_")


@dataclass(eq=False, repr=False)
class Stream:
    """The tensors that are joined by sums, moves and factors of all features.

    Attributes:
        axes: each of its values, and the axis of its features there.
        writers: the values that something else makes: products, parameters, inputs.
        readers: the operations that make something else of it, with what they read.
    """

    axes: dict[Value, int] = field(default_factory=dict)
    writers: list[Value] = field(default_factory=list)
    readers: list[tuple[Node, Value]] = field(default_factory=list)


def stream_of(value: Value, axis: int) -> Stream:
    """Return the stream that a value belongs to.

    Args:
        value: what a norm reads, for example.
        axis: of its features.
    """
    stream, left = Stream(), [(value, axis)]
    while left:
        value, axis = left.pop()
        if value in stream.axes:
            continue
        stream.axes[value] = axis
        sources = None if value.producer is None else sources_of(value.producer, value, axis)
        if sources is None:
            stream.writers.append(value)
        else:
            left += sources
        for node in dict.fromkeys(value.readers):
            results = results_of(node, value, axis)
            if results is None:
                stream.readers.append((node, value))
            else:
                left += results
    return stream


def sources_of(node: Node, value: Value, axis: int) -> list[tuple[Value, int]] | None:
    """Which inputs an operation only adds, moves or multiplies by one number; None where it does something else."""
    if node.op in SUMS and "alpha" not in node.arguments and len(node.inputs) == 2:
        places = [broadcast_axis(source, value, axis) for source in node.inputs]
    elif node.op in SCALES:
        data = [v for v in node.inputs if broadcast_axis(v, value, axis) is not None]
        numbers = [v for v in node.inputs if not v.shape or max(v.shape) == 1]
        if len(data) != 1 or len(data) + len(numbers) != len(node.inputs) or node.arguments["self"] in numbers[:1]:
            return None
        return [(data[0], axis - len(value.shape) + len(data[0].shape))]
    elif not node.inputs:
        return None
    else:
        places = [axis_before(node, source, value, axis) for source in node.inputs]
    if None in places:
        return None
    return [(source, place) for source, place in zip(node.inputs, places, strict=True) if place is not None]


def results_of(node: Node, value: Value, axis: int) -> list[tuple[Value, int]] | None:
    """What an operation makes of a value if it only adds, moves or multiplies it; None where it does something else."""
    found: list[tuple[Value, int]] = []
    if not node.outputs or node.is_lost:
        return None
    for result in node.outputs:
        if result is value:
            continue
        if node.op in SUMS or node.op in SCALES:
            place: int | None = axis + len(result.shape) - len(value.shape)
        else:
            place = axis_after(node, value, result, axis)
        sources = None if place is None else sources_of(node, result, place)
        if place is None or sources is None or (value, axis) not in sources:
            return None
        found.append((result, place))
    return found


def is_dropped(node: Node) -> bool:
    """Whether an operation multiplies by a random mask."""
    makers = [value.producer for value in node.inputs if value.producer is not None]
    makers += [value.producer for maker in makers for value in maker.inputs if value.producer is not None]
    return any("bernoulli" in maker.op or "dropout" in maker.op for maker in [node, *makers])


def gate_of(graph: Graph, stream: Stream, writer: Value) -> tuple[ModuleCall, set[Value]] | None:
    """Find the call of a module through whose first input all goes on that a writer writes.

    Returns:
        The call, and the values of the stream that come before it; None where some go on past it.
    """
    reading = {id(value) for _, value in stream.readers}
    for call in graph.calls:
        if not call.inputs or call.inputs[0] not in stream.axes or len(graph.calls_of(call.module)) > 1:
            continue
        gate, before = call.inputs[0], ancestors(stream, call.inputs[0])
        inside = all(call in node.calls for node in gate.readers)
        closed = all(
            id(value) not in reading and all(set(node.outputs) <= before for node in value.readers)
            for value in before - {gate}
        )
        if writer in before and inside and closed and not any(value.is_result for value in before):
            return call, before
    return None


def ancestors(stream: Stream, value: Value) -> set[Value]:
    """The values of a stream from which a value is made, and itself."""
    found, left = {value}, [value]
    while left:
        value = left.pop()
        sources = None if value.producer is None else sources_of(value.producer, value, stream.axes[value])
        for source, _ in sources or ():
            if source not in found:
                found.add(source)
                left.append(source)
    return found
