"""BatchNorm over the batches of all processes, on torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from evenkeel import functional as F
from evenkeel._errors import InvalidInputError
from evenkeel.nn._batch_norm import BatchNormForward
from evenkeel.nn._options import DEFAULTS, NormOptions, without_default_bias

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode

# whose forward is BatchNorm's own: a subclass that overrides it does something more
PLAIN_FORWARDS = (
    torch.nn.modules.batchnorm._BatchNorm.forward,
    torch.nn.SyncBatchNorm.forward,
    BatchNormForward.forward,
)


class SyncBatchNorm(BatchNormForward, torch.nn.modules.batchnorm._BatchNorm):
    r"""BatchNorm whose training statistics are those of the batches of all processes together.

    .. math:: y = \frac{x - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    A drop-in `torch.nn.SyncBatchNorm` that runs on CPU too (gloo); not a subclass of it, because
    DistributedDataParallel refuses those on CPU, but of what all BatchNorms derive from. Each process contributes the
    count, the mean and the sum of squared differences of its valid values; they are merged in float64 in rank order,
    so that processes with batches of different sizes, or with nothing but padding, weigh what they hold and all of
    them get the same bits. In evaluation, without a process group and in a group of one process it is BatchNorm. Like
    every collective, a training forward, and a backward that needs the gradient of the input, have to be called by
    all processes.

    Args:
        num_features: number of channels.
        eps: ε.
        momentum: the share of the new statistic in the running one; None averages over all batches so far.
        affine: whether there are parameters.
        track_running_stats: whether running statistics are kept.
        process_group: whose batches belong together; all processes by default.
        device: where the parameters live.
        dtype: the dtype of the parameters.
        bias: whether β is one of them.
        eps_mode: ``inside``, ``outside`` or ``clamp``.
        weight_offset: added to the weight before use; the weight starts at 1 - weight_offset.
        cast: ``late`` or ``early``.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton`` (not for synchronized statistics, which are plain
            PyTorch).

    Example:
        >>> import torch, evenkeel as ek
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), ek.nn.BatchNorm2d(8, eps_mode="outside"))
        >>> ek.nn.SyncBatchNorm.convert_sync_batchnorm(model)[1].spec.eps_mode
        'outside'

    Source: Ioffe, Szegedy, "Batch Normalization", 2015; merging: Chan, Golub, LeVeque, "Updating Formulae and a
    Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    process_group: Any

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
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
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            device,
            dtype,
            **without_default_bias(bias),
        )
        self.process_group = process_group
        self._set_options(eps_mode=eps_mode, weight_offset=weight_offset, cast=cast, backend=backend)

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Normalize (batch, channels, \*positions); mask as in `evenkeel.functional.batch_norm`."""
        together = self.training and distributed.is_available() and distributed.is_initialized()
        if not together or not isinstance(input, torch.Tensor):
            return super().forward(input, mask)
        group = self.process_group or distributed.group.WORLD
        if distributed.get_world_size(group) == 1:
            return super().forward(input, mask)
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1 if mask is None else self._any_valid(mask, group))
            if self.momentum is None:
                momentum = 1.0 / max(1.0, float(self.num_batches_tracked))
        tracked = self.track_running_stats
        return F.sync_batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            momentum,
            self.eps,
            group=group,
            mask=mask,
            **{name: getattr(self, name) for name in NormOptions._options},
        )

    @staticmethod
    def _any_valid(mask: Tensor, group: Any) -> Tensor:
        """1 where any process of the group has something valid in its batch, otherwise 0."""
        valid = mask.any().long()
        distributed.all_reduce(valid, distributed.ReduceOp.MAX, group=group)
        return valid

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2 or input.shape[1] != self.num_features:
            raise InvalidInputError(
                f"SyncBatchNorm: expected at least 2D input (batch, {self.num_features}, ...), "
                f"but got shape {tuple(input.shape)}"
            )

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_group: Any = None) -> torch.nn.Module:
        """Put a `SyncBatchNorm` in the place of every BatchNorm of a model, with its parameters and options.

        Args:
            module: the model; it is changed, and returned unless it is a BatchNorm itself.
            process_group: whose batches belong together; all processes by default.

        Returns:
            The model.

        Raises:
            InvalidInputError: a BatchNorm has a forward of its own, which would be lost, or is lazy and has not seen
                an input yet; the model is left as it was.
        """
        for name, child in module.named_modules():
            check_convertible(name, child)
        converted: dict[torch.nn.Module, torch.nn.Module] = {}  # one that stands in several places stays one
        for parent in list(module.modules()):
            for name, child in parent._modules.items():
                if isinstance(child, torch.nn.modules.batchnorm._BatchNorm):
                    if child not in converted:
                        converted[child] = cls._converted(child, process_group)
                    parent._modules[name] = converted[child]
        is_norm = isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        return cls._converted(module, process_group) if is_norm else module

    @classmethod
    def _converted(cls, norm: Any, process_group: Any) -> SyncBatchNorm:
        options: dict[str, Any] = {name: getattr(norm, name, DEFAULTS[name]) for name in NormOptions._options}
        options |= without_default_bias(norm.bias is not None or not norm.affine)
        converted = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            norm.affine,
            norm.track_running_stats,
            process_group,
            **options,
        )
        for store in ("_parameters", "_buffers"):
            getattr(converted, store).update(getattr(norm, store))
        if hasattr(norm, "qconfig"):
            converted.qconfig = norm.qconfig
        converted.training = norm.training
        return converted


def check_convertible(name: str, module: torch.nn.Module) -> None:
    """Raise `InvalidInputError` where `SyncBatchNorm` would not do what a BatchNorm of this kind does."""
    if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        return
    if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
        raise InvalidInputError(
            f"convert_sync_batchnorm: {name or 'the module'} is a {type(module).__name__} without a number of "
            "channels; run the model on one batch first"
        )
    if isinstance(module, BatchNormForward) and module.activation is not None:
        raise InvalidInputError(
            f"convert_sync_batchnorm: {name or 'the module'} has an activation, which SyncBatchNorm has not; put the "
            "activation after it"
        )
    if type(module).forward not in (*PLAIN_FORWARDS, SyncBatchNorm.forward):
        raise InvalidInputError(
            f"convert_sync_batchnorm: {name or 'the module'} is a {type(module).__name__}, whose own forward would be "
            "lost; replace it by hand"
        )
