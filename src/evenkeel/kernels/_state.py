"""What torch is doing at the moment: whether only plain code serves, and whether somebody watches the dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.autograd import forward_ad, profiler

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

# looking names up in torch takes as long as calling what they name
is_compiling, _is_exporting = torch.compiler.is_compiling, torch.compiler.is_exporting
_has_transforms, _count_modes = torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack
_is_jit_tracing, _is_tracing = torch.jit.is_tracing, torch._C._is_tracing
_is_included, _BEFORE_DISPATCH = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch


def composite_required() -> bool:
    """Whether only plain code serves: a functorch transform, a forward-mode level, jit tracing or export is active."""
    return _has_transforms() or forward_ad._current_level >= 0 or _is_jit_tracing() or _is_exporting()


def unobserved() -> bool:
    """Whether nobody would miss the dispatcher: compiler, transform, forward-mode level, tracer, mode or profiler."""
    return not (
        is_compiling()
        or profiler._is_profiler_enabled
        or forward_ad._current_level >= 0
        or _has_transforms()
        or _is_tracing()
        or _count_modes()
        or _is_included(_BEFORE_DISPATCH)  # the stack of a mode that comes before autograd
    )


def constant_when_compiled(function: Function) -> Function:
    """Let the compiler take a function's result for a constant of its arguments, which are constants.

    A graph checks all that was read while it was traced each time it is called: the choices of a spec alone took 12 µs.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler's decorator takes a second
    return function
