"""Models inside wrappers that compile, replicate or shard them: what is inside, and whole copies of it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from evenkeel._errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["copied", "inside", "unwrapped"]

COMPILED = "_orig_mod"
NOTES = "__composable_api"  # under which fully_shard keeps its own state in a module
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of torch.compile and DistributedDataParallel."""
    while True:
        if COMPILED in model._modules:
            inner = model._modules[COMPILED]
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        else:
            return model
        assert inner is not None
        model = inner


def inside(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """The names of modules and parameters in what is inside of wrappers, by their names in the model."""
    inner = unwrapped(model)
    prefix = next(name for name, module in model.named_modules() if module is inner)
    start = f"{prefix}." if prefix else ""
    return {name: name.removeprefix(start) if name != prefix else "" for name in names}


def copied(model: nn.Module) -> nn.Module:
    """A copy of what is inside of a model's wrappers, in its own mode; of sharded parameters, whole ones.

    To gather these every process of the group has to make the copy.

    Raises:
        ConversionError: it cannot be copied.
    """
    inner = unwrapped(model)
    memo: dict[int, Any] = {}
    try:
        for module in inner.modules():
            if is_sharded(module):
                memo[id(module)] = blank(module)
        for parameter in inner.parameters():
            if hasattr(parameter, "full_tensor"):
                whole = parameter.full_tensor().detach().clone()
                memo[id(parameter)] = nn.Parameter(whole, parameter.requires_grad)
        for module in inner.modules():
            if is_sharded(module):
                vars(memo[id(module)]).update(copy.deepcopy(without_sharding(module), memo))
        return copy.deepcopy(inner, memo)
    except Exception as error:
        raise ConversionError(
            f"the model cannot be copied to verify it: {type(error).__name__}: {error}; leave verify out, or verify "
            "the model before it is wrapped"
        ) from error


def is_sharded(module: nn.Module) -> bool:
    """Whether `torch.distributed.fsdp.fully_shard` gave a module its class."""
    return any(kind.__module__.startswith("torch.distributed.fsdp") for kind in type(module).__mro__)


def blank(module: nn.Module) -> nn.Module:
    """An empty module of the class that a sharded one had."""
    kinds = [k for k in type(module).__bases__ if not k.__module__.startswith("torch.distributed.fsdp")]
    clone: nn.Module = object.__new__(kinds[0])
    return clone


def without_sharding(module: nn.Module) -> dict[str, Any]:
    """The state of a sharded module without the hooks that gather and scatter, and what they know."""
    state = {name: value for name, value in vars(module).items() if not name.startswith(NOTES)}
    for name in HOOKS:
        kept = {key: hook for key, hook in state[name].items() if not of_torch(hook)}
        state[name] = type(state[name])(kept)
    for name in ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
        calls = state["_forward_pre_hooks" if "pre" in name else "_forward_hooks"]
        state[name] = type(state[name])({key: flag for key, flag in state[name].items() if key in calls})
    for name in ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks"):
        state[name] = type(state[name])()
    return state


def of_torch(hook: Any) -> bool:
    """Whether a hook is one of torch.distributed's."""
    owner = getattr(hook, "__self__", None)
    return (type(owner) if owner is not None else hook).__module__.startswith("torch.distributed")
