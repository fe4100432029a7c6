"""gated_rms_norm: RMSNorm with a second input, whose SiLU or sigmoid multiplies what goes in or what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic

from evenkeel._spec import RowNormOptions, machine_epsilon
from evenkeel.functional._common import overridden
from evenkeel.functional._grouped_rows import grouped_rows, grouped_rows_reference, whole_groups
from evenkeel.functional._specs import keyword_options, row_spec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode, Gating


@keyword_options(RowNormOptions)
def gated_rms_norm_reference(
    input: Tensor,
    gate: Tensor | None,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    gating: Gating = "silu_before",
    **options: Unpack[RowNormOptions],
) -> Tensor:
    """`gated_rms_norm` in plain PyTorch, for any floating dtype: the definition (shapes are not checked)."""
    eps = machine_epsilon(input.dtype) if eps is None else eps
    spec = row_spec("gated_rms_norm", "rms", eps, gating=gating, **options)
    return grouped_rows_reference(input, gate, weight, None, len(normalized_shape), spec)


def gated_rms_norm(
    input: Tensor,
    gate: Tensor | None,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    gating: Gating = "silu_before",
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    groups: int | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Multiply by the SiLU or the sigmoid of a gate, before or after each row is divided by its root mean square.

    .. math:: y = \frac{u}{\sqrt{\frac{1}{n}\sum_i u_i^2 + \epsilon}} \, (\text{weight\_offset} + \gamma), \quad
        u = x \, \mathrm{silu}(g)

    That is ``silu_before`` (Mamba 2, Bamba, Zamba 2). ``silu_after`` divides x and multiplies y by silu(g)
    (Qwen3-Next, OLMo hybrid, Falcon H1); ``sigmoid_after`` multiplies by the sigmoid (Bailing, GLM 5). Gates and
    products are computed in float32, in float64 for float64 inputs, and not rounded in between.

    Args:
        input: (\*, \*normalized_shape), any floating dtype, any strides.
        gate: g, of the input's shape, any floating dtype; None leaves the gate out.
        normalized_shape: the trailing sizes that share the statistic.
        weight: γ, of shape normalized_shape, any floating dtype.
        eps: ε; None means the machine epsilon of the arithmetic (float32's for float32, bfloat16 and float16).
        gating: ``silu_before``, ``silu_after``, ``sigmoid_before`` or ``sigmoid_after``.
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(rms, ε).
        weight_offset: added to the weight before use, in float32 (1 for the (1 + γ) family).
        cast: as for `rms_norm`, with the gate before what is rounded early (``silu_before``) or after it.
        groups: into how many equal parts a row is, each with a root mean square of its own; None for one.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``, for the statistics; the gate is plain PyTorch.

    Returns:
        A tensor of the input's shape and dtype; with the gate before and ``early``, the promoted dtype of input and
        weight.

    Raises:
        InvalidInputError: shapes or dtypes do not fit, or the groups do not divide a row.
        InvalidArgumentError: an unknown option.
        BackendError: the backend is missing or cannot run this input.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> x, gate = torch.tensor([3.0, 3.0, -5.0, 5.0]), torch.tensor([0.0, 50.0, 50.0, 50.0])
        >>> F.gated_rms_norm(x, gate, (4,), eps=0.0, groups=2)
        tensor([ 0.0000,  1.4142, -1.0000,  1.0000])
        >>> F.gated_rms_norm(x, gate, (4,), eps=0.0, groups=2, gating="sigmoid_after")
        tensor([ 0.5000,  1.0000, -1.0000,  1.0000])

    Source: Dao, Gu, "Transformers are SSMs", 2024, section 7 (the norm before the output projection of Mamba 2).
    """
    if has_torch_function_variadic(input, gate, weight):
        more: dict[str, Any] = {"weight": weight, "eps": eps, "gating": gating, "eps_mode": eps_mode, "cast": cast}
        more |= {"weight_offset": weight_offset, "groups": groups, "backend": backend}
        return overridden(gated_rms_norm, (input, gate, weight), input, gate, normalized_shape, **more)
    if eps is None:
        eps = machine_epsilon(getattr(input, "dtype", None))
    groups = whole_groups("gated_rms_norm", groups)
    spec = row_spec("gated_rms_norm", "rms", eps, eps_mode, weight_offset, cast, groups=groups, gating=gating)
    return grouped_rows("gated_rms_norm", spec, input, normalized_shape, weight, None, backend, gate)
