"""GatedRMSNorm: an RMSNorm with a second input, as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel import functional as F
from evenkeel.nn._options import NormOptions, held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode, Gating


class GatedRMSNorm(NormOptions, torch.nn.RMSNorm):
    r"""RMSNorm of an input that the SiLU or sigmoid of a gate multiplies: `evenkeel.functional.gated_rms_norm`.

    .. math:: y = \frac{u}{\sqrt{\frac{1}{n}\sum_i u_i^2 + \epsilon}} \, (\text{weight\_offset} + \gamma), \quad
        u = x \, \mathrm{silu}(g)

    The weight and the state_dict are those of `torch.nn.RMSNorm`; the call takes the input and the gate. ``groups`` and
    ``cast="early"`` give the bits of Mamba 2, ``gating="silu_after"`` and ``cast="early"`` those of Qwen3-Next.

    Args:
        normalized_shape: the trailing sizes that share the statistic, or one size.
        eps: ε; None means the machine epsilon of the arithmetic.
        elementwise_affine: whether there is a weight.
        device: where the weight lives.
        dtype: the dtype of the weight.
        gating: ``silu_before``, ``silu_after``, ``sigmoid_before`` or ``sigmoid_after``.
        eps_mode: ``inside``, ``outside`` or ``clamp``.
        weight_offset: added to the weight before use; the weight starts at 1 - weight_offset.
        cast: ``late``, ``early`` or ``weight``.
        groups: into how many equal parts a row is, each with a root mean square of its own; None for one.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.GatedRMSNorm(4, eps=0.0, groups=2, gating="sigmoid_after")
        >>> norm(torch.tensor([3.0, 3.0, -5.0, 5.0]), torch.tensor([0.0, 50.0, 50.0, 50.0])).tolist()
        [0.5, 1.0, -1.0, 1.0]

    Source: Dao, Gu, "Transformers are SSMs", 2024.
    """

    _options = (*NormOptions._options, "groups", "gating")
    _answers = {"statistic": "rms", "shares": "token", "center": False}
    gating: Gating = "silu_before"

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        gating: Gating = "silu_before",
        eps_mode: EpsMode = "inside",
        weight_offset: float = 0.0,
        cast: Cast = "late",
        groups: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self._set_options(
            gating=gating, eps_mode=eps_mode, weight_offset=weight_offset, cast=cast, groups=groups, backend=backend
        )

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        r"""Normalize (\*, \*normalized_shape), gated by a tensor of the same shape."""
        return F.gated_rms_norm(x, gate, self.normalized_shape, held(self, "weight"), self.eps, **self._keywords())
