"""The only file that knows several backends exist: it loads them, says which there are, and chooses one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from evenkeel._errors import BackendError, InvalidArgumentError

if TYPE_CHECKING:
    from torch import Tensor

BACKENDS = ("auto", "reference", "cpu")
# which reduction patterns each compiled backend serves
PATTERNS = {"cpu": ("rows", "channels", "columns", "images")}
EPS_MODES = {"inside": 0, "outside": 1, "clamp": 2}
ACTIVATIONS = {None: 0, "relu": 1, "silu": 2}
KERNEL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool)
TAKES_INTEGERS = ("columns", "images")
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

_DIRECTORY = Path(__file__).parent
_LIBRARY = _DIRECTORY / "_native.so"


OPERATORS = (
    "rows_forward",
    "rows_inference",
    "rows_out",
    "rows_backward",
    "channels_forward",
    "channels_backward",
    "column_moments",
    "separate_column_moments",
    "column_affine",
    "column_affine_out",
    "image_normalize",
    "image_normalize_out",
    "is_pooled",
    "simd_level",
)


def _load(operators: tuple[str, ...] = OPERATORS) -> str:
    """Load the extension; return "" or the reason why it is missing."""
    if not _LIBRARY.exists():
        return "the compiled extension is not installed; reinstall evenkeel with a C++ compiler (g++ or clang) present"
    try:
        torch.ops.load_library(str(_LIBRARY))
    except OSError as error:
        return f"the compiled extension could not be loaded ({str(error).splitlines()[0]}); reinstall evenkeel"
    if absent := [name for name in operators if not hasattr(torch.ops.evenkeel, name)]:
        return f"the compiled extension is older than this code (it lacks {', '.join(absent)}); reinstall evenkeel"
    return ""


_MISSING = _load()


def kernels_available() -> dict[str, str]:
    """Say for each backend whether it can run here: "available", or the reason why not.

    Returns:
        A dictionary from backend name to "available ..." or a reason.

    Example:
        >>> import evenkeel as ek
        >>> ek.kernels_available()["reference"]
        'available: plain PyTorch, any device and floating dtype'
    """
    cpu = _MISSING or f"available: {', '.join(PATTERNS['cpu'])}; SIMD level {torch.ops.evenkeel.simd_level()}"
    return {"reference": "available: plain PyTorch, any device and floating dtype", "cpu": cpu}


def backend_info() -> dict[str, str]:
    """Facts about the compiled extension: how it was built, its SIMD level in use, how small tensors reach it.

    Returns:
        A dictionary of facts; empty when the extension is not installed.

    Example:
        >>> import evenkeel as ek
        >>> sorted(ek.functional.backend_info())[:2]
        ['compiler', 'flags']
    """
    if _MISSING:
        return {}
    from evenkeel.kernels import _direct  # which needs this module

    small = "past torch's dispatcher" if _direct.available() else "through torch's dispatcher"
    build = _DIRECTORY / "_build.json"
    facts: dict[str, Any] = json.loads(build.read_text(encoding="utf-8")) if build.exists() else {}
    level = str(torch.ops.evenkeel.simd_level())
    return {**{k: str(v) for k, v in facts.items()}, "simd level": level, "small tensors": small}


def _tensor_refusal(tensor: Tensor, dtypes: tuple[torch.dtype, ...]) -> str:
    """Why a kernel cannot take a tensor, or ""."""
    if not tensor.is_cpu:
        return f"a tensor is on {tensor.device}"
    if tensor.dtype not in dtypes:
        return f"it does not take {tensor.dtype}"
    if type(tensor) not in PLAIN_TYPES and is_traceable_wrapper_subclass(tensor):
        return f"it does not take the tensor subclass {type(tensor).__name__}"
    return ""


def _cpu_refusal(pattern: str, tensors: tuple[Tensor | None, ...], early: bool, mask: Tensor | None) -> str:
    """Why the cpu backend cannot run this call, or ""."""
    if _MISSING:
        return _MISSING
    if pattern not in PATTERNS["cpu"]:
        return "it has no kernel for this norm yet"
    if early:
        return "it has no kernel for cast='early' in this dtype yet"
    if mask is not None and not mask.is_cpu:
        return f"the mask is on {mask.device}"
    dtypes = (*KERNEL_DTYPES, *INTEGER_DTYPES) if pattern in TAKES_INTEGERS else KERNEL_DTYPES
    for tensor in tensors:
        if tensor is not None and (refusal := _tensor_refusal(tensor, dtypes)):
            return refusal
    return ""


def choose(pattern: str, backend: str, *tensors: Tensor | None, early: bool = False, mask: Tensor | None = None) -> str:
    """The backend that runs a reduction pattern on these tensors: "reference" or "cpu".

    Raises:
        InvalidArgumentError: an unknown backend.
        BackendError: the backend was asked for by name and cannot run this.
    """
    if backend == "reference":
        return backend
    if backend not in BACKENDS:
        raise InvalidArgumentError(f"backend must be one of {', '.join(BACKENDS)}, but got {backend!r}")
    refusal = _cpu_refusal(pattern, tensors, early, mask)
    if backend == "cpu" and refusal:
        raise BackendError(f"backend='cpu' cannot run this call: {refusal}; use backend='auto' or 'reference'")
    return "reference" if refusal else "cpu"


def is_pooled(x: Tensor) -> bool:
    """Whether a CPU tensor lies in a block of the kernels' own pool, which torch cannot resize."""
    return not _MISSING and bool(torch.ops.evenkeel.is_pooled(x))


def channels_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    mask: Tensor | None,
    groups: int,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    activation: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize per channel over the batch (``groups`` 0) or per group of a sample: y, statistics and variances.

    With mean and variance, (channels,), these are used instead of the input's own; with a mask, (batch, 1,
    *positions), those of the valid positions. The activation is applied before y is rounded.
    """
    return torch.ops.evenkeel.channels_forward.default(
        x,
        weight,
        bias,
        mean,
        variance,
        mask,
        groups,
        eps,
        EPS_MODES[eps_mode],
        weight_offset,
        ACTIVATIONS[activation],
    )


def channels_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    mask: Tensor | None,
    remembered: bool,
    groups: int,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    activation: str | None,
    *needed: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dweight and dbias; one that is not ``needed`` is empty."""
    return torch.ops.evenkeel.channels_backward.default(
        dy,
        x,
        weight,
        bias,
        statistics,
        mask,
        remembered,
        groups,
        eps,
        EPS_MODES[eps_mode],
        weight_offset,
        ACTIVATIONS[activation],
        *needed,
    )


def _empty_in_format(x: Tensor) -> Tensor:
    """Channels-last where the input is that alone, otherwise contiguous."""
    for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.ndim == ndim and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return torch.empty_like(x, memory_format=layout)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _channels_forward_fake(
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    mask: Any,
    groups: int,
    eps: float,
    eps_mode: int,
    weight_offset: float,
    activation: int,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    count = x.shape[0] * groups if groups else x.shape[1]
    statistics = x.new_empty((count, 5 if eps_mode else 4), dtype=dtype)
    return _empty_in_format(x), statistics, x.new_empty((count,), dtype=dtype)


def _channels_backward_fake(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    mask: Any,
    remembered: bool,
    groups: int,
    eps: float,
    eps_mode: int,
    weight_offset: float,
    activation: int,
    need_dx: bool,
    need_dweight: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = _empty_in_format(x) if need_dx else x.new_empty(0)
    dweight = torch.empty_like(weight) if need_dweight and weight is not None else x.new_empty(0)
    dbias = torch.empty_like(bias) if need_dbias and bias is not None else x.new_empty(0)
    return dx, dweight, dbias


if not _MISSING:
    torch.library.register_fake("evenkeel::channels_forward", _channels_forward_fake)
    torch.library.register_fake("evenkeel::channels_backward", _channels_backward_fake)
