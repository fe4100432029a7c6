"""RMSNorm as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel import functional as F
from evenkeel.nn._options import NormOptions, held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode


class RMSNorm(NormOptions, torch.nn.RMSNorm):
    r"""Divide each position by its root mean square: `evenkeel.functional.rms_norm` with a weight.

    .. math:: y = \frac{x}{\sqrt{\frac{1}{n}\sum_i x_i^2 + \epsilon}} \, (\text{weight\_offset} + \gamma)

    A drop-in `torch.nn.RMSNorm`: same constructor, same state_dict. It takes the place of transformers' norms too:
    ``cast="early"`` gives the bits of Llama, Mistral, Qwen2, Qwen3 and Phi3 in half precision, ``cast="weight"`` those
    of T5, ``weight_offset=1.0`` is for Gemma 1 to 3 and Qwen3-Next, the defaults for OLMo2 and Gemma 4.

    Args:
        normalized_shape: the trailing sizes that share the statistic, or one size.
        eps: ε; None means the machine epsilon of the arithmetic, on every torch version.
        elementwise_affine: whether there is a weight.
        device: where the weight lives.
        dtype: the dtype of the weight.
        eps_mode: ``inside``, ``outside`` or ``clamp``.
        weight_offset: added to the weight before use; the weight starts at 1 - weight_offset.
        cast: ``late``, ``early`` or ``weight``.
        groups: into how many equal parts a row is, each with a statistic of its own; None for one.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.
        memory_efficient: keep the output for the backward instead of the input.

    Example:
        >>> import torch, evenkeel as ek
        >>> gemma = ek.nn.RMSNorm(4, eps=1e-6, weight_offset=1.0)
        >>> gemma.weight.tolist(), gemma(torch.tensor([1.0, 1.0, 1.0, 1.0])).tolist()[0]
        ([0.0, 0.0, 0.0, 0.0], 0.9999995231628418)

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    _options = (*NormOptions._options, "groups", "memory_efficient")
    _answers = {"statistic": "rms", "shares": "token", "center": False}

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        eps_mode: EpsMode = "inside",
        weight_offset: float = 0.0,
        cast: Cast = "late",
        groups: int | None = None,
        backend: str = "auto",
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self._set_options(
            eps_mode=eps_mode,
            weight_offset=weight_offset,
            cast=cast,
            groups=groups,
            backend=backend,
            memory_efficient=memory_efficient,
        )

    def forward(self, x: Tensor) -> Tensor:
        r"""Normalize (\*, \*normalized_shape)."""
        return F.rms_norm(
            x,
            self.normalized_shape,
            held(self, "weight"),
            self.eps,
            eps_mode=self.eps_mode,
            weight_offset=self.weight_offset,
            cast=self.cast,
            groups=self.groups,
            backend=self.backend,
            memory_efficient=self.memory_efficient,
        )
