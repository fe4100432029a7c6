"""Copies of a module to experiment on: nothing of the original can change through them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CannotCopyError", "bare_copy", "floating_tensors", "refill"]

HOOKS = tuple(name for name, value in vars(nn.Module()).items() if "hook" in name and isinstance(value, dict))
MOST_TENSORS = 8  # a norm has a weight, a bias and two statistics with their count


class CannotCopyError(Exception):
    """A module cannot be copied apart; the message says why."""


def bare_copy(module: nn.Module) -> nn.Module:
    """Copy a module without its hooks, gradients and compiled call, onto the CPU.

    Raises:
        CannotCopyError: it is too large for a norm, or holds something that cannot be copied.
    """
    tensors = [*module.parameters(), *module.buffers()]
    if len(tensors) > MOST_TENSORS:
        raise CannotCopyError(f"it holds {len(tensors)} parameters and buffers, more than a norm has")
    if any("forward" in vars(child) for child in module.modules()):
        raise CannotCopyError("its forward was replaced on this object, and a copy would call the original")
    return _copy(module, {})


def _copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    if id(module) in memo:
        found: nn.Module = memo[id(module)]
        return found
    # a parametrized module has a class of its own, whose properties go with its parametrizations
    clone: nn.Module = object.__new__(parametrize.type_before_parametrizations(module))
    memo[id(module)] = clone
    state = _without_parametrizations(module)
    for name in HOOKS:
        if name in state:
            state[name] = type(state[name])()
    state["_compiled_call_impl"] = None
    state["_parameters"] = {name: _parameter(p) for name, p in state["_parameters"].items()}
    state["_buffers"] = {name: None if b is None else _plain(b) for name, b in state["_buffers"].items()}
    state["_modules"] = {
        name: None if child is None else _copy(child, memo) for name, child in state["_modules"].items()
    }
    done = {"_parameters", "_buffers", "_modules", *HOOKS}
    for name, value in state.items():
        if name not in done:
            state[name] = _attribute(name, value, memo)
    vars(clone).update(state)
    return clone


def _without_parametrizations(module: nn.Module) -> dict[str, Any]:
    """The state of a module in which the tensors that it computes are parameters, of any values."""
    state = dict(vars(module))
    if not parametrize.is_parametrized(module):
        return state
    parametrized: Any = module.parametrizations
    parameters = dict(state["_parameters"])
    for name, chain in parametrized.items():
        if not hasattr(chain, "original"):
            raise CannotCopyError(f"its {name} is computed from several tensors")
        parameters[name] = nn.Parameter(chain.original.detach(), requires_grad=True)
    modules = {name: child for name, child in state["_modules"].items() if name != "parametrizations"}
    return state | {"_parameters": parameters, "_modules": modules}


def _attribute(name: str, value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return _plain(value)
    if isinstance(value, nn.Module):  # kept out of _modules on purpose
        return _copy(value, memo)
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise CannotCopyError(f"its attribute {name!r} cannot be copied: {type(error).__name__}") from error


def _parameter(parameter: Any) -> Any:
    return None if parameter is None else nn.Parameter(_plain(parameter), parameter.requires_grad)


def _plain(tensor: Tensor) -> Tensor:
    """A dense copy on the CPU; of a tensor without values, one of ones."""
    if not (tensor.is_floating_point() or tensor.dtype in (torch.int64, torch.int32, torch.bool)):
        raise CannotCopyError(f"it holds a tensor of {tensor.dtype}")
    if nn.parameter.is_lazy(tensor):
        raise CannotCopyError("a parameter has no shape before the first call")
    if tensor.is_meta:
        return torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu")
    if hasattr(tensor, "full_tensor"):  # sharded over processes, each of which asks for the whole
        tensor = tensor.full_tensor()
    if type(tensor.detach()) is not torch.Tensor or tensor.layout is not torch.strided:
        raise CannotCopyError(f"it holds a {type(tensor).__name__}, whose values are not all here")
    return tensor.detach().to("cpu", copy=True)


def floating_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The floating parameters and buffers of a module and its children, by their qualified names."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}


def refill(module: nn.Module, values: dict[str, Tensor]) -> None:
    """Give the tensors of a copy values."""
    with torch.no_grad():
        for name, tensor in floating_tensors(module).items():
            if name in values:
                tensor.copy_(values[name])
