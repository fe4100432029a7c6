"""add_layer_norm and add_rms_norm: a branch added to the residual stream, and the sum normalized, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic

from evenkeel._spec import BaseNormOptions, machine_epsilon
from evenkeel.functional._common import overridden
from evenkeel.functional._rows import add_rows
from evenkeel.functional._rows_reference import add_rows_reference
from evenkeel.functional._specs import keyword_options, row_spec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from torch import Tensor

    from evenkeel._spec import EpsMode, ResidualRounding


def least_epsilon(input: Tensor, residual: Tensor) -> float:
    """The machine epsilon of the sum's arithmetic."""
    return min(machine_epsilon(getattr(addend, "dtype", None)) for addend in (input, residual))


@keyword_options(BaseNormOptions)
def add_layer_norm_reference(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual_rounding: ResidualRounding = "rounded",
    **options: Unpack[BaseNormOptions],
) -> tuple[Tensor, Tensor]:
    """`add_layer_norm` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    spec = row_spec("add_layer_norm", "moments", eps, residual_rounding=residual_rounding, **options)
    return add_rows_reference(input, residual, weight, bias, len(normalized_shape), spec)


@keyword_options(BaseNormOptions)
def add_rms_norm_reference(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual_rounding: ResidualRounding = "rounded",
    **options: Unpack[BaseNormOptions],
) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    eps = least_epsilon(input, residual) if eps is None else eps
    spec = row_spec("add_rms_norm", "rms", eps, residual_rounding=residual_rounding, **options)
    return add_rows_reference(input, residual, weight, None, len(normalized_shape), spec)


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    residual_rounding: ResidualRounding = "rounded",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Add a branch to the residual stream and layer-normalize the sum, in one pass over memory.

    .. math:: h = x + r, \quad
        y = \frac{h - \mu}{\sqrt{\sigma^2 + \epsilon}} \, (\text{weight\_offset} + \gamma) + \beta

    The addends may differ in dtype: a float32 stream with bfloat16 branches keeps the stream exact. The sum is
    computed in float32 (float64 where either addend is float64) and returned in residual's dtype; y has input's.

    Args:
        input: (\*, \*normalized_shape), the branch, any floating dtype, any strides.
        residual: the same shape, the stream, any floating dtype, any strides.
        normalized_shape: the trailing sizes that share statistics.
        weight: γ, of shape normalized_shape, any floating dtype.
        bias: β, of shape normalized_shape, any floating dtype.
        eps: ε, added to the variance (or as ``eps_mode`` says).
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(σ, ε).
        weight_offset: added to the weight before use, in float32 (1 for the (1 + γ) family).
        residual_rounding: ``rounded`` normalizes the sum as the stream holds it: the bits of adding and normalizing
            one after the other, and nothing but the stream is kept for the backward. ``unrounded`` normalizes the sum
            before it is rounded to residual's dtype: more accurate in 16 bits, but both addends are kept. In float32
            the two are one.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.

    Returns:
        (y, new residual), of the input's shape.

    Raises:
        InvalidInputError: shapes or dtypes do not fit.
        InvalidArgumentError: an unknown option.
        BackendError: the backend is missing or cannot run this input.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> y, stream = F.add_layer_norm(torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 2.0, 3.0]), (4,))
        >>> stream
        tensor([1., 2., 3., 4.])
        >>> y
        tensor([-1.3416, -0.4472,  0.4472,  1.3416])

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, on the sum of a residual connection (He et al., 2015).
    """
    if has_torch_function_variadic(input, residual, weight, bias):
        more: dict[str, Any] = {"weight": weight, "bias": bias, "eps": eps, "eps_mode": eps_mode, "backend": backend}
        more |= {"weight_offset": weight_offset, "residual_rounding": residual_rounding}
        return overridden(add_layer_norm, (input, residual, weight, bias), input, residual, normalized_shape, **more)
    spec = row_spec("add_layer_norm", "moments", eps, eps_mode, weight_offset, "late", residual_rounding)
    return add_rows("add_layer_norm", spec, input, residual, normalized_shape, weight, bias, backend)


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    residual_rounding: ResidualRounding = "rounded",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Add a branch to the residual stream and divide the sum by its root mean square, in one pass over memory.

    .. math:: h = x + r, \quad
        y = \frac{h}{\sqrt{\frac{1}{n}\sum_i h_i^2 + \epsilon}} \, (\text{weight\_offset} + \gamma)

    Dtypes, shapes and rounding are those of `add_layer_norm`.

    Args:
        input: (\*, \*normalized_shape), the branch, any floating dtype, any strides.
        residual: the same shape, the stream, any floating dtype, any strides.
        normalized_shape: the trailing sizes that share the statistic.
        weight: γ, of shape normalized_shape, any floating dtype.
        eps: ε; None means the machine epsilon of the arithmetic (float32's for float32, bfloat16 and float16).
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(rms, ε).
        weight_offset: added to the weight before use, in float32 (1 for the (1 + γ) family).
        residual_rounding: ``rounded`` normalizes the sum as the stream holds it, ``unrounded`` before it is rounded.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.

    Returns:
        (y, new residual), of the input's shape.

    Raises:
        InvalidInputError: shapes or dtypes do not fit.
        InvalidArgumentError: an unknown option.
        BackendError: the backend is missing or cannot run this input.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> y, stream = F.add_rms_norm(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0]), (2,), eps=0.0)
        >>> y, stream
        (tensor([0.8485, 1.1314]), tensor([3., 4.]))

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, on the sum of a residual connection.
    """
    if has_torch_function_variadic(input, residual, weight):
        more: dict[str, Any] = {"weight": weight, "eps": eps, "eps_mode": eps_mode, "backend": backend}
        more |= {"weight_offset": weight_offset, "residual_rounding": residual_rounding}
        return overridden(add_rms_norm, (input, residual, weight), input, residual, normalized_shape, **more)
    eps = least_epsilon(input, residual) if eps is None else eps
    spec = row_spec("add_rms_norm", "rms", eps, eps_mode, weight_offset, "late", residual_rounding)
    return add_rows("add_rms_norm", spec, input, residual, normalized_shape, weight, None, backend)
