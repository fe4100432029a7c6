"""Products with a parameter: linear layers, convolutions and embeddings, as the operations that they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from evenkeel.convert._axes import axis_after
from evenkeel.recognition import CannotCopyError, bare_copy, isolated, random_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel.convert._graph import Graph, Node, Value
    from evenkeel.convert._weights import Weights

__all__ = [
    "RefusedError",
    "Use",
    "bias_in",
    "is_plain",
    "owner_of",
    "places_of",
    "readers_through",
    "refuse_shared",
    "told",
    "use_of",
]

MOVES = ("aten.alias", "aten.detach", "aten.permute", "aten.t", "aten.transpose")


class RefusedError(Exception):
    """A change that would not be exact; the message says why."""


@dataclass(eq=False, repr=False, kw_only=True)
class Use:
    """A product with a parameter.

    Attributes:
        node: the operation.
        kind: what it is.
        weight: the parameter.
        data: what it is multiplied by; the indices of an embedding.
        axis: of the data that the sum runs over.
        result: what the operation makes.
        out: the axis of the result that the parameter's rows make.
        bias: the parameter that is added; None where none is.
        added: the operation that adds it, where that is another one.
        flipped: whether the weight has its inputs before its outputs.
        groups: of a convolution.
        pads: whether a convolution reads zeros beyond the border, or has fewer terms there.
    """

    node: Node
    kind: Literal["linear", "convolution", "embedding"]
    weight: Value
    data: Value
    axis: int
    result: Value
    out: int
    bias: Value | None = None
    added: Node | None = None
    flipped: bool = False
    groups: int = 1
    pads: bool = False

    def matrix(self, wide: Tensor) -> Tensor:
        """The weight as (groups, outputs of a group, inputs of a group, ...): a view."""
        if self.kind == "linear":
            return (wide.t() if self.flipped else wide).unsqueeze(0)
        if self.kind == "embedding":
            return wide.t().unsqueeze(0)
        grouped = wide.unflatten(0, (self.groups, -1))
        return grouped.transpose(1, 2) if self.flipped else grouped

    def scale_outputs(self, weights: Weights, scale: Tensor) -> None:
        """Multiply what it makes, the bias not included."""
        matrix = self.matrix(weights.wide(self.tensor))
        matrix *= shaped(scale.view(self.groups, -1, 1), matrix)

    def scale_inputs(self, weights: Weights, scale: Tensor) -> None:
        """Multiply what it reads."""
        matrix = self.matrix(weights.wide(self.tensor))
        matrix *= shaped(scale.view(self.groups, 1, -1), matrix)

    def of_shift(self, weights: Weights, shift: Tensor) -> Tensor:
        """What it makes of a shift of what it reads."""
        matrix = self.matrix(weights.wide(self.tensor))
        return (matrix * shaped(shift.view(self.groups, 1, -1), matrix)).flatten(2).sum(-1).flatten()

    @property
    def tensor(self) -> Tensor:
        """The parameter itself."""
        assert self.weight.tensor is not None
        return self.weight.tensor


def shaped(vector: Tensor, matrix: Tensor) -> Tensor:
    """A vector with as many axes as a matrix, on its device."""
    return vector.reshape(*vector.shape, *[1] * (matrix.ndim - 3)).to(matrix)


def use_of(node: Node) -> Use | None:
    """Return the product with a parameter that an operation is, with its bias; None where it is none."""
    use = product(node)
    if use is None or use.bias is not None or use.kind == "embedding":
        return use
    value, axis = use.result, use.out
    while len({id(reader) for reader in value.readers}) == 1 and not value.is_result:
        reader = value.readers[0]
        bias = bias_in(reader, value, axis)
        if bias is not None:
            use.bias, use.added = bias, reader
            break
        place = axis_after(reader, value, reader.outputs[0], axis) if len(reader.inputs) == 1 else None
        if place is None:
            break
        value, axis = reader.outputs[0], place
    return use


def bias_in(node: Node, value: Value, axis: int) -> Value | None:
    """The parameter that an operation adds to a value along its last axis; None where it does something else."""
    if node.op not in ("aten.add", "aten.add_") or len(node.inputs) != 2 or "alpha" in node.arguments:
        return None
    other = node.inputs[1 - node.inputs.index(value)]
    fits = axis == len(value.shape) - 1 and other.shape == value.shape[-1:] and is_plain(other)
    return other if fits and node.outputs[0].shape == value.shape else None


def product(node: Node) -> Use | None:
    """Return the product that an operation is, with the bias that it adds itself."""
    given, op = node.arguments, node.op.removeprefix("aten.")
    if op in ("mm", "addmm"):
        data, matrix = (given["self"], given["mat2"]) if op == "mm" else (given["mat1"], given["mat2"])
        weight = parameter_of(matrix)
        bias = given["self"] if op == "addmm" else None
        if weight is None or len(weight[0].shape) != 2 or {"alpha", "beta"} & set(given):
            return None
        if bias is not None and (not is_plain(bias) or len(bias.shape) != 1 or bias.shape[0] != matrix.shape[1]):
            return None
        flipped = weight[1] == 0
        return linear(node, data, weight[0], bias, flipped)
    if op == "linear":
        weight, bias = parameter_of(given["weight"]), given.get("bias")
        if weight is None or len(weight[0].shape) != 2 or not (bias is None or is_plain(bias)):
            return None
        return linear(node, given["input"], weight[0], bias, weight[1] != 0)
    if op == "convolution":
        return convolution(node, given)
    if op == "embedding" and is_plain(given["weight"]):
        return embedding(node, given["weight"], given["indices"])
    if op == "index" and len(given["indices"]) == 1 and len(given["self"].shape) == 2 and is_plain(given["self"]):
        return embedding(node, given["self"], given["indices"][0])
    return None


def embedding(node: Node, weight: Value, data: Value) -> Use:
    """Rows of a table."""
    result = node.outputs[0]
    return Use(node=node, kind="embedding", weight=weight, data=data, axis=-1, result=result, out=len(result.shape) - 1)


def linear(node: Node, data: Value, weight: Value, bias: Value | None, flipped: bool) -> Use:
    """A product with a matrix."""
    result, last = node.outputs[0], len(data.shape) - 1
    return Use(
        node=node,
        kind="linear",
        weight=weight,
        data=data,
        axis=last,
        result=result,
        out=last,
        bias=bias,
        flipped=flipped,
    )


def convolution(node: Node, given: dict[str, Any]) -> Use | None:
    """A convolution with a parameter."""
    weight, bias = given["weight"], given.get("bias")
    if not is_plain(weight) or not (bias is None or is_plain(bias)):
        return None
    transposed = given["transposed"]
    return Use(
        node=node,
        kind="convolution",
        weight=weight,
        data=given["input"],
        axis=1,
        result=node.outputs[0],
        out=1,
        bias=bias,
        flipped=transposed,
        groups=given["groups"],
        pads=transposed or any(given["padding"]),
    )


def is_plain(value: Value | None) -> bool:
    """Whether a value is a parameter whose numbers are here, as they are used."""
    tensor = None if value is None else value.tensor
    if not isinstance(tensor, nn.Parameter) or not tensor.is_floating_point() or tensor.is_meta:
        return False
    return type(tensor.detach()) is torch.Tensor and tensor.layout is torch.strided


def parameter_of(value: Value) -> tuple[Value, int] | None:
    """The parameter that a matrix is a view of, and which of its axes is the first of the matrix."""
    axis = 0
    while value.tensor is None:
        node = value.producer
        if node is None or node.op not in MOVES or len(node.inputs) != 1:
            return None
        before = node.inputs[0]
        places = [k for k in range(len(before.shape)) if axis_after(node, before, value, k) == axis]
        if len(places) != 1:
            return None
        axis, value = places[0], before
    return (value, axis) if is_plain(value) else None


def readers_through(value: Value) -> list[Node]:
    """What reads a parameter, through views of it."""
    found: list[Node] = []
    for node in dict.fromkeys(value.readers):
        if node.op in MOVES:
            found += [reader for output in node.outputs if output is not value for reader in readers_through(output)]
        else:
            found.append(node)
    return found


def told(node: Node) -> str:
    """An operation as a message names it."""
    if node.module is not None:
        name = next((call.name for call in node.calls[-1:]), "")
        return f"a {type(node.module).__name__} in {name or 'the model'}"
    inside = node.calls[-1].name if node.calls else ""
    return f"{node.op.removeprefix('aten.')} in {inside or 'the model'}"


def owner_of(model: nn.Module, use: Use) -> tuple[nn.Module, str, str]:
    """The module that holds the parameter of a product, the parameter's name in it, and the module's name.

    Of several that hold it, the one whose call the product is in.
    """
    inside = {id(call.module) for call in use.node.calls}
    places = [name.rpartition(".") for name in use.weight.names]
    path, _, name = next((p for p in places if id(model.get_submodule(p[0])) in inside and p[0]), places[0])
    return model.get_submodule(path), name, path


def places_of(model: nn.Module, uses: Sequence[Use]) -> str:
    """The modules of products as a note names them, by the last part of their names."""
    found = [owner_of(model, use) for use in uses]
    return ", ".join(dict.fromkeys(path.rpartition(".")[2] or name for _, name, path in found))


def refuse_shared(model: nn.Module, graph: Graph, value: Value, nodes: Sequence[Node]) -> None:
    """Refuse to change a parameter that something else uses.

    Raises:
        RefusedError: an operation besides these reads it, a module that did not run holds it too, or another has its
            memory.
    """
    name = value.names[0]
    allowed = {id(node) for node in nodes}
    other = next((node for node in readers_through(value) if id(node) not in allowed), None)
    if other is not None:
        raise RefusedError(f"{name} is also read by {told(other)}")
    called = {id(call.module) for call in graph.calls}
    idle = [n for n in value.names if id(model.get_submodule(n.rpartition(".")[0])) not in called]
    if len(value.names) > 1 and idle:
        raise RefusedError(f"{name} is also {idle[0]}, which did not run on the example inputs")
    twin = overlapping(graph, value)
    if twin is not None:
        raise RefusedError(f"{name} has the memory of {twin.names[0]}")


def overlapping(graph: Graph, value: Value) -> Value | None:
    """Another parameter or buffer in the same memory."""
    start, end = span(value)
    for other in graph.parameters.values():
        if other is not value and other.tensor is not None and not other.tensor.is_meta:
            first, last = span(other)
            if start < last and first < end:
                return other
    return None


def span(value: Value) -> tuple[int, int]:
    """The addresses between which a dense tensor lies."""
    tensor = value.tensor
    if tensor is None or type(tensor.detach()) is not torch.Tensor or tensor.layout is not torch.strided:
        return 0, 0
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()


def takes_bias(module: nn.Module, use: Use) -> bool:
    """Whether a module whose bias is None adds one that it is given, along the axis of its outputs."""
    if "bias" not in module._parameters or module._parameters["bias"] is not None:
        return False
    outputs = use.result.shape[use.out]
    shape = (2, use.data.shape[-1]) if use.kind == "linear" else (1, *use.data.shape[1:])
    try:
        with isolated():
            copy = bare_copy(module).double()
            x, bias = random_values(shape, 1), random_values((outputs,), 2)
            before = copy(x)
            copy._parameters["bias"] = nn.Parameter(bias)
            added = copy(x) - before
    except (CannotCopyError, RuntimeError, TypeError, ValueError):
        return False
    return torch.allclose(added, bias.view(-1, *[1] * (before.ndim - 1 - use.out)).expand_as(added), atol=1e-9)
