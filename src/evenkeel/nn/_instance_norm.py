"""InstanceNorm for sequences, images and volumes, and the lazy variants."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from evenkeel import functional as F
from evenkeel._errors import InvalidInputError
from evenkeel.nn._lazy import LazyNormOptions
from evenkeel.nn._options import NormOptions, recorded_call, without_default_bias

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode


class InstanceNormForward(NormOptions):
    """The forward of the InstanceNorm modules: torch.nn's, with options and a mask."""

    _answers = {"statistic": "moments", "shares": "sample_channel"}
    _check_input_dim: Any
    running_mean: Any
    running_var: Any
    momentum: Any
    _get_no_batch_dim: Any
    num_features: int
    affine: bool
    track_running_stats: bool

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Normalize (batch, channels, \*positions) or the same without batch; mask likewise."""
        if not isinstance(input, torch.Tensor) or input.layout is not torch.strided or input.is_nested:
            # FX's proxy cannot be asked: taken for a batch; the function refuses the others
            call = recorded_call(self, input, mask)
            return self._apply_instance_norm(input, mask) if call is None else call
        self._check_input_dim(input)
        unbatched = input.ndim == self._get_no_batch_dim()
        axis = input.ndim - self._get_no_batch_dim()
        if input.shape[axis] != self.num_features:
            seen = f"{input.shape[axis]}, but num_features is {self.num_features}"
            if self.affine:
                raise InvalidInputError(
                    f"expected input's size at dim={axis} to match num_features ({self.num_features}), "
                    f"but got: {input.shape[axis]}."
                )
            warnings.warn(f"input's size at dim={axis} is {seen}; without affine it is not used", stacklevel=2)
        if unbatched:
            return self._apply_instance_norm(input.unsqueeze(0), None if mask is None else mask.unsqueeze(0)).squeeze(0)
        return self._apply_instance_norm(input, mask)

    def _apply_instance_norm(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
            mask=mask,
            **self._keywords(),
        )


class InstanceNormInit(InstanceNormForward):
    """The constructor of the InstanceNorm modules: torch.nn's, with options."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        eps_mode: EpsMode = "inside",
        weight_offset: float = 0.0,
        cast: Cast = "late",
        backend: str = "auto",
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, **without_default_bias(bias)
        )
        self._set_options(eps_mode=eps_mode, weight_offset=weight_offset, cast=cast, backend=backend)


class InstanceNorm1d(InstanceNormInit, torch.nn.InstanceNorm1d):
    r"""InstanceNorm over (batch, channels, length) or (channels, length).

    .. math:: y = \frac{x - \mu_{nc}}{\sqrt{\sigma_{nc}^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    A drop-in `torch.nn.InstanceNorm1d`: same constructor, same state_dict; ``forward`` also takes a mask. The
    keyword-only options are those of `evenkeel.functional.instance_norm`; the weight starts at 1 - weight_offset.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.InstanceNorm1d(3)
        >>> norm(torch.randn(4, 3, 5)).shape
        torch.Size([4, 3, 5])

    Source: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", 2016.
    """


class InstanceNorm2d(InstanceNormInit, torch.nn.InstanceNorm2d):
    r"""InstanceNorm over (batch, channels, height, width) or without batch.

    .. math:: y = \frac{x - \mu_{nc}}{\sqrt{\sigma_{nc}^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    A drop-in `torch.nn.InstanceNorm2d`: same constructor, same state_dict; ``forward`` also takes a mask. The
    keyword-only options are those of `evenkeel.functional.instance_norm`; the weight starts at 1 - weight_offset.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.InstanceNorm2d(3)
        >>> norm(torch.randn(4, 3, 5, 5)).shape
        torch.Size([4, 3, 5, 5])

    Source: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", 2016.
    """


class InstanceNorm3d(InstanceNormInit, torch.nn.InstanceNorm3d):
    r"""InstanceNorm over (batch, channels, depth, height, width) or without batch.

    .. math:: y = \frac{x - \mu_{nc}}{\sqrt{\sigma_{nc}^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    A drop-in `torch.nn.InstanceNorm3d`: same constructor, same state_dict; ``forward`` also takes a mask. The
    keyword-only options are those of `evenkeel.functional.instance_norm`; the weight starts at 1 - weight_offset.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.InstanceNorm3d(3)
        >>> norm(torch.randn(4, 3, 5, 5, 5)).shape
        torch.Size([4, 3, 5, 5, 5])

    Source: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", 2016.
    """


class LazyInstanceNorm1d(LazyNormOptions, InstanceNormForward, torch.nn.LazyInstanceNorm1d):
    """`InstanceNorm1d` that takes its number of channels from the first input.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.LazyInstanceNorm1d()
        >>> _ = norm(torch.randn(4, 3, 5))
        >>> type(norm).__name__, norm.num_features
        ('InstanceNorm1d', 3)
    """

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(LazyNormOptions, InstanceNormForward, torch.nn.LazyInstanceNorm2d):
    """`InstanceNorm2d` that takes its number of channels from the first input.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.LazyInstanceNorm2d()
        >>> _ = norm(torch.randn(4, 3, 5, 5))
        >>> type(norm).__name__, norm.num_features
        ('InstanceNorm2d', 3)
    """

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(LazyNormOptions, InstanceNormForward, torch.nn.LazyInstanceNorm3d):
    """`InstanceNorm3d` that takes its number of channels from the first input.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.LazyInstanceNorm3d()
        >>> _ = norm(torch.randn(4, 3, 5, 5, 5))
        >>> type(norm).__name__, norm.num_features
        ('InstanceNorm3d', 3)
    """

    cls_to_become = InstanceNorm3d
