"""The surroundings that must change nothing: modes, subclasses, transforms."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A subclass."""


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


MODES = {
    "none": contextlib.nullcontext,
    "device": lambda: torch.device("cpu"),
    "functions": Functions,
    "dispatch": Dispatch,
    "subclass": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": autocast,
}


def under(mode, function, *tensors):
    """The results of a function under a mode, as plain tensors."""
    if mode == "subclass":
        tensors = [None if t is None else t.as_subclass(Own) for t in tensors]
    with MODES[mode]():
        results = function(*tensors)
    return tuple(plain(t) for t in (results if isinstance(results, tuple) else (results,)))


def plain(tensor):
    return tensor.as_subclass(torch.Tensor) if isinstance(tensor, Own) else tensor
