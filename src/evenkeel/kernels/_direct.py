"""Row kernels on small dense tensors, called past torch's dispatcher, which takes longer than the work there."""

from __future__ import annotations

import ctypes
import sysconfig
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad, profiler

from evenkeel.kernels._ops import _LIBRARY, _MISSING, EPS_MODES

if TYPE_CHECKING:
    from types import ModuleType


def _load() -> ModuleType | None:
    """The extension, or None where it was not built or something that it needs is missing."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if _MISSING or exchange is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        calls = import_module("evenkeel.kernels._direct_calls")
    except ImportError:
        return None
    library = ctypes.CDLL(str(_LIBRARY))
    if not hasattr(library, "evenkeel_direct_rows"):
        return None
    address = ctypes.cast(library.evenkeel_direct_rows, ctypes.c_void_p).value
    return calls if calls.prepare(address, exchange, torch, torch.nn.Parameter, torch.Tensor) else None


_calls = _load()


def _options(statistic: Any, eps: Any, eps_mode: Any, weight_offset: Any) -> tuple[Any, ...]:
    numbers = {"rms": 0, "moments": 1, "l2": 2}, EPS_MODES
    pairs = zip(numbers, (statistic, eps_mode), strict=True)
    known = [table.get(name, -1) if isinstance(name, str) else -1 for table, name in pairs]
    return known[0], eps, known[1], weight_offset, False, False


def normalize(x: Any, axes: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """The compiled function, with named options."""
    return _calls.normalize(x, axes, weight, bias, _options(*rest[:4]), rest[4])  # type: ignore[union-attr]


def differentiate(dy: Any, x: Any, weight: Any, bias: Any, statistics: Any, axes: Any, *rest: Any) -> Any:
    """The compiled function, with named options."""
    return _calls.differentiate(dy, x, weight, bias, statistics, axes, _options(*rest[:4]), *rest[4:])  # type: ignore[union-attr]


# looking names up in torch takes as long as calling what they name
_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._is_tracing
_has_transforms, _count_modes = torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack
_is_included, _BEFORE_DISPATCH = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch


def available() -> bool:
    """Whether the extension serves here at all."""
    return _calls is not None


def unobserved() -> bool:
    """Whether nobody would miss the dispatcher: compiler, transform, forward-mode level, tracer, mode or profiler."""
    return not (
        _calls is None
        or _is_compiling()
        or profiler._is_profiler_enabled
        or forward_ad._current_level >= 0
        or _has_transforms()
        or _is_tracing()
        or _count_modes()
        or _is_included(_BEFORE_DISPATCH)  # the stack of a mode that comes before autograd
    )
