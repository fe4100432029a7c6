"""The backend of GPU kernels in Triton: whether it can run, which calls it takes, and how its operators are found."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from evenkeel.kernels import _cpu
from evenkeel.kernels._operators import MISSING, OPERATORS
from evenkeel.kernels._state import unobserved

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from evenkeel._spec import NormSpec

# False until `benchmarks/gpu.py --check` was green on a GPU: "auto" then stays with plain PyTorch there.
MEASURED = False
INSTALLED = find_spec("triton") is not None
OLDEST = (8, 0)  # compute capability of NVIDIA's GPUs: what is compiled and its order of sums are known from here on
DTYPES = _cpu.DTYPES | {pattern: _cpu.DTYPES[pattern] - {torch.float64} for pattern in ("rows", "channels")}


def absence() -> str:
    """Say what the kernels lack on this machine; "" if nothing."""
    if not torch.cuda.is_available():
        return "torch sees no GPU here"
    if not INSTALLED:
        return "Triton is not installed; it comes with torch's GPU builds, or: pip install triton"
    return f"its operators come with the compiled extension: {MISSING}" if MISSING else ""


@cache
def too_old() -> str:
    """Say which GPU is older than the kernels are made for; "" if none, or if they are AMD's.

    It starts CUDA, which calls on the CPU, in forked processes too, must not.
    """
    for index in range(0 if torch.version.hip else torch.cuda.device_count()):
        if (found := torch.cuda.get_device_capability(index)) < OLDEST:
            name, wanted = torch.cuda.get_device_name(index), ".".join(map(str, OLDEST))
            return (
                f"{name} has compute capability {found[0]}.{found[1]}, the kernels take {wanted} (Ampere) and later; "
                "hide it with CUDA_VISIBLE_DEVICES if another GPU has that"
            )
    return ""


def supports(pattern: str, spec: NormSpec | None, tensors: tuple[Tensor | None, ...]) -> str:
    """Return "" if the kernels of a pattern take a spec and its tensors, otherwise the reason."""
    reason = absence() or refusal(pattern, spec, tensors)
    return reason if reason or torch.compiler.is_compiling() else too_old()  # a compiler cannot trace the question


def refusal(pattern: str, spec: NormSpec | None, tensors: tuple[Tensor | None, ...]) -> str:
    """Why the kernels do not take a call on a machine that has a GPU, or ""."""
    if pattern not in DTYPES:
        return "it has no kernel for this norm yet"
    if pattern == "channels" and spec is not None and spec.cast == "early":
        return "it has no kernel for cast='early' of a channel norm"
    if reason := _cpu.refused_spec(pattern, spec):
        return reason
    for tensor in tensors:
        if tensor is None:
            continue
        if not tensor.is_cuda:
            return f"a tensor is on {tensor.device}"
        if tensor.dtype not in DTYPES[pattern]:
            return f"it does not take {tensor.dtype}"
        if type(tensor) not in _cpu.PLAIN_TYPES:
            return f"it does not take the tensor subclass {type(tensor).__name__}"
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        return f"the tensors are on {', '.join(sorted(map(str, devices)))}"
    return _dtype_refusal(spec, tensors)


def _dtype_refusal(spec: NormSpec | None, tensors: tuple[Tensor | None, ...]) -> str:
    """A bias that promotes an early result further than the weight does has no kernel."""
    if spec is None or spec.cast != "early":
        return ""
    x, weight, bias = (*tensors, None, None)[:3]
    if x is None or bias is None:
        return ""
    result = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    widened = torch.promote_types(result, bias.dtype) != result
    return f"it has no kernel for cast='early' with a bias of {bias.dtype}" if widened else ""


def availability() -> str:
    """Name the patterns, or say what is missing."""
    chosen = "" if MEASURED else " by backend='triton' alone: 'auto' takes plain PyTorch, no GPU run is recorded yet"
    return absence() or too_old() or f"available: {', '.join(DTYPES)};{chosen}"


def facts() -> dict[str, str]:
    """Tell the version and the GPU; nothing where the kernels cannot run."""
    if absence() or too_old():
        return {}
    version: str = import_module("triton").__version__
    return {"triton": version, "gpu": torch.cuda.get_device_name()}


@cache
def kernels() -> Any:
    """The operators on the GPU, imported with the first call: Triton takes a second."""
    return import_module("evenkeel.kernels.triton")


def is_direct(x: Tensor) -> bool:
    """Whether the operators may be called past torch's dispatcher, which takes longer than a kernel's start."""
    return x.is_cuda and unobserved()


def operator(name: str) -> Callable[..., Any]:
    """An operator for the dispatcher."""

    def call(*arguments: Any) -> Any:
        return getattr(kernels(), name)(*arguments)

    return call


if not MISSING:
    for _name, _operator in OPERATORS.items():
        if _operator.pattern:
            torch.library.impl(f"evenkeel::{_name}", "CUDA")(operator(_name))
