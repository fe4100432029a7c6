"""DyT: an element-wise squashing that takes a norm's place; it computes no statistic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from evenkeel.functional._common import as_number, check_floating, check_tensor, compute_dtype
from evenkeel.kernels import runs_kernel

if TYPE_CHECKING:
    from torch import Tensor


def dyt_reference(
    input: Tensor, alpha: Tensor | float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """`dyt` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    dtype = compute_dtype(input)
    y = torch.tanh(input.to(dtype) * alpha)
    if weight is not None:
        y = y * weight.to(dtype)
    if bias is not None:
        y = y + bias.to(dtype)
    return y.to(input.dtype)


def dyt(
    input: Tensor,
    alpha: Tensor | float,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    r"""Squash each element with a scaled tanh, then scale and shift: Dynamic Tanh.

    .. math:: y = \gamma \tanh(\alpha x) + \beta

    Args:
        input: (\*, features), any floating dtype.
        alpha: the slope at 0: a number, or a tensor of one element that is learned.
        weight: γ, broadcastable against the input.
        bias: β, broadcastable against the input.
        backend: ``auto`` or ``reference`` (element-wise code needs no kernel of its own).

    Returns:
        A tensor of the input's shape and dtype.

    Raises:
        InvalidInputError: an integer input.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> F.dyt(torch.tensor([-10.0, 0.0, 10.0]), 0.5)
        tensor([-0.9999,  0.0000,  0.9999])

    Source: Zhu, Chen, He, LeCun, Liu, "Transformers without Normalization", 2025.
    """
    alpha_tensor = alpha if isinstance(alpha, torch.Tensor) else None
    if has_torch_function_variadic(input, alpha_tensor, weight, bias):
        return handle_torch_function(
            dyt, (input, alpha_tensor, weight, bias), input, alpha, weight=weight, bias=bias, backend=backend
        )
    check_floating("dyt", "input", input)
    for label, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            check_tensor("dyt", label, parameter)
    if alpha_tensor is None:
        alpha = as_number("dyt", "alpha", alpha)
    runs_kernel("elements", backend, None, input)
    return dyt_reference(input, alpha, weight, bias)
