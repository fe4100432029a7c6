"""Calls and their nodes of torch's graph in C++, past Python and the dispatcher, which take longer than small work."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING

import torch

from evenkeel.kernels._operators import FOLDER
from evenkeel.kernels._small import ADDRESSES

if TYPE_CHECKING:
    from types import ModuleType


def load() -> ModuleType | None:
    """Import the extension; None if it was not built, or for another torch: its interface changes with each."""
    build = FOLDER / "_build.json"
    if not (ADDRESSES and build.exists()):
        return None
    built_with: str = json.loads(build.read_text(encoding="utf-8"))["torch"]
    if built_with.partition("+")[0] != torch.__version__.partition("+")[0]:
        return None
    try:
        nodes = import_module("evenkeel.kernels._autograd")
    except ImportError:
        return None
    return nodes if nodes.prepare(*ADDRESSES) else None


nodes = load()
# What each of the four tensors of a sum may have, where the second-level cache is to hold all of them.
NEAR_BYTES: int = 0 if nodes is None else torch.ops.evenkeel.memory_choices()[1] // 4
