"""What the actions of a plan look at: the model, its norms and its data flow, each found once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from evenkeel._errors import ConversionError
from evenkeel.convert._graph import Graph, trace
from evenkeel.convert._site import Mode
from evenkeel.nn import FeatureAffine
from evenkeel.recognition import Call, Found, seen_inputs, survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = ["Search"]


@dataclass
class Search:
    """What the actions of a plan look at.

    Attributes:
        model: the model.
        call: example inputs; None where none were given.
        mode: ``exact`` or ``accurate``.
        where: (module, name) -> whether to look at it.
        taken: the ids of the modules that an action before changes so that there is nothing left to do.
        progress: called with what comes next.
    """

    model: nn.Module
    call: Call | None
    mode: Mode
    where: Callable[[nn.Module, str], bool] | None = None
    taken: set[int] = field(default_factory=set)
    progress: Callable[[str], None] = lambda step: None

    @cached_property
    def seen(self) -> dict[int, Tensor]:
        """The input of each module, by its id."""
        try:
            return {} if self.call is None else seen_inputs(self.model, self.call)
        except Exception as error:  # the model is the user's own code
            raise ConversionError(f"the model does not run on the example inputs: {error}") from error

    @cached_property
    def norms(self) -> list[Found]:
        """The norms of the model."""
        return list(survey(self.model, self.seen, self.where, self.progress))

    @cached_property
    def every_norm(self) -> list[Found]:
        """The norms of the model, also those that nobody looks at."""
        return self.norms if self.where is None else list(survey(self.model, self.seen, progress=self.progress))

    @cached_property
    def graph(self) -> Graph:
        """The data flow, in which the call of a norm is one operation."""
        assert self.call is not None
        self.progress("following the data flow")
        units = [found.module for found in self.every_norm if found.recognition.spec is not None]
        return trace(
            self.model, self.call, [*units, *(m for m in self.model.modules() if isinstance(m, FeatureAffine))]
        )
