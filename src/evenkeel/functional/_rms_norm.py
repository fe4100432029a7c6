"""RMSNorm: the root mean square over the trailing axes of each position; nothing is subtracted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic

from evenkeel._spec import RowNormOptions, machine_epsilon
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
def rms_norm_reference(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    **options: Unpack[RowNormOptions],
) -> Tensor:
    """`rms_norm` in plain PyTorch, for any floating dtype: the definition (shapes are not checked)."""
    eps = machine_epsilon(input.dtype) if eps is None else eps
    spec = row_spec("rms_norm", "rms", eps, **options)
    if spec.groups is not None:
        return grouped_rows_reference(input, None, weight, None, len(normalized_shape), spec)
    return rows_reference(input, weight, None, len(normalized_shape), spec)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    groups: int | None = None,
    backend: str = "auto",
    out: Tensor | None = None,
    memory_efficient: bool = False,
) -> Tensor:
    r"""Divide each row by its root mean square over its trailing axes, then scale.

    .. math:: y = \frac{x}{\sqrt{\frac{1}{n}\sum_i x_i^2 + \epsilon}} \, (\text{weight\_offset} + \gamma)

    Positionally compatible with `torch.nn.functional.rms_norm`. Statistics and arithmetic are float32 for
    float32, bfloat16 and float16 inputs and float64 for float64.

    Args:
        input: (\*, \*normalized_shape), any floating dtype, any strides.
        normalized_shape: the trailing sizes that share the statistic.
        weight: γ, of shape normalized_shape, any floating dtype.
        eps: ε; None means the machine epsilon of the arithmetic (float32's for float32, bfloat16 and float16).
        eps_mode: ``inside`` the root (torch, most language models), ``outside`` it (the authors' PyTorch code), or
            ``clamp``: x/max(rms, ε).
        weight_offset: added to the weight before use, in float32 (1 for the (1 + γ) family: Gemma, Qwen3-Next).
        cast: ``late`` rounds once at the end to the input's dtype; ``early`` rounds the normalized value first and
            then multiplies by the weight in the promoted dtype (the order of Hugging Face's Llama); ``weight`` rounds
            it to the weight's dtype, if that has 16 bits, and returns the promoted dtype (that of its T5).
        groups: into how many equal parts a row is, each with a statistic of its own and its share of the affine: the
            groups of Mamba 2, the heads of Cohere with normalized_shape (heads, size); None for one.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``; it chooses the kernels of the value and the first
            derivative.
        out: a tensor to write the result into, resized to fit; not differentiable. It may be the input itself.
        memory_efficient: keep y for the backward instead of the input, and find the normalized values from it. The
            following layer keeps y anyway, so that nothing but a few statistics a row is kept here. It needs every
            \|weight_offset + γ\| to be at least 2⁻¹⁰, allows no second
            derivative, and gradients carry the rounding of y.

    Returns:
        A tensor of the input's shape and dtype (``early``: the promoted dtype of input and weight), or ``out``.

    Raises:
        InvalidInputError: shapes or dtypes do not fit (a `RuntimeError`, as in torch), ``out`` cannot take the
            result, or `memory_efficient` cannot divide by the weight.
        InvalidArgumentError: an unknown option.
        BackendError: the backend is missing or cannot run this input.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> small = torch.full((4,), 1e-4)
        >>> modes = ("inside", "outside")
        >>> [round(F.rms_norm(small, (4,), eps=1e-6, eps_mode=mode)[0].item(), 4) for mode in modes]
        [0.0995, 0.9901]

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    if has_torch_function_variadic(input, weight, out):
        more: dict[str, Any] = {"weight": weight, "eps": eps, "eps_mode": eps_mode, "cast": cast, "backend": backend}
        more |= {"weight_offset": weight_offset, "groups": groups, "out": out, "memory_efficient": memory_efficient}
        return overridden(rms_norm, (input, weight, out), input, normalized_shape, **more)
    if eps is None:
        eps = machine_epsilon(getattr(input, "dtype", None))  # what is no tensor is refused below
    if groups is not None:
        groups = whole_groups("rms_norm", groups)
        spec = row_spec("rms_norm", "rms", eps, eps_mode, weight_offset, cast, groups=groups)
        refuse_memory_efficient(memory_efficient)
        return grouped_rows("rms_norm", spec, input, normalized_shape, weight, None, backend, out=out)
    spec = row_spec("rms_norm", "rms", eps, eps_mode, weight_offset, cast)
    return rows("rms_norm", spec, input, normalized_shape, weight, None, backend, out, memory_efficient)
