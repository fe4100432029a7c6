"""BatchNorm: one mean and variance per channel, over the batch and all positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.overrides import handle_torch_function, has_torch_function_variadic

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel.functional._channel_kernels import channels, choose_channels
from evenkeel.functional._channels import (
    check_activation,
    check_channels,
    check_pair,
    check_values_per_channel,
    check_vectors,
    count_shared,
    expand_mask,
    in_format_of,
    normalize_channels,
    update_running,
)
from evenkeel.functional._common import changed_options, check_options

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode


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
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    activation: str | None = None,
) -> Tensor:
    """`batch_norm` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    valid = expand_mask("batch_norm", mask, input)
    remembered = None if training or running_mean is None or running_var is None else (running_mean, running_var)
    dims = [d for d in range(input.ndim) if d != 1]
    y, mean, variance, count = normalize_channels(
        input, dims, weight, bias, valid, remembered, eps, eps_mode, weight_offset, cast, activation
    )
    if training:
        update_running(running_mean, running_var, momentum, mean.flatten(), variance.flatten(), count.flatten())
    return in_format_of(y, input)


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
    activation: str | None = None,
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
        backend: ``auto``, ``reference`` or ``cpu``; it chooses the kernels of the value and the first derivative.

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
    if has_torch_function_variadic(input, running_mean, running_var, weight, bias, mask):
        return handle_torch_function(
            batch_norm,
            (input, running_mean, running_var, weight, bias, mask),
            input,
            running_mean,
            running_var,
            weight=weight,
            bias=bias,
            training=training,
            momentum=momentum,
            eps=eps,
            **changed_options(
                mask=mask,
                eps_mode=eps_mode,
                weight_offset=weight_offset,
                cast=cast,
                activation=activation,
                backend=backend,
            ),
        )
    check_options("batch_norm", eps_mode, cast)
    check_activation("batch_norm", activation)
    if input.shape == (0,):
        return input.clone()  # torch takes an empty vector for a batch without examples and channels
    check_channels("batch_norm", input)
    if training:
        check_values_per_channel(input.shape)
        if eps <= 0.0:
            raise InvalidArgumentError(f"batch_norm eps must be positive during training, but got {eps}")
    elif eps < 0.0:
        raise InvalidArgumentError(f"batch_norm eps must be non-negative, but got {eps}")
    if training:
        check_pair("batch_norm", running_mean, running_var)
    for label, running in (("running_mean", running_mean), ("running_var", running_var)):
        if not training and running is None:
            raise InvalidInputError(f"batch_norm: {label} must be defined in evaluation mode; pass it or training=True")
    check_vectors(
        "batch_norm", input.shape[1], running_mean=running_mean, running_var=running_var, weight=weight, bias=bias
    )
    statistics, valid = (running_mean, running_var), expand_mask("batch_norm", mask, input)
    if choose_channels(input, (weight, bias), statistics, cast, valid, backend) == "reference":
        return batch_norm_reference(
            input,
            running_mean,
            running_var,
            weight,
            bias,
            training,
            momentum,
            eps,
            mask=mask,
            eps_mode=eps_mode,
            weight_offset=weight_offset,
            cast=cast,
            activation=activation,
        )
    remembered = (None, None) if training else statistics
    options = (eps, eps_mode, weight_offset, activation)
    y, moments, variance = channels(input, weight, bias, remembered, valid, 0, *options)
    if training and running_mean is not None:
        mean = moments[:, 0]
        count = count_shared(mean, input.shape, [d for d in range(input.ndim) if d != 1], valid)
        update_running(running_mean, running_var, momentum, mean, variance, count)
    return y
