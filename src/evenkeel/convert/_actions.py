"""What a plan can do: a table of actions, each of which finds its sites in a model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from evenkeel.convert._fold_sites import find_affines, find_batch_norms, find_scalers
from evenkeel.convert._fuse import find_activations, find_residual_sums
from evenkeel.convert._rms_sites import find_rms_norms
from evenkeel.convert._site import Site, Swap, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from evenkeel.convert._search import Search

__all__ = ["ACTIONS", "Action"]


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
