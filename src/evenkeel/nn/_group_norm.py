"""GroupNorm as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel import functional as F
from evenkeel._errors import InvalidInputError
from evenkeel.nn._options import NormOptions, held, without_default_bias

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import Activation, Cast, EpsMode


class GroupNorm(NormOptions, torch.nn.GroupNorm):
    r"""Normalize groups of channels of each sample: `evenkeel.functional.group_norm` with parameters.

    .. math:: y = \frac{x - \mu_{ng}}{\sqrt{\sigma_{ng}^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    A drop-in `torch.nn.GroupNorm`: same constructor, same state_dict; ``forward`` also takes a mask.

    Args:
        num_groups: how many groups the channels are divided into.
        num_channels: the number of channels.
        eps: ε.
        affine: whether there are parameters.
        device: where the parameters live.
        dtype: the dtype of the parameters.
        bias: whether β is one of them (torch ≥ 2.12 only takes False).
        eps_mode: ``inside``, ``outside`` or ``clamp``.
        weight_offset: added to the weight before use; the weight starts at 1 - weight_offset.
        cast: ``late`` or ``early``.
        activation: ``relu`` or ``silu``, applied to the result before it is rounded, or None.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.

    Example:
        >>> import torch, evenkeel as ek
        >>> ek.nn.GroupNorm(2, 4, eps=0.0)(torch.tensor([[1.0, 3.0, 10.0, 30.0]])).tolist()
        [[-1.0, 1.0, -1.0, 1.0]]

    Source: Wu, He, "Group Normalization", 2018.
    """

    _answers = {"statistic": "moments", "shares": "sample_group"}
    _options = (*NormOptions._options, "activation")

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        eps_mode: EpsMode = "inside",
        weight_offset: float = 0.0,
        cast: Cast = "late",
        activation: Activation | None = None,
        backend: str = "auto",
    ) -> None:
        if isinstance(num_groups, int) and num_groups <= 0:
            raise InvalidInputError(f"GroupNorm: Expected num groups to be greater than 0, but got {num_groups}")
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, **without_default_bias(bias))
        self._set_options(
            eps_mode=eps_mode, weight_offset=weight_offset, cast=cast, activation=activation, backend=backend
        )

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Normalize (batch, channels, \*positions); mask as in `evenkeel.functional.group_norm`."""
        return F.group_norm(
            input,
            self.num_groups,
            held(self, "weight"),
            held(self, "bias"),
            self.eps,
            mask=mask,
            **self._keywords(),
        )
