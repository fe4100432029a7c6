"""Kernels on small dense tensors, called past torch's dispatcher, which takes longer than the work there.

Each function gives None where the call is not for it; the operators then take it, or say what is wrong.
"""

from __future__ import annotations

import ctypes
import sysconfig
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from evenkeel.kernels._operators import LIBRARY, MISSING, REFUSED

if TYPE_CHECKING:
    from types import ModuleType


def direct_addresses() -> tuple[int, ...]:
    """Where the library has its tables of kernels and of memory; nothing of one that is missing or must not run."""
    if MISSING or REFUSED:
        return ()
    library = ctypes.CDLL(str(LIBRARY))
    found = [getattr(library, f"evenkeel_direct_{name}", None) for name in ("rows", "channels", "memory")]
    return tuple(ctypes.cast(table, ctypes.c_void_p).value or 0 for table in found if table is not None)


def load() -> ModuleType | None:
    """Import the extension; None if it was not built or torch lacks what it needs."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if not ADDRESSES or exchange is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        calls = import_module("evenkeel.kernels._direct_calls")
    except ImportError:
        return None
    return calls if calls.prepare(*ADDRESSES[:2], exchange, torch, torch.nn.Parameter, torch.Tensor) else None


def decline(*arguments: object) -> None:
    """Take no call, in the place of a missing extension."""


ADDRESSES = direct_addresses()
calls = load()
normalize: Any = decline if calls is None else calls.normalize
differentiate: Any = decline if calls is None else calls.differentiate
normalize_channels: Any = decline if calls is None else calls.normalize_channels
differentiate_channels: Any = decline if calls is None else calls.differentiate_channels
