"""The norms of a whole model: every module that is one or looks like one, recognised once per kind."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from evenkeel.recognition._copies import HOOKS
from evenkeel.recognition._recognition import Recognition
from evenkeel.recognition._recognize import recognize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

__all__ = ["Found", "survey"]

MOST_TENSORS = 8  # of a module that may be a norm
# Probing a matrix of 2048 by 2048 as if it were the weight of a norm over two axes takes a minute.
MOST_IN_EXAMPLE = 2**20  # of an input that a norm is probed on
MOST_IN_VECTOR, MOST_IN_MATRIX = 2**22, 2**14
SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.Size)


class Found(NamedTuple):
    """A module of a model that is a norm or looks like one: its qualified names, and what it computes."""

    module: nn.Module
    names: list[str]
    recognition: Recognition


def survey(
    model: nn.Module,
    seen: Mapping[int, Tensor] | None = None,
    where: Callable[[nn.Module, str], bool] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Iterator[Found]:
    """Yield the norms of a model, in the order of its modules.

    Args:
        model: the model.
        seen: the inputs that modules get, by the modules' ids, as from `seen_inputs`.
        where: (module, name) -> whether to look at it.
        progress: called with what comes next.
    """
    known: dict[Any, Recognition] = {}
    for module, names in candidates(model):
        if where is None or where(module, names[0]):
            progress(f"recognising {names[0] or 'the model'}")
            found = recognized(module, None if seen is None else seen.get(id(module)), known)
            # what is around a norm and does nothing else is none of its own
            if found.spec is not None and any(recognized(c, None, known).spec is not None for c in module.children()):
                continue
            if found.spec is not None or (not is_own(module) and looks_like_norm(module, found)):
                yield Found(module, names, found)


def recognized(module: nn.Module, seen: Tensor | None, known: dict[Any, Recognition]) -> Recognition:
    """Recognise a module, or remember what one like it is; a module of evenkeel says itself what it is."""
    if is_own(module):
        return Recognition(spec=getattr(module, "spec", None), reason="it is evenkeel's already", agreement={})
    key = fingerprint(module)
    found = known.get(key) if key is not None else None
    if found is None:
        found = recognize(module)
        if key is not None:
            known[key] = found
    if seen is not None and seen.numel() <= MOST_IN_EXAMPLE and seen.ndim not in found.ranks:
        shown = recognize(module, example=seen)
        if shown.spec is not None and found.spec in (None, shown.spec):
            found = shown
    return found


def is_own(module: nn.Module) -> bool:
    """Whether a module is evenkeel's."""
    return type(module).__module__.startswith("evenkeel.")


def candidates(model: nn.Module) -> Iterator[tuple[nn.Module, list[str]]]:
    """Yield every module that may be a norm, with its names: one that has few tensors, all of them its own."""
    found: OrderedDict[int, tuple[nn.Module, list[str]]] = OrderedDict()
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(id(module), (module, []))[1].append(name)
    for module, names in found.values():
        parts = (child for child in module.modules() if not isinstance(child, nn.utils.parametrize.ParametrizationList))
        inner = [t for child in parts if child is not module for t in own_tensors(child)]
        own = own_tensors(module)
        parametrized = nn.utils.parametrize.is_parametrized(module)
        small = len(own) <= MOST_TENSORS and all(t.numel() <= most_numbers(module, t) for t in own)
        inside = "parametrizations" in ".".join(names).split(".")
        if small and not inside and (not inner or parametrized):
            yield module, names


def most_numbers(module: nn.Module, tensor: Tensor) -> int:
    """How many numbers a tensor of a norm has at most: few in a matrix, unless the module has an eps or a shape."""
    is_vector = sum(size > 1 for size in tensor.shape) < 2
    declares = any("eps" in name or name == "normalized_shape" for name in vars(module))
    return MOST_IN_VECTOR if is_vector or declares else MOST_IN_MATRIX


def own_tensors(module: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a module without those of its children."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def looks_like_norm(module: nn.Module, found: Recognition) -> bool:
    """Whether a reader of the table expects the module in it: by its name, or an eps beside statistics."""
    has_eps = any("eps" in name for name in vars(module)) and not found.reason.endswith("it has no statistics")
    return "norm" in type(module).__name__.lower() or has_eps


def fingerprint(module: nn.Module) -> Any:
    """What decides the function of a module besides the values of its tensors; None where that cannot be told."""
    parts: list[Any] = [type(module)]
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers"):
            parts += [(key, None if t is None else (tuple(t.shape), t.dtype)) for key, t in value.items()]
        elif name == "_modules":
            inner = [(key, None if child is None else fingerprint(child)) for key, child in value.items()]
            if any(child is None for _, child in inner):
                return None
            parts += inner
        elif name in HOOKS or name in ("training", "_compiled_call_impl"):
            continue
        elif isinstance(value, SIMPLE) or (isinstance(value, tuple) and all(isinstance(v, SIMPLE) for v in value)):
            parts.append((name, type(value), value))
        elif not isinstance(value, set) or value:  # torch's own _non_persistent_buffers_set is empty
            return None
    return tuple(parts)
