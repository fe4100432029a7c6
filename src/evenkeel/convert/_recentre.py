"""The writers of a stream without their means: weights whose columns, and biases and tables whose rows, sum to zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenkeel._errors import ConversionError
from evenkeel.convert._fold import Fold
from evenkeel.convert._graph import Value, plain_operators
from evenkeel.convert._modules import Passing, class_for
from evenkeel.convert._site import Change, Swap
from evenkeel.convert._uses import Use
from evenkeel.recognition import Call, seen_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from evenkeel.convert._weights import Weights

__all__ = ["Centring", "Gate", "Recentre", "Table", "ToRms", "Untie"]

# The mean of a stream in ulps of its largest element: of its writers' weights and of its sums, each rounds for itself.
MOST_MEAN = 16.0


class Centring(nn.Module):
    """Mixin before the class that a module had: its first input loses its mean over the features."""

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Centre, and go on as before."""
        if arguments:
            arguments = (centred(arguments[0]), *arguments[1:])
        else:
            name = next(name for name, value in keywords.items() if isinstance(value, torch.Tensor))
            keywords[name] = centred(keywords[name])
        return super().forward(*arguments, **keywords)


def centred(x: Tensor) -> Tensor:
    """Without its mean over the last axis, rounded once."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide - wide.mean(-1, keepdim=True)).to(x.dtype)


@dataclass
class Gate(Change):
    """A module that centres what it is given, where what is written before cannot be centred by weights."""

    module: nn.Module
    _kind: type[nn.Module] | None = None

    def apply(self, weights: Weights) -> None:
        """Give the module another class."""
        self._kind = type(self.module)
        self.module.__class__ = class_for(Centring, self._kind)

    def revert(self) -> None:
        """Give the module its class back."""
        if self._kind is not None:
            self.module.__class__ = self._kind
            self._kind = None


@dataclass
class Untie(Change):
    """A reader of an embedding's table gets a table of its own."""

    use: Use
    owner: nn.Module
    name: str
    path: str
    _shared: Value | None = None

    def apply(self, weights: Weights) -> None:
        """Copy the table."""
        self._shared = self.use.weight
        parameter = weights.put(self.owner, self.name, self.use.tensor, like=self.use.tensor)
        self.use.weight = Value(tuple(parameter.shape), parameter.dtype, tensor=parameter, names=(self.path,))

    def revert(self) -> None:
        """Forget it; the place goes back by itself."""
        if self._shared is not None:
            self.use.weight, self._shared = self._shared, None


@dataclass
class Table(Change):
    """A norm that reads nothing but an embedding's rows goes into the table, and returns its input."""

    table: Use
    module: nn.Module
    norm: Callable[[Tensor], Tensor]
    neutral: Sequence[tuple[Tensor, float]] = ()
    _kind: type[nn.Module] | None = None

    def apply(self, weights: Weights) -> None:
        """Normalize every row."""
        wide = weights.wide(self.table.tensor)
        wide.copy_(self.norm(wide))
        for tensor, value in self.neutral:
            weights.wide(tensor).fill_(value)
        self._kind = type(self.module)
        self.module.__class__ = class_for(Passing, self._kind)

    def revert(self) -> None:
        """Give the norm its class back."""
        if self._kind is not None:
            self.module.__class__ = self._kind
            self._kind = None


@dataclass(kw_only=True)
class Recentre(Change):
    """All that is done to a stream so that its mean is zero.

    Attributes:
        first: what comes before the centring: heads with tables of their own, scales folded, norms in tables, gates.
        uses: the products that write, and their biases.
        tensors: the parameters and buffers that are added as they are, with the axis of their features.
        model: the model.
        call: on which the means are looked at.
    """

    first: Sequence[Change] = ()
    uses: Sequence[Use] = ()
    tensors: Sequence[tuple[Tensor, int]] = ()
    model: nn.Module
    call: Call
    readers: list[nn.Module] = field(default_factory=list)

    def apply(self, weights: Weights) -> None:
        """Subtract the means from the weights."""
        for change in self.first:
            change.apply(weights)
        done: set[int] = set()
        for use in self.uses:
            if id(use.tensor) not in done:
                matrix = use.matrix(weights.wide(use.tensor))
                matrix -= matrix.mean(1, keepdim=True)
            if use.bias is not None and use.bias.tensor is not None and id(use.bias) not in done:
                wide = weights.wide(use.bias.tensor)
                wide -= wide.mean()
            done |= {id(use.tensor), id(use.bias)}
        for tensor, axis in self.tensors:
            wide = weights.wide(tensor)
            wide -= wide.mean(axis, keepdim=True)

    def check(self) -> None:
        """Look at the means of the stream where norms read it.

        Raises:
            ConversionError: one is not zero but for rounding.
        """
        inner = getattr(self.model, "_orig_mod", self.model)
        names = {id(module): name for name, module in inner.named_modules()}
        with plain_operators():
            seen = seen_inputs(inner, self.call)
        worst: dict[str, float] = {}
        for module in self.readers:
            x = seen[id(module)]
            size = torch.finfo(x.dtype).eps * float(x.abs().max())
            worst[names[id(module)]] = float(x.double().mean(-1).abs().max()) / size if size else 0.0
        for name, mean in worst.items():
            if not mean <= MOST_MEAN:
                raise ConversionError(
                    f"{name}: the mean of its input is {mean:.3g} ulps of its largest element, not zero; nothing was "
                    "changed; leave to_rms_norm out"
                )

    def revert(self) -> None:
        """Undo what is no weight."""
        for change in reversed(self.first):
            change.revert()


@dataclass(kw_only=True)
class ToRms(Change):
    """A LayerNorm of a stream whose mean is zero turns into an RMSNorm; its bias goes into its readers.

    Attributes:
        swap: the norm's new class.
        idle: its bias, which is zero from then on, and not read.
        bias: the bias on its way into the readers.
        recentre: what is done to the stream.
    """

    swap: Swap
    idle: Tensor | None = None
    bias: Fold | None = None
    recentre: Recentre | None = None

    def apply(self, weights: Weights) -> None:
        """Re-centre the stream, which the first norm of a stream does for all, then turn the norm."""
        if self.recentre is not None:
            self.recentre.apply(weights)
        if self.bias is not None:
            self.bias.apply(weights)
        if self.idle is not None:
            weights.wide(self.idle).zero_()
        self.swap.apply(weights)

    def check(self) -> None:
        """Look at the stream's mean."""
        if self.recentre is not None:
            self.recentre.check()

    def revert(self) -> None:
        """Make everything what it was."""
        self.swap.revert()
        if self.bias is not None:
            self.bias.revert()
        if self.recentre is not None:
            self.recentre.revert()
