"""Arrays, frames and tensors as torch tensors over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenkeel._errors import InvalidInputError, InvalidTypeError

# The dtypes that the kernels read; every other numeric one is converted to the smallest of these that holds it.
NATIVE = {np.dtype(name) for name in ("u1", "i1", "i2", "i4", "i8", "?", "f2", "f4", "f8")}
FLOATING = {np.dtype(name) for name in ("f2", "f4", "f8")}
WIDER = {np.dtype("u2"): np.dtype("i4"), np.dtype("u4"): np.dtype("i8"), np.dtype("u8"): np.dtype("f8")}
WIDER_TORCH = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.float64}


class _Writable:
    """The memory of a read-only array under an interface that does not say so, kept alive by this object.

    torch.from_numpy warns about read-only arrays (memory maps, Arrow buffers) although nothing here ever writes.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.array, self.__array_interface__ = array, interface


def check_dense(batch: Tensor) -> None:
    """Raise `InvalidTypeError` for a sparse or nested tensor."""
    if batch.layout is not torch.strided or batch.is_nested:
        raise InvalidTypeError("expected a dense tensor, but got a sparse or nested one; pass .to_dense() of it")


def as_tensor(batch: Any) -> Tensor:
    """A real tensor over the memory of a tensor, array or frame; copied only where torch has no such layout or dtype.

    Integers that the kernels lack become the next wider type (uint16 int32, uint32 int64, uint64 float64), long
    doubles float64, Boolean masks stay Boolean.
    """
    if isinstance(batch, torch.Tensor):
        check_dense(batch)
        if batch.is_complex():
            raise InvalidTypeError(f"expected real values, but got {batch.dtype}; take .real and .imag apart first")
        return batch.to(WIDER_TORCH[batch.dtype]) if batch.dtype in WIDER_TORCH else batch
    array = numeric_array(batch)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)
    if array.size == 0:
        return torch.from_numpy(np.empty(array.shape, array.dtype))
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


def values_of(batch: Any) -> Tensor:
    """`as_tensor` of values to read, without their graph.

    Raises:
        InvalidInputError: it is a tensor on the meta device.
    """
    x = as_tensor(batch).detach()
    if x.is_meta:
        raise InvalidInputError(
            f"expected values, but the tensor of shape {tuple(x.shape)} is on the meta device, which holds none; "
            "pass one on the CPU or an accelerator"
        )
    return x


def output_tensor(out: Any, table: Tensor, tensor: bool) -> Tensor:
    """A tensor over the memory of ``out``, into which the result for a table goes: a tensor's, or an array's.

    Raises:
        InvalidTypeError: it is neither.
        InvalidInputError: it cannot be written to, or has another shape or no floating dtype.
    """
    if not isinstance(out, torch.Tensor if tensor else np.ndarray):
        kind = "a tensor, as X is one" if tensor else "a NumPy array"
        raise InvalidTypeError(f"out: expected {kind}, but got {type(out).__name__}")
    if tuple(out.shape) != tuple(table.shape):
        raise InvalidInputError(f"out: expected X's shape {tuple(table.shape)}, but got {tuple(out.shape)}")
    if isinstance(out, torch.Tensor):
        return out
    if not out.flags.writeable or out.dtype not in FLOATING or min(out.strides, default=0) < 0:
        seen = f"{out.dtype}{'' if out.flags.writeable else ', read-only'}, strides {out.strides}"
        raise InvalidInputError(f"out: expected a writable array of float16, float32 or float64, but got {seen}")
    return torch.from_numpy(out)


def numeric_array(batch: Any) -> np.ndarray[Any, Any]:
    """A NumPy array of one of the dtypes the kernels read."""
    array = batch.to_numpy() if hasattr(batch, "to_numpy") else np.asarray(batch)
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidTypeError(
                f"expected numbers, but got objects: {error}; convert or drop those columns"
            ) from error
    if array.dtype.kind not in "buif":
        raise InvalidTypeError(f"expected real numbers, but got dtype {array.dtype}; convert or drop those columns")
    dtype: Any = array.dtype.newbyteorder("=")
    dtype = WIDER.get(dtype, dtype)
    return array.astype(dtype if dtype in NATIVE else np.dtype("f8"), copy=False)


def dtype_name(batch: Any) -> str:
    """The dtype of a tensor, array or frame as NumPy spells it; of a frame with several, the one that holds all."""
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype).removeprefix("torch.")
    dtype = getattr(batch, "dtype", None)
    return str(dtype if isinstance(dtype, np.dtype) else numeric_array(batch).dtype)


def column_names(batch: Any) -> list[str] | None:
    """The column names of a frame (pandas, Polars), or None for what has none; names that are not text do not count."""
    columns = getattr(batch, "columns", None)
    if columns is None or callable(columns):
        return None
    names = list(columns)
    return names if names and all(isinstance(name, str) for name in names) else None


def ordered_columns(batch: Any, names: Sequence[str]) -> Any:
    """A frame's columns in the order of the names, whatever their order in it; an error names the missing ones."""
    columns = column_names(batch)
    if columns is None or columns == list(names):
        return batch
    missing = [name for name in names if name not in columns]
    if missing:
        raise InvalidInputError(f"the table lacks the columns {', '.join(missing)}; it has {', '.join(columns)}")
    if repeated := [name for name in dict.fromkeys(names) if columns.count(name) > 1]:
        raise InvalidInputError(
            f"the table has several columns of the name {', '.join(repeated)}, and they come in another order; rename "
            "them so that each name is one"
        )
    return batch[list(names)]
