"""normalize: divide by the p-norm over one or several axes."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from evenkeel._errors import InvalidArgumentError, InvalidTypeError
from evenkeel.functional._common import (
    as_number,
    check_floating,
    check_tensor,
    compute_dtype,
    range_scale,
    reciprocal_scale,
)
from evenkeel.functional._out import deliver, prepare_out, writable
from evenkeel.functional._rows import rows
from evenkeel.functional._shards import is_distributed
from evenkeel.functional._specs import row_spec
from evenkeel.kernels import runs_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import EpsMode


def normalize_reference(
    input: Tensor,
    p: float = 2.0,
    dim: int | tuple[int, ...] = 1,
    eps: float = 1e-12,
    *,
    eps_mode: EpsMode = "clamp",
) -> Tensor:
    """`normalize` in plain PyTorch, for any floating or complex dtype: the definition (no argument checks)."""
    x = input if input.is_complex() else input.to(compute_dtype(input))
    if p == 2.0 and not x.is_complex():
        dims = [dim] if isinstance(dim, int) else list(dim)
        scaled_eps: float | Tensor = eps
        scaling = range_scale(x, dims, eps, eps_mode)
        if scaling is not None:
            x, scaled_eps = x * scaling[0], scaling[1]
        square = x.square().sum(dims, keepdim=True)
        return (x * reciprocal_scale(square, scaled_eps, eps_mode)).to(input.dtype)
    # sum adds by parts; vector_norm of order 1 adds one after the other and loses hundreds of ulps
    length = x.abs().sum(dim, keepdim=True) if p == 1.0 else torch.linalg.vector_norm(x, p, dim, keepdim=True)
    if eps_mode == "inside":
        return (x * reciprocal_scale(length.square(), eps, eps_mode)).to(input.dtype)
    return (x / (length + eps if eps_mode == "outside" else length.clamp_min(eps))).to(input.dtype)


def normalize(
    input: Tensor,
    p: float = 2.0,
    dim: int | tuple[int, ...] = 1,
    eps: float = 1e-12,
    out: Tensor | None = None,
    *,
    eps_mode: EpsMode = "clamp",
    backend: str = "auto",
) -> Tensor:
    r"""Divide by the p-norm over ``dim``, so that vectors along it have length 1.

    .. math:: y = \frac{x}{\max(\lVert x \rVert_p, \epsilon)}

    Positionally compatible with `torch.nn.functional.normalize`.

    Args:
        input: any shape, floating or complex.
        p: the exponent of the norm.
        dim: the axis or axes that share one norm.
        eps: ε, the smallest divisor (or as ``eps_mode`` says).
        out: a tensor to write the result into, resized to fit; not differentiable. It may be the input itself.
        eps_mode: ``clamp`` (torch): x/max(‖x‖, ε); ``outside``: x/(‖x‖ + ε); ``inside``: x/√(‖x‖² + ε), for p = 2.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``; the kernel takes p = 2 along the last axis.

    Returns:
        A tensor of the input's shape and dtype, or ``out``.

    Raises:
        InvalidInputError: an integer input, or ``out`` cannot take the result.
        InvalidArgumentError: an unknown option, or ``inside`` with p other than 2.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> F.normalize(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """
    if has_torch_function_variadic(input, out):
        return handle_torch_function(
            normalize, (input, out), input, p=p, dim=dim, eps=eps, out=out, eps_mode=eps_mode, backend=backend
        )
    spec = row_spec("normalize", "l2", eps, eps_mode)
    if eps_mode == "inside" and p != 2.0:
        raise InvalidArgumentError(
            f"normalize: eps_mode='inside' adds eps to the squared Euclidean length and needs p=2, but got p={p}; "
            "use 'outside' or 'clamp'"
        )
    check_tensor("normalize", "input", input, jagged=True)
    p, dim = as_number("normalize", "p", p), as_axes(input, dim)
    if not input.is_complex():
        check_floating("normalize", "input", input, jagged=True)
    if p == 2.0 and is_last_axis(input, dim):
        return rows("normalize", spec, input, (input.shape[-1],), None, None, backend, out)
    if out is not None:
        prepare_out("normalize", out, input.dtype, input)
    runs_kernel("vectors", backend, spec, input)
    if out is not None:
        writable("normalize", out, input.dtype, 1, input)  # it refuses overlaps
    result = normalize_reference(input, p, dim, eps, eps_mode=eps_mode)
    return result if out is None else deliver(result, out)


def as_axes(input: Tensor, dim: Any) -> int | tuple[int, ...]:
    """An axis or a tuple of axes as integers; None stands for all, as torch has it."""
    if type(dim) is int:
        return dim
    if dim is None:
        return tuple(range(input.ndim))
    try:
        if isinstance(dim, str | bytes):
            raise TypeError
        return index(dim) if hasattr(dim, "__index__") else tuple(index(axis) for axis in dim)
    except TypeError:
        raise InvalidTypeError(
            f"normalize(): argument 'dim' must be int or tuple of ints, not {type(dim).__name__}"
        ) from None


def is_last_axis(input: Tensor, dim: int | tuple[int, ...]) -> bool:
    """Whether the vectors lie along the last axis of a real input, which the kernel reads; each process has its own."""
    if type(input) is not torch.Tensor and is_distributed(input):
        return False
    axis = dim[0] if not isinstance(dim, int) and len(dim) == 1 else dim
    return input.ndim > 0 and (axis == -1 or axis == input.ndim - 1) and not input.is_complex()
