"""The backend of compiled CPU kernels: whether it is there, which calls it takes, and how it was built."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from evenkeel._errors import InvalidArgumentError
from evenkeel.kernels import _nodes, _small
from evenkeel.kernels._operators import FOLDER, MISSING, PATTERNS, REFUSED

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import NormSpec

KERNEL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool)
DTYPES = {
    "rows": frozenset(KERNEL_DTYPES),
    "channels": frozenset({*KERNEL_DTYPES, torch.bool}),  # of masks
    "columns": frozenset({*KERNEL_DTYPES, *INTEGER_DTYPES}),
    "images": frozenset({*KERNEL_DTYPES, *INTEGER_DTYPES}),
}
HALF_DTYPES = (torch.bfloat16, torch.float16)
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def supports(pattern: str, spec: NormSpec | None, tensors: tuple[Tensor | None, ...]) -> str:
    """Return "" if the kernels of a pattern take a spec and its tensors, otherwise the reason.

    The tensors are the input, the residual (only of a spec that adds one), weight and bias, then any others.

    Raises:
        InvalidArgumentError: an environment variable of the kernels holds what they cannot use.
    """
    if MISSING:
        return MISSING
    if REFUSED:
        raise InvalidArgumentError(REFUSED)
    if pattern not in PATTERNS:
        return "it has no kernel for this norm yet"
    if spec is not None and spec.cast == "early" and not _rounds_early(pattern, spec, *tensors):
        return "it has no kernel for cast='early' in this dtype yet"
    if reason := refused_spec(pattern, spec):
        return reason
    dtypes = DTYPES[pattern]
    for tensor in tensors:
        plain = tensor is None or (tensor.is_cpu and tensor.dtype in dtypes and type(tensor) in PLAIN_TYPES)
        if tensor is not None and not plain and (reason := _tensor_refusal(tensor, dtypes)):
            return reason
    if spec is not None and spec.residual_rounding is not None:
        first, second = (tensor.dtype for tensor in tensors[:2] if tensor is not None)
        if (first == torch.float64) != (second == torch.float64):
            return f"it adds float64 to float64 alone, but got {first} and {second}"
    return ""


def refused_spec(pattern: str, spec: NormSpec | None) -> str:
    """Why no backend has kernels of a pattern for a spec, or ""."""
    if spec is not None and spec.cast == "weight":
        return "it has no kernel for cast='weight' where input and weight differ in dtype"
    if pattern == "rows" and spec is not None and (spec.groups is not None or spec.gating is not None):
        return "it has no kernel for groups or gates of rows; functional runs it on the parts, the rest by torch"
    return ""


def _rounds_early(pattern: str, spec: NormSpec, x: Tensor | None, *parameters: Tensor | None) -> bool:
    """Whether there is a kernel that rounds early: as the models that do, RMSNorm in 16 bits with eps inside."""
    weight, bias = (*parameters, None, None)[:2]
    return (
        pattern == "rows"
        and spec.statistic == "rms"
        and spec.eps_mode == "inside"
        and bias is None
        and x is not None
        and x.dtype in HALF_DTYPES
        and (weight is None or weight.dtype != torch.float64)
    )


def _tensor_refusal(tensor: Tensor, dtypes: frozenset[torch.dtype]) -> str:
    if not tensor.is_cpu:
        return f"a tensor is on {tensor.device}"
    if tensor.dtype not in dtypes:
        return f"it does not take {tensor.dtype}"
    if is_traceable_wrapper_subclass(tensor):
        return f"it does not take the tensor subclass {type(tensor).__name__}"
    return ""


def availability() -> str:
    """Name the patterns and the SIMD level, or say why there are none."""
    return MISSING or f"available: {', '.join(PATTERNS)}; SIMD level {torch.ops.evenkeel.simd_level()}"


def facts() -> dict[str, str]:
    """Tell how the library was built and what it chose here; nothing if it is missing.

    Raises:
        InvalidArgumentError: an environment variable of the kernels holds what they cannot use.
    """
    if MISSING:
        return {}
    if REFUSED:
        raise InvalidArgumentError(REFUSED)
    build = FOLDER / "_build.json"
    built: dict[str, Any] = json.loads(build.read_text(encoding="utf-8")) if build.exists() else {}
    return {
        **{name: str(value) for name, value in built.items()},
        "simd level": str(torch.ops.evenkeel.simd_level()),
        "small tensors": f"{'through' if _small.calls is None else 'past'} torch's dispatcher",
        "their gradients": f"through {'Python' if _nodes.nodes is None else 'C++'}",
        **_memory_facts(),
    }


def _memory_facts() -> dict[str, str]:
    """Tell the sizes of the caches, and what the kernels do with outputs that are large beside them."""
    first, second, third, cores, source, streamed, in_order, pooled, limit = torch.ops.evenkeel.memory_choices()
    threads = torch.get_num_threads()
    return {
        "caches": f"{_size(first)} and {_size(second)} a core, {_size(third)} for {cores} cores ({source})",
        "streaming": f"of calls that move more than {_size(streamed)} ({threads} threads): outputs of "
        f"{_size(streamed / 2)} forward ({_size(in_order)} of BatchNorm in inference), "
        f"{_size(streamed / 3)} backward",
        "pool": f"outputs from {_size(pooled)}; at most {_size(limit)} wait" if limit else "none",
    }


def _size(count: float) -> str:
    """Write a number of bytes as kB, MB or GB."""
    units = ("kB", "MB", "GB")
    power = min(max(int(math.log2(max(count, 1)) / 10) - 1, 0), 2)
    return f"{count / 1024 ** (power + 1):.3g} {units[power]}"


def is_pooled(x: Tensor) -> bool:
    """Whether a CPU tensor lies in a block of the kernels' own pool, which torch cannot resize."""
    return not MISSING and bool(torch.ops.evenkeel.is_pooled(x))
