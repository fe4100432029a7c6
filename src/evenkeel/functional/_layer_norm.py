"""LayerNorm: mean and variance over the trailing axes of each position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic

from evenkeel._spec import RowNormOptions
from evenkeel.functional._common import overridden
from evenkeel.functional._grouped_rows import (
    grouped_rows,
    grouped_rows_reference,
    refuse_memory_efficient,
    whole_groups,
)
from evenkeel.functional._rows import rows
from evenkeel.functional._rows_reference import rows_reference
from evenkeel.functional._specs import keyword_options, row_spec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode


@keyword_options(RowNormOptions)
def layer_norm_reference(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    **options: Unpack[RowNormOptions],
) -> Tensor:
    """`layer_norm` in plain PyTorch, for any floating dtype: the definition (shapes are not checked)."""
    spec = row_spec("layer_norm", "moments", eps, **options)
    if spec.groups is not None:
        return grouped_rows_reference(input, None, weight, bias, len(normalized_shape), spec)
    return rows_reference(input, weight, bias, len(normalized_shape), spec)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    groups: int | None = None,
    backend: str = "auto",
    out: Tensor | None = None,
    memory_efficient: bool = False,
) -> Tensor:
    r"""Normalize each row to mean 0 and variance 1 over its trailing axes, then scale and shift.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, (\text{weight\_offset} + \gamma) + \beta

    with mean and biased variance over the axes of ``normalized_shape``. Positionally compatible with
    `torch.nn.functional.layer_norm`. Statistics and arithmetic are float32 for float32, bfloat16 and float16
    inputs and float64 for float64, whatever the dtype of weight and bias.

    Args:
        input: (\*, \*normalized_shape), any floating dtype, any strides.
        normalized_shape: the trailing sizes that share statistics.
        weight: γ, of shape normalized_shape, any floating dtype.
        bias: β, of shape normalized_shape, any floating dtype.
        eps: ε, added to the variance (or as ``eps_mode`` says).
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(σ, ε).
        weight_offset: added to the weight before use, in float32 (1 for the (1 + γ) family).
        cast: ``late`` rounds once at the end to the input's dtype; ``early`` rounds the normalized value first and
            then applies weight and bias in the promoted dtype; ``weight`` rounds it to the weight's dtype, if that
            has 16 bits, and returns the promoted dtype.
        groups: into how many equal parts a row is, each with a statistic of its own and its share of the affine: the
            groups of Mamba 2, the heads of Cohere with normalized_shape (heads, size); None for one.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``; it chooses the kernels of the value and the first
            derivative. Higher derivatives, forward mode and vmap always run the reference.
        out: a tensor to write the result into, resized to fit; not differentiable. It may be the input itself.
        memory_efficient: keep y for the backward instead of the input, and find the normalized values from it. The
            following layer keeps y anyway, so that nothing but a few statistics a row is kept here. It needs every
            \|weight_offset + γ\| to be at least 2⁻¹⁰ and every \|β\| at most 16 times that, allows no second
            derivative, and gradients carry the rounding of y.

    Returns:
        A tensor of the input's shape and dtype (``early``: the promoted dtype of input, weight and bias), or ``out``.

    Raises:
        InvalidInputError: shapes or dtypes do not fit (a `RuntimeError`, as in torch), ``out`` cannot take the
            result, or `memory_efficient` cannot divide by the weight.
        InvalidArgumentError: an unknown option.
        BackendError: the backend is missing or cannot run this input.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> F.layer_norm(torch.tensor([1.0, 2.0, 3.0, 4.0]), (4,))
        tensor([-1.3416, -0.4472,  0.4472,  1.3416])

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016.
    """
    if has_torch_function_variadic(input, weight, bias, out):
        more: dict[str, Any] = {"weight": weight, "bias": bias, "eps": eps, "eps_mode": eps_mode, "cast": cast}
        more |= {"weight_offset": weight_offset, "groups": groups, "backend": backend, "out": out}
        more |= {"memory_efficient": memory_efficient}
        return overridden(layer_norm, (input, weight, bias, out), input, normalized_shape, **more)
    if groups is not None:
        groups = whole_groups("layer_norm", groups)
        spec = row_spec("layer_norm", "moments", eps, eps_mode, weight_offset, cast, groups=groups)
        refuse_memory_efficient(memory_efficient)
        return grouped_rows("layer_norm", spec, input, normalized_shape, weight, bias, backend, out=out)
    spec = row_spec("layer_norm", "moments", eps, eps_mode, weight_offset, cast)
    return rows("layer_norm", spec, input, normalized_shape, weight, bias, backend, out, memory_efficient)
