"""BatchNorm for vectors, sequences, images and volumes, and the lazy variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel import functional as F
from evenkeel.nn._lazy import LazyNormOptions
from evenkeel.nn._options import NormOptions, held, recorded_call, without_default_bias

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import Activation, Cast, EpsMode


class BatchNormForward(NormOptions):
    """The forward of the BatchNorm modules: torch.nn's, with options and a mask."""

    _answers = {"statistic": "moments", "shares": "channel"}
    _check_input_dim: Any
    running_mean: Any
    running_var: Any
    momentum: Any
    num_batches_tracked: Any
    track_running_stats: bool
    _options = (*NormOptions._options, "activation")

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Normalize (batch, channels, \*positions); mask as in `evenkeel.functional.batch_norm`."""
        is_batch = isinstance(input, torch.Tensor)  # FX's proxy can neither be asked nor counted
        if is_batch:
            self._check_input_dim(input)
        elif (call := recorded_call(self, input, mask)) is not None:
            return call
        momentum = 0.0 if self.momentum is None else self.momentum
        counter = held(self, "num_batches_tracked")
        if self.training and counter is not None and is_batch:
            counter.add_(1 if mask is None else mask.any())
            if self.momentum is None:  # the plain average over all batches so far
                # a number on the GPU would have to be waited for
                count = counter.clamp(min=1).double()
                momentum = count.reciprocal() if counter.is_cuda else 1.0 / float(count)
        mean, variance = held(self, "running_mean"), held(self, "running_var")
        remember = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            mean if remember else None,
            variance if remember else None,
            held(self, "weight"),
            held(self, "bias"),
            self.training or (mean is None and variance is None),
            momentum,
            self.eps,
            mask=mask,
            **self._keywords(),
        )


class BatchNormInit(BatchNormForward):
    """The constructor of the BatchNorm modules: torch.nn's, with options."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
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
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, **without_default_bias(bias)
        )
        self._set_options(
            eps_mode=eps_mode, weight_offset=weight_offset, cast=cast, activation=activation, backend=backend
        )


class BatchNorm1d(BatchNormInit, torch.nn.BatchNorm1d):
    r"""BatchNorm over (batch, channels) or (batch, channels, length).

    .. math:: y = \frac{x - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    A drop-in `torch.nn.BatchNorm1d`: same constructor, same state_dict; ``forward`` also takes a mask. The
    keyword-only options are those of `evenkeel.functional.batch_norm`; the weight starts at 1 - weight_offset.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.BatchNorm1d(3)
        >>> norm(torch.randn(4, 3, 5)).shape
        torch.Size([4, 3, 5])

    Source: Ioffe, Szegedy, "Batch Normalization", 2015.
    """


class BatchNorm2d(BatchNormInit, torch.nn.BatchNorm2d):
    r"""BatchNorm over (batch, channels, height, width).

    .. math:: y = \frac{x - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    A drop-in `torch.nn.BatchNorm2d`: same constructor, same state_dict; ``forward`` also takes a mask. The
    keyword-only options are those of `evenkeel.functional.batch_norm`; the weight starts at 1 - weight_offset.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.BatchNorm2d(3)
        >>> norm(torch.randn(4, 3, 5, 5)).shape
        torch.Size([4, 3, 5, 5])

    Source: Ioffe, Szegedy, "Batch Normalization", 2015.
    """


class BatchNorm3d(BatchNormInit, torch.nn.BatchNorm3d):
    r"""BatchNorm over (batch, channels, depth, height, width).

    .. math:: y = \frac{x - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    A drop-in `torch.nn.BatchNorm3d`: same constructor, same state_dict; ``forward`` also takes a mask. The
    keyword-only options are those of `evenkeel.functional.batch_norm`; the weight starts at 1 - weight_offset.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.BatchNorm3d(3)
        >>> norm(torch.randn(4, 3, 5, 5, 5)).shape
        torch.Size([4, 3, 5, 5, 5])

    Source: Ioffe, Szegedy, "Batch Normalization", 2015.
    """


class LazyBatchNorm1d(LazyNormOptions, BatchNormForward, torch.nn.LazyBatchNorm1d):
    """`BatchNorm1d` that takes its number of channels from the first input.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.LazyBatchNorm1d()
        >>> _ = norm(torch.randn(4, 3, 5))
        >>> type(norm).__name__, norm.num_features
        ('BatchNorm1d', 3)
    """

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(LazyNormOptions, BatchNormForward, torch.nn.LazyBatchNorm2d):
    """`BatchNorm2d` that takes its number of channels from the first input.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.LazyBatchNorm2d()
        >>> _ = norm(torch.randn(4, 3, 5, 5))
        >>> type(norm).__name__, norm.num_features
        ('BatchNorm2d', 3)
    """

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(LazyNormOptions, BatchNormForward, torch.nn.LazyBatchNorm3d):
    """`BatchNorm3d` that takes its number of channels from the first input.

    Example:
        >>> import torch, evenkeel as ek
        >>> norm = ek.nn.LazyBatchNorm3d()
        >>> _ = norm(torch.randn(4, 3, 5, 5, 5))
        >>> type(norm).__name__, norm.num_features
        ('BatchNorm3d', 3)
    """

    cls_to_become = BatchNorm3d
