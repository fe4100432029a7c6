"""``out=`` as torch has it: what is refused, resized, cast, and when a kernel may write there itself."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import torch

from evenkeel._errors import InvalidInputError
from evenkeel.functional._common import check_tensor
from evenkeel.kernels import PLAIN_TYPES, is_pooled

if TYPE_CHECKING:
    from torch import Tensor

CLONE = "refer to a single memory location. Please clone() the tensor before performing the operation"


def prepare_out(name: str, out: Tensor, dtype: torch.dtype, input: Tensor, *parameters: Tensor | None) -> None:
    """Resize ``out`` to the input's shape as torch does; raise, in torch's words, where ``dtype`` cannot go there."""
    tensors = (input, *parameters)
    check_tensor(name, "out", out)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*tensors, out)):
        raise InvalidInputError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad; call it under torch.no_grad() or without out"
        )
    if out.device != input.device:
        raise InvalidInputError(
            f"{name}: Expected out tensor to have device {input.device}, but got {out.device} instead"
        )
    if not (out.dtype.is_complex or (out.dtype.is_floating_point and not dtype.is_complex)):
        raise InvalidInputError(
            f"{name}: result type {dtype} can't be cast to the desired output type {out.dtype}; pass a floating out"
        )
    if out.shape != input.shape:
        if out.numel() != 0:
            warnings.warn(
                f"{name}: an output with one or more elements was resized since it had shape {list(out.shape)}, which "
                f"does not match the required output shape {list(input.shape)}; reuse it with out.resize_(0)",
                UserWarning,
                stacklevel=4,
            )
        resize(out, input.shape)


def resize(out: Tensor, shape: torch.Size) -> None:
    """Resize as torch does; large results of the kernels, which torch cannot resize, get memory of torch's for it."""
    if type(out) in PLAIN_TYPES and out.is_cpu and not out.requires_grad and not torch.compiler.is_compiling():
        storage = out.untyped_storage()
        needed = (out.storage_offset() + math.prod(shape)) * out.element_size()
        if needed > storage.nbytes() and not storage.resizable() and is_pooled(out):
            out.set_(torch.UntypedStorage())
    out.resize_(shape)


def writable(name: str, out: Tensor, dtype: torch.dtype, axes: int, input: Tensor, *parameters: Tensor | None) -> bool:
    """Whether a kernel may write into ``out`` while it reads: its rows are dense, and an input's memory is not there.

    The input itself is welcome: a row is read before it is written. Anything less certain goes through a result of
    its own and a copy.

    Raises:
        InvalidInputError: elements of ``out`` share memory with each other or, not being the same ones, with an input.
    """
    free = unshared(name, out, input, *parameters)
    dense = out.is_contiguous() or (out.ndim <= 8 and out[(0,) * (out.ndim - axes)].is_contiguous())
    return free and dense and out.dtype == dtype


def unshared(name: str, out: Tensor, input: Tensor, *parameters: Tensor | None) -> bool:
    """Whether ``out`` is plain memory of its own, or the input itself.

    Raises:
        InvalidInputError: elements of ``out`` share memory with each other or, not being the same ones, with an input.
    """
    if type(out) not in PLAIN_TYPES or torch.compiler.is_compiling() or out.numel() == 0 or out.is_neg():
        return False
    contiguous = out.is_contiguous()
    if not contiguous and any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise InvalidInputError(
            f"{name}: unsupported operation: more than one element of the written-to tensor {CLONE}"
        )
    own, free = extent(out), True
    for tensor in (input, *parameters):
        if tensor is None or type(tensor) not in PLAIN_TYPES or tensor.numel() == 0:
            continue
        other = extent(tensor)
        if own[0] >= other[1] or other[0] >= own[1]:
            continue
        free = free and tensor is input and same_memory(out, input)
        if contiguous and tensor.is_contiguous() and own != other:
            raise InvalidInputError(
                f"{name}: unsupported operation: some elements of the input tensor and the written-to tensor {CLONE}"
            )
    return free


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors may have bytes in common."""
    (first, last), (begin, end) = extent(a), extent(b)
    return first < end and begin < last


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same elements in the same order."""
    return a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()


def extent(t: Tensor) -> tuple[int, int]:
    """The addresses of the first byte of a tensor and of the one after its last."""
    if t.is_contiguous():
        begin = t.data_ptr()
        return begin, begin + t.nbytes
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


def deliver(result: Tensor, out: Tensor) -> Tensor:
    """Copy a result into ``out`` and return that."""
    with torch.no_grad():
        out.copy_(result)
    return out
