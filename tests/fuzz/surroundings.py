"""The surroundings that must change nothing: those of `tests/settings.py`, and torch's switches."""

import contextlib

import torch
from settings import SETTINGS, Own


def same(tensor):
    return tensor


SURROUNDINGS = {
    "none": (contextlib.nullcontext, same),
    **SETTINGS,
    "no_grad": (torch.no_grad, same),
    "inference": (torch.inference_mode, same),
    "autocast": (lambda: torch.autocast("cpu", dtype=torch.bfloat16), same),
}


def under(name, function, *tensors):
    """The results of a function in a surrounding, as plain tensors."""
    surrounding, convert = SURROUNDINGS[name]
    tensors = [None if t is None else convert(t) for t in tensors]
    with surrounding():
        results = function(*tensors)
    return tuple(plain(t) for t in (results if isinstance(results, tuple) else (results,)))


def plain(tensor):
    return tensor.as_subclass(torch.Tensor) if isinstance(tensor, Own) else tensor
