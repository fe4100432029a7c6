"""What has to be done to the writers of a stream so that its mean over the features is zero, or why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from evenkeel.convert._axes import axis_before
from evenkeel.convert._fold import Affine, Fold, producer
from evenkeel.convert._fold_sites import neutral_of, own, parts_of
from evenkeel.convert._recentre import Gate, Recentre, Table, Untie
from evenkeel.convert._streams import SCALES, Stream, gate_of, is_dropped
from evenkeel.convert._uses import RefusedError, Use, is_plain, owner_of, readers_through, refuse_shared, told, use_of
from evenkeel.recognition import Tensors, apply_norm

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import NormSpec
    from evenkeel.convert._graph import Node, Value
    from evenkeel.convert._search import Search
    from evenkeel.convert._site import Change
    from evenkeel.recognition import Found, Layout

__all__ = ["Writers"]


def normalized(spec: NormSpec, layout: Layout, tensors: Tensors, x: Tensor) -> Tensor:
    """What a norm makes of a table, in float64."""
    return apply_norm(spec, layout, x.cpu(), tensors).to(x.device)


@dataclass(eq=False)
class Writers:
    """The writers of a stream, each with what is done to it.

    Attributes:
        search: what is known of the model.
        stream: the stream.
        first: what is done before the means are subtracted.
        uses: the products that write.
        tensors: the parameters and buffers that are added as they are, and the axis of their features.
        heads: the readers of an embedding's table that get a table of their own, by their operations.
        notes: what is to know of it.
        before: the values that come before a centring within the run.
        recentre: all of it as one change.
    """

    search: Search
    stream: Stream
    first: list[Change] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    tensors: list[tuple[Tensor, int]] = field(default_factory=list)
    heads: dict[int, Untie] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    before: set[Value] = field(default_factory=set)
    recentre: Recentre | None = None

    def gather(self) -> None:
        """Look at every reader and writer.

        Raises:
            RefusedError: the mean counts for a reader, or cannot be taken from a writer.
        """
        for node, _ in self.stream.readers:
            self.refuse_reader(node)
        returned = [value for value in self.stream.axes if value.is_result]
        if returned:
            raise RefusedError("the model returns the stream itself")
        for value in self.stream.writers:
            if value not in self.before and not self.centre(value):
                gate = gate_of(self.search.graph, self.stream, value)
                if gate is None or value.producer is None or is_dropped(value.producer):
                    raise RefusedError(self.problem(value))
                call, before = gate
                self.before |= before - {call.inputs[0]}
                self.first.append(Gate(call.module))
                self.notes.append(f"{call.name} subtracts a mean, since {self.problem(value)}")
        inside = {id(value) for value in self.before}
        self.uses = [use for use in self.uses if id(use.result) not in inside]
        self.refuse_others()
        assert self.search.call is not None
        self.recentre = Recentre(
            first=self.first,
            uses=self.uses,
            tensors=self.tensors,
            model=self.search.model,
            call=self.search.call,
        )

    def refuse_reader(self, node: Node) -> None:
        """Refuse what reads the stream and is no norm that subtracts the mean.

        Raises:
            RefusedError: it is something else.
        """
        found = self.norm(node)
        spec = None if found is None else found.recognition.spec
        if found is None or spec is None or not spec.center or spec.shares != "token" or parts_of(found)[1].axes != 1:
            if is_dropped(node):
                raise RefusedError("dropout in training takes single features out of the stream; call eval() before")
            raise RefusedError(f"the stream is also read by {told(node)}, for which its mean counts")

    def norm(self, node: Node | None) -> Found | None:
        """The norm that an operation is."""
        if node is None or node.module is None:
            return None
        return next((found for found in self.search.every_norm if found.module is node.module), None)

    def problem(self, value: Value) -> str:
        """Why a writer cannot be centred."""
        node = value.producer
        if node is None:
            return (
                f"{value.names[0] if value.names else 'an input or a constant of the model'} is in the stream as it is"
            )
        if is_dropped(node):
            return "dropout in training takes single features out of the stream; call eval() before"
        if self.norm(node) is not None:
            return f"the stream is written by {told(node)}, whose affine cannot be folded (a post-norm, for example)"
        return f"the stream is written by {told(node)}, which no weight centres"

    def centre(self, value: Value) -> bool:
        """Note what centres a writer; whether anything does."""
        axis = self.stream.axes[value]
        if value.tensor is not None:
            dense = value.tensor.is_floating_point() and type(value.tensor.detach()) in (torch.Tensor, nn.Parameter)
            if dense and len(value.names) == 1:
                self.tensors.append((value.tensor, axis))
            return dense and len(value.names) == 1
        node = value.producer
        if node is None:
            return False
        if self.norm(node) is not None:
            return self.into_table(node)
        try:
            use = self.scaled(node, value, axis) if node.op in SCALES else use_of(node)
        except RefusedError:
            return False
        return use is not None and use.groups == 1 and self.add(use)

    def add(self, use: Use) -> bool:
        """Note a product."""
        self.uses.append(use)
        return True

    def scaled(self, node: Node, value: Value, axis: int) -> Use:
        """The product that a vector scales on its way into the stream: the vector goes into the weight.

        Raises:
            RefusedError: it is something else.
        """
        vectors = [v for v in node.inputs if is_plain(v) and v.shape == value.shape[-1:]]
        data = [v for v in node.inputs if v not in vectors]
        if len(vectors) != 1 or len(data) != 1 or not node.op.startswith("aten.mul") or axis != len(value.shape) - 1:
            raise RefusedError("it is scaled by something else")
        (vector,) = vectors
        use = producer(data[0], axis)
        refuse_shared(self.search.model, self.search.graph, vector, [node])
        refuse_shared(self.search.model, self.search.graph, use.weight, [use.node])
        assert vector.tensor is not None
        scale = vector.tensor.detach().double().cpu()
        affine = Affine(scale, torch.zeros_like(scale))
        neutral = [(vector.tensor, 1.0)]
        owner = self.search.model.get_submodule(vector.names[0].rpartition(".")[0])
        self.first.append(
            Fold(model=self.search.model, module=owner, affine=affine, uses=[use], before=True, neutral=neutral)
        )
        return use

    def into_table(self, node: Node) -> bool:
        """Fold a norm that reads the rows of an embedding, and nothing else, into its table."""
        found = self.norm(node)
        value: Value | None = node.inputs[0] if len(node.inputs) == 1 else None
        table = None
        while value is not None and value.producer is not None and len({id(reader) for reader in value.readers}) == 1:
            use, maker = use_of(value.producer), value.producer
            if use is not None and use.kind == "embedding":
                table = use
                break
            last = len(value.shape) - 1
            source = maker.inputs[0] if len(maker.inputs) == 1 else None
            moved = None if source is None else axis_before(maker, source, value, last)
            value = source if source is not None and moved == len(source.shape) - 1 else None
        if table is None or found is None or len(self.search.graph.calls_of(found.module)) != 1:
            return False
        spec, (roles, layout) = found.recognition.spec, parts_of(found)
        assert spec is not None
        if spec.shares != "token" or layout.axes != 1 or layout.channel_axis != -1:
            return False
        names = (roles.weight, roles.bias)
        tensors = Tensors(*(None if name is None else own(found.module, name) for name in names))
        neutral = neutral_of(self.search, found, [], spec.weight_offset)
        norm = partial(normalized, spec, layout, tensors)
        self.first.append(Table(table, found.module, norm, neutral))
        self.notes.append(f"{found.names[0]} is in the table of {owner_of(self.search.model, table)[2]}")
        self.search.taken.add(id(found.module))
        return self.add(table)

    def refuse_others(self) -> None:
        """Refuse weights that something besides the stream's writers uses; heads get tables of their own.

        Raises:
            RefusedError: one is used elsewhere.
        """
        nodes = [use.node for use in self.uses]
        for use in {id(use.weight): use for use in self.uses}.values():
            if use.kind == "embedding":
                self.untie(use, nodes)
            allowed = [*nodes, *(untie.use.node for untie in self.heads.values())]
            refuse_shared(self.search.model, self.search.graph, use.weight, allowed)
            if use.bias is not None:
                added = [other.added for other in self.uses if other.added is not None]
                refuse_shared(self.search.model, self.search.graph, use.bias, [*nodes, *added])

    def untie(self, table: Use, nodes: list[Node]) -> None:
        """Give the heads that read an embedding's table tables of their own."""
        model, weight = self.search.model, table.weight
        for node in readers_through(weight):
            use = use_of(node)
            if any(node is other for other in nodes) or use is None or use.kind != "linear":
                continue
            inside = {id(call.module) for call in node.calls}
            places = [name.rpartition(".") for name in weight.names]
            held = [(path, name) for path, _, name in places if path and id(model.get_submodule(path)) in inside]
            if len(held) == 1:
                path, name = held[0]
                change = Untie(use, model.get_submodule(path), name, f"{path}.{name}")
                self.heads[id(node)] = change
                self.first.insert(0, change)
                self.notes.append(f"{path}.{name} is untied from {weight.names[0]}")
