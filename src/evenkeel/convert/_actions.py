"""What a plan can do: a table of actions, each of which finds its sites in a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from evenkeel._errors import ConversionError
from evenkeel.convert._fold_sites import find_affines, find_batch_norms, find_scalers
from evenkeel.convert._fuse import find_activations, find_residual_sums
from evenkeel.convert._graph import Graph, trace
from evenkeel.convert._rms_sites import find_rms_norms
from evenkeel.convert._site import Mode, Site, Swap, refusal
from evenkeel.nn import FeatureAffine
from evenkeel.recognition import Call, Found, seen_inputs, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

__all__ = ["ACTIONS", "Action", "Search"]


@dataclass
class Search:
    """What the actions of a plan look at.

    Attributes:
        model: the model.
        call: example inputs; None where none were given.
        mode: ``exact`` or ``accurate``.
        where: (module, name) -> whether to look at it.
        taken: the ids of the modules that an action before changes so that there is nothing left to do.
    """

    model: nn.Module
    call: Call | None
    mode: Mode
    where: Callable[[nn.Module, str], bool] | None = None
    taken: set[int] = field(default_factory=set)

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
        return list(survey(self.model, self.seen, self.where))

    @cached_property
    def every_norm(self) -> list[Found]:
        """The norms of the model, also those that nobody looks at."""
        return self.norms if self.where is None else list(survey(self.model, self.seen))

    @cached_property
    def graph(self) -> Graph:
        """The data flow, in which the call of a norm is one operation."""
        assert self.call is not None
        units = [found.module for found in self.every_norm if found.recognition.spec is not None]
        return trace(
            self.model, self.call, [*units, *(m for m in self.model.modules() if isinstance(m, FeatureAffine))]
        )


class Action(NamedTuple):
    """One action.

    Attributes:
        find: the sites where it was sought, also those that it leaves; it adds to ``taken``.
        done: the word for a site where it was done.
        what: the word for its sites.
        needs_inputs: whether it follows the data flow, for which the model has to run.
    """

    find: Callable[[Search], Iterator[Site]]
    done: str
    what: str = "norms"
    needs_inputs: bool = True


def find_swaps(search: Search) -> Iterator[Site]:
    """Yield every norm, with the kernel of ours that serves it."""
    default = next((p.dtype for p in search.model.parameters() if p.is_floating_point()), None)
    for module, names, recognition in search.norms:
        if id(module) in search.taken:
            continue
        seen, spec = search.seen.get(id(module)), recognition.spec
        reason = refusal(module, recognition, search.mode, default if seen is None else seen.dtype)
        if not reason and seen is not None and seen.ndim not in recognition.ranks:
            reason = f"its inputs have {seen.ndim} axes, on which it was not seen to be this norm"
        site = Site(
            name=names[0],
            others=tuple(names[1:]),
            kind=type(module).__name__,
            recognition=recognition,
            reason=reason,
            module=module,
        )
        if not reason and spec is not None:
            spec = replace(spec, cast="late") if search.mode == "accurate" else spec
            site.action, site.change = "swap", Swap(module=module, spec=spec, recognition=recognition)
        yield site


# in the order in which they are sought and done
ACTIONS: dict[str, Action] = {
    "fold_scaler": Action(find_scalers, "folded", what="data scalers"),
    "fold_batch_norm": Action(find_batch_norms, "folded", what="batch norms"),
    "to_rms_norm": Action(find_rms_norms, "turned into RMSNorms", what="LayerNorms"),
    "fold_affine": Action(find_affines, "folded", what="affines"),
    "fuse_activation": Action(find_activations, "fused", what="norms before an activation"),
    "fuse_residual_add": Action(find_residual_sums, "fused", what="norms of a residual sum"),
    "swap": Action(find_swaps, "swapped", needs_inputs=False),
}
