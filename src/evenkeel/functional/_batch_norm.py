"""BatchNorm: one mean and variance per channel, over the batch and all positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._spec import ChannelNormOptions
from evenkeel.functional._channel_checks import (
    check_channels,
    check_pair,
    check_values_per_channel,
    check_vectors,
    expand_mask,
)
from evenkeel.functional._channel_kernels import (
    channels,
    direct_channels,
    effective_cast,
    runs_channel_kernel,
    tracked_channels,
)
from evenkeel.functional._channels import tracked_reference
from evenkeel.functional._common import check_tensor, overridden
from evenkeel.functional._specs import channel_spec, keyword_options

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor

    from evenkeel._spec import Activation, Cast, EpsMode


@keyword_options(ChannelNormOptions)
def batch_norm_reference(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    **options: Unpack[ChannelNormOptions],
) -> Tensor:
    """`batch_norm` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    spec = channel_spec("batch_norm", "channel", eps, **options)
    running, valid = (running_mean, running_var), expand_mask("batch_norm", mask, input)
    return tracked_reference(spec, input, running, weight, bias, valid, training, momentum)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    activation: Activation | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Normalize each channel with the statistics of the batch (training) or remembered ones (inference).

    .. math:: y = \frac{x - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    In training, mean and biased variance are taken over the batch and all positions, so the examples of a batch
    influence each other; the running statistics (if given) are updated in place:
    running ← (1 − momentum) · running + momentum · batch, with the unbiased variance. In inference the running
    statistics are used. Positionally compatible with `torch.nn.functional.batch_norm`.

    Args:
        input: (batch, channels, \*positions), any floating dtype.
        running_mean: (channels,) or None; required when not training.
        running_var: (channels,) or None; required when not training.
        weight: γ, (channels,).
        bias: β, (channels,).
        training: use and remember the statistics of this batch.
        momentum: the share of the new statistic in the running one.
        eps: ε, added to the variance (or as ``eps_mode`` says); positive in training.
        mask: boolean, True where valid; (batch,), (batch, time), or the input's shape without its channel axis.
            Statistics come from the valid positions only, padded outputs and their gradients are 0. A channel
            without a single valid position leaves the running statistics as they are.
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(σ, ε).
        weight_offset: added to the weight before use, in float32 at least.
        cast: ``late`` rounds once at the end; ``early`` rounds the normalized value first.
        activation: ``relu`` or ``silu``, applied to the result before it is rounded, or None.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``; it chooses the kernels of the value and the first
            derivative.

    Returns:
        A tensor of the input's shape and dtype (``early``: the promoted dtype).

    Raises:
        InvalidInputError: shapes, dtypes or the mask do not fit, or one value per channel in training.
        InvalidArgumentError: an unknown option, or an eps that is not positive in training.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> x = torch.tensor([[3.0, 1.0], [4.0, 2.0], [5.0, 3.0]])
        >>> F.batch_norm(x, None, None, torch.tensor([2.0, 0.5]), torch.tensor([1.0, 0.0]), training=True)
        tensor([[-1.4495, -0.6124],
                [ 1.0000,  0.0000],
                [ 3.4495,  0.6124]])

    Source: Ioffe, Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
    Shift", 2015.
    """
    running = (running_mean, running_var)
    if has_torch_function_variadic(input, running_mean, running_var, weight, bias, mask):
        more: dict[str, Any] = {"weight": weight, "bias": bias, "training": training, "momentum": momentum, "eps": eps}
        more |= {"mask": mask, "eps_mode": eps_mode, "weight_offset": weight_offset, "cast": cast}
        more |= {"activation": activation, "backend": backend}
        return overridden(batch_norm, (input, *running, weight, bias, mask), input, *running, **more)
    spec = channel_spec("batch_norm", "channel", eps, eps_mode, weight_offset, cast, activation)
    if backend == "auto" and mask is None and (spec.eps > 0.0 if training else spec.eps >= 0.0):
        y = direct_channels(spec, input, weight, bias, running, not training, momentum)
        if y is not None:
            return y
    check_tensor("batch_norm", "input", input)
    if input.shape == (0,):
        return input.clone()  # torch takes an empty vector for a batch without examples and channels
    check_batch_norm(input, running_mean, running_var, training, eps)
    vectors = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    check_vectors("batch_norm", input.shape[1], **vectors)
    valid = expand_mask("batch_norm", mask, input)
    spec = effective_cast(spec, input, weight, bias)
    if not runs_channel_kernel(backend, spec, input, (weight, bias), running, valid):
        return tracked_reference(spec, input, running, weight, bias, valid, training, momentum)
    if training and running_mean is not None and running_var is not None:
        return tracked_channels(spec, input, (weight, bias), (running_mean, running_var), momentum, valid)
    return channels(spec, input, weight, bias, (None, None) if training else running, valid)[0]


def check_batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, training: bool, eps: float
) -> None:
    """Raise, in torch's words, where a batch cannot be normalized in this mode."""
    check_channels("batch_norm", input)
    if training:
        check_values_per_channel(input.shape)
        if eps <= 0.0:
            raise InvalidArgumentError(f"batch_norm eps must be positive during training, but got {eps}")
        check_pair("batch_norm", running_mean, running_var)
        return
    if eps < 0.0:
        raise InvalidArgumentError(f"batch_norm eps must be non-negative, but got {eps}")
    for label, running in (("running_mean", running_mean), ("running_var", running_var)):
        if running is None:
            raise InvalidInputError(f"batch_norm: {label} must be defined in evaluation mode; pass it or training=True")
