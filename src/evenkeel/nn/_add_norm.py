"""AddLayerNorm and AddRMSNorm: a residual addition and the norm after it, as one module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel import functional as F
from evenkeel.nn._options import NormOptions, held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import EpsMode, ResidualRounding


class AddOptions(NormOptions):
    """Mixin: the option of the addition, and no ``cast``."""

    _options = ("eps_mode", "weight_offset", "residual_rounding", "backend")
    residual_rounding: ResidualRounding = "rounded"


class AddLayerNorm(AddOptions, torch.nn.LayerNorm):
    r"""Add to the residual stream, then normalize: `evenkeel.functional.add_layer_norm` with parameters.

    .. math:: h = x + r, \quad
        y = \frac{h - \mu}{\sqrt{\sigma^2 + \epsilon}} \, (\text{weight\_offset} + \gamma) + \beta

    The parameters and the state_dict are those of `torch.nn.LayerNorm`; the call takes two tensors and returns two.

    Args:
        normalized_shape: the trailing sizes that share statistics, or one size.
        eps: ε.
        elementwise_affine: whether there are parameters.
        bias: whether β is one of them.
        device: where the parameters live.
        dtype: the dtype of the parameters.
        eps_mode: ``inside``, ``outside`` or ``clamp``.
        weight_offset: added to the weight before use; the weight starts at 1 - weight_offset.
        residual_rounding: ``rounded`` normalizes the sum as the stream holds it, ``unrounded`` before it is rounded.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.AddLayerNorm(4)
        >>> y, stream = norm(torch.ones(4), torch.tensor([0.0, 1.0, 2.0, 3.0]))
        >>> stream.tolist(), round(y[0].item(), 4)
        ([1.0, 2.0, 3.0, 4.0], -1.3416)

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016.
    """

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
        residual_rounding: ResidualRounding = "rounded",
        backend: str = "auto",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self._set_options(
            eps_mode=eps_mode, weight_offset=weight_offset, residual_rounding=residual_rounding, backend=backend
        )

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        r"""Add (\*, \*normalized_shape) to residual: (normalized, new residual)."""
        return F.add_layer_norm(
            input,
            residual,
            self.normalized_shape,
            held(self, "weight"),
            held(self, "bias"),
            self.eps,
            **self._keywords(),
        )


class AddRMSNorm(AddOptions, torch.nn.RMSNorm):
    r"""Add to the residual stream, then divide by the root mean square: `evenkeel.functional.add_rms_norm`.

    .. math:: h = x + r, \quad
        y = \frac{h}{\sqrt{\frac{1}{n}\sum_i h_i^2 + \epsilon}} \, (\text{weight\_offset} + \gamma)

    The weight and the state_dict are those of `torch.nn.RMSNorm`; the call takes two tensors and returns two.

    Args:
        normalized_shape: the trailing sizes that share the statistic, or one size.
        eps: ε; None means the machine epsilon of the arithmetic.
        elementwise_affine: whether there is a weight.
        device: where the weight lives.
        dtype: the dtype of the weight.
        eps_mode: ``inside``, ``outside`` or ``clamp``.
        weight_offset: added to the weight before use; the weight starts at 1 - weight_offset.
        residual_rounding: ``rounded`` normalizes the sum as the stream holds it, ``unrounded`` before it is rounded.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.AddRMSNorm(2, eps=0.0)
        >>> y, stream = norm(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0]))
        >>> stream.tolist(), round(y[0].item(), 4)
        ([3.0, 4.0], 0.8485)

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

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
        residual_rounding: ResidualRounding = "rounded",
        backend: str = "auto",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self._set_options(
            eps_mode=eps_mode, weight_offset=weight_offset, residual_rounding=residual_rounding, backend=backend
        )

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        r"""Add (\*, \*normalized_shape) to residual: (normalized, new residual)."""
        return F.add_rms_norm(
            x,
            residual,
            self.normalized_shape,
            held(self, "weight"),
            self.eps,
            **self._keywords(),
        )
