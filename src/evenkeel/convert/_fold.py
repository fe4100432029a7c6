"""Folding: what multiplies and shifts each feature goes into the products before or after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from evenkeel.convert._axes import axis_after, axis_before
from evenkeel.convert._modules import Passing, class_for
from evenkeel.convert._site import Change
from evenkeel.convert._uses import (
    RefusedError,
    Use,
    bias_in,
    owner_of,
    readers_through,
    refuse_shared,
    takes_bias,
    told,
    use_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel.convert._graph import Graph, Node, Value
    from evenkeel.convert._weights import Weights

__all__ = ["Affine", "Fold", "consumers", "producer", "refuse_uses"]

MIXING = ("aten.cat",)  # with tensors that are not shifted


@dataclass
class Affine:
    """``x · scale + shift`` for each feature, in float64."""

    scale: Tensor
    shift: Tensor

    @property
    def shifts(self) -> bool:
        """Whether anything is added."""
        return bool((self.shift != 0).any())

    @property
    def scales(self) -> bool:
        """Whether anything is multiplied."""
        return bool((self.scale != 1).any())

    @property
    def is_neutral(self) -> bool:
        """Whether it changes nothing."""
        return not self.shifts and not self.scales


@dataclass(kw_only=True)
class Fold(Change):
    """An affine goes into products, and what it came from becomes neutral.

    Attributes:
        model: the model.
        module: where the affine came from.
        affine: what is folded.
        uses: the products.
        before: whether they come before the affine, or read its result.
        neutral: the tensors of the module, and what they become.
        passing: whether nothing is left of the module, so that it returns its input.
    """

    model: nn.Module
    module: nn.Module
    affine: Affine
    uses: Sequence[Use]
    before: bool = False
    neutral: Sequence[tuple[Tensor, float]] = ()
    passing: bool = False
    _kind: type[nn.Module] | None = field(default=None)

    def apply(self, weights: Weights) -> None:
        """Change the weights."""
        done: set[int] = set()
        shifted: set[int] = set()
        for use in self.uses:
            self.fold(use, weights, done, shifted)
        for tensor, value in self.neutral:
            weights.wide(tensor).fill_(value)
        if self.passing:
            self._kind = type(self.module)
            self.module.__class__ = class_for(Passing, self._kind)

    def fold(self, use: Use, weights: Weights, done: set[int], shifted: set[int]) -> None:
        """Change one product; one that is called several times changes once."""
        first = id(use.tensor) not in done
        done.add(id(use.tensor))
        scale, shift = self.affine.scale, self.affine.shift
        if self.before:
            if first:
                use.scale_outputs(weights, scale)
            bias = bias_of(self.model, use, weights, self.affine.shifts)
            if bias is not None and id(bias) not in shifted:
                wide = weights.wide(bias)
                wide.mul_(scale.to(wide)).add_(shift.to(wide))
                shifted.add(id(bias))
            return
        if self.affine.shifts:
            bias = bias_of(self.model, use, weights, needed=True)
            if bias is not None and id(bias) not in shifted:
                weights.wide(bias).add_(use.of_shift(weights, shift))
                shifted.add(id(bias))
        if first:
            use.scale_inputs(weights, scale)

    def revert(self) -> None:
        """Give the module its class back."""
        if self._kind is not None:
            self.module.__class__ = self._kind
            self._kind = None


def bias_of(model: nn.Module, use: Use, weights: Weights, needed: bool) -> Tensor | None:
    """The bias of a product, also one that this plan has given to it; a new one of zeros where one is needed."""
    if use.bias is not None:
        return use.bias.tensor
    owner, _, _ = owner_of(model, use)
    bias = owner._parameters.get("bias")
    if bias is not None or not needed:
        return bias
    return weights.put(owner, "bias", torch.zeros(use.result.shape[use.out]), like=use.tensor)


def consumers(value: Value, axis: int) -> list[Use]:
    """Return the products that read a value, and nothing else does.

    Args:
        value: the result of a norm.
        axis: its features.

    Raises:
        RefusedError: something else reads it, or the model returns it.
    """
    if value.is_result:
        raise RefusedError("the model returns its result")
    found: list[Use] = []
    for node in dict.fromkeys(value.readers):
        outputs = [output for output in node.outputs if output is not value]
        places = (
            [] if node.op in MIXING or node.is_lost else [axis_after(node, value, output, axis) for output in outputs]
        )
        if places and None not in places:
            for output, place in zip(outputs, places, strict=True):
                assert place is not None
                found += consumers(output, place)
            continue
        if node.outputs and not outputs:
            continue  # the same tensor again
        use = use_of(node)
        if use is None or use.data is not value or use.axis != axis or use.kind == "embedding":
            raise RefusedError(f"its result is read by {told(node)}, which is no product with a parameter")
        found.append(use)
    return found


def producer(value: Value, axis: int) -> Use:
    """Return the product that makes a value, if nothing else reads what it makes.

    Raises:
        RefusedError: it is made by something else, or read by something else.
    """
    while True:
        if value.is_result:
            raise RefusedError("the model also returns its input")
        if len({id(node) for node in value.readers}) > 1:
            others = ", ".join(told(node) for node in dict.fromkeys(value.readers))
            raise RefusedError(f"its input has several readers: {others}")
        node = value.producer
        if node is None:
            raise RefusedError("its input is made by no operation of the model")
        use = use_of(node)
        if use is not None and use.kind != "embedding":
            if use.result is not value or use.out != axis:
                raise RefusedError(f"its input is {told(node)}, along another axis")
            return use
        before = next((v for v in node.inputs if v.tensor is None), node.inputs[0]) if node.inputs else None
        if before is not None and bias_in(node, before, axis) is not None:
            value = before
            continue
        place = None if before is None or len(node.inputs) > 1 else axis_before(node, before, value, axis)
        if before is None or place is None:
            raise RefusedError(f"its input is made by {told(node)}, which is no product with a parameter")
        value, axis = before, place


def refuse_uses(
    model: nn.Module,
    graph: Graph,
    uses: Sequence[Use],
    affine: Affine,
    *,
    before: bool = False,
) -> None:
    """Refuse products that something else shares, that have no place for a bias, or that pad with zeros.

    Args:
        model: the model.
        graph: its data flow.
        uses: the products.
        affine: what is folded.
        before: whether they come before it.

    Raises:
        RefusedError: one of them, with the reason.
    """
    if not uses:
        raise RefusedError("nothing reads its result")
    nodes = [use.node for use in uses]
    for use in uses:
        # a new bias is the head's, whoever else reads the weight as a table
        tables = [] if affine.scales else [node for node in readers_through(use.weight) if is_table(node)]
        refuse_shared(model, graph, use.weight, [*nodes, *tables])
        owner, name, path = owner_of(model, use)
        if use.groups * affine_parts(use, before) != affine.scale.numel():
            raise RefusedError(f"{use.weight.names[0]} has other features")
        if not before and affine.shifts and use.pads:
            raise RefusedError(f"{path} pads with zeros, which stand for another number before it")
        if use.bias is not None:
            refuse_shared(model, graph, use.bias, [*nodes, *(use.added for use in uses if use.added is not None)])
            if any(reader.inputs.count(use.bias) > 1 for reader in readers_through(use.bias)):
                raise RefusedError(f"{use.bias.names[0]} is read twice by one operation")
        elif affine.shifts and not takes_bias(owner, use):
            raise RefusedError(f"{path or name} has no bias, and no place for one")
    if affine.shifts:
        refuse_mixed_biases(uses)


def is_table(node: Node) -> bool:
    """Whether an operation reads rows of a parameter."""
    use = use_of(node)
    return use is not None and use.kind == "embedding"


def affine_parts(use: Use, before: bool) -> int:
    """How many features a group has on the side of the affine."""
    shape = use.tensor.shape
    if use.kind == "linear":
        return int(shape[use.flipped ^ (not before)])
    if use.flipped:
        return int(shape[1]) if before else int(shape[0]) // use.groups
    return int(shape[0]) // use.groups if before else int(shape[1])


def refuse_mixed_biases(uses: Sequence[Use]) -> None:
    """Refuse one bias of several weights: it would have to be two.

    Raises:
        RefusedError: there is one.
    """
    owners: dict[int, Use] = {}
    for use in uses:
        if use.bias is not None and owners.setdefault(id(use.bias), use).weight is not use.weight:
            raise RefusedError(f"{use.bias.names[0]} is the bias of several weights")
