"""LayerNorm as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel import functional as F
from evenkeel.nn._options import NormOptions, held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode


class LayerNorm(NormOptions, torch.nn.LayerNorm):
    r"""Normalize each position over its trailing axes: `evenkeel.functional.layer_norm` with parameters.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, (\text{weight\_offset} + \gamma) + \beta

    A drop-in `torch.nn.LayerNorm`: same constructor, same state_dict.

    Args:
        normalized_shape: the trailing sizes that share statistics, or one size.
        eps: ε.
        elementwise_affine: whether there are parameters.
        bias: whether β is one of them.
        device: where the parameters live.
        dtype: the dtype of the parameters.
        eps_mode: ``inside``, ``outside`` or ``clamp``.
        weight_offset: added to the weight before use; the weight starts at 1 - weight_offset.
        cast: ``late``, ``early`` or ``weight``.
        groups: into how many equal parts a row is, each with a statistic of its own; None for one.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.
        memory_efficient: keep the output for the backward instead of the input.

    Example:
        >>> import torch, evenkeel as ek
        >>> ek.nn.LayerNorm(4)(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()[0]
        -1.3416354656219482

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016.
    """

    _options = (*NormOptions._options, "groups", "memory_efficient")
    _answers = {"statistic": "moments", "shares": "token"}

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
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
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self._set_options(
            eps_mode=eps_mode,
            weight_offset=weight_offset,
            cast=cast,
            groups=groups,
            backend=backend,
            memory_efficient=memory_efficient,
        )

    def forward(self, input: Tensor) -> Tensor:
        r"""Normalize (\*, \*normalized_shape)."""
        return F.layer_norm(
            input,
            self.normalized_shape,
            held(self, "weight"),
            held(self, "bias"),
            self.eps,
            eps_mode=self.eps_mode,
            weight_offset=self.weight_offset,
            cast=self.cast,
            groups=self.groups,
            backend=self.backend,
            memory_efficient=self.memory_efficient,
        )
