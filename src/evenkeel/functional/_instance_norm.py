"""InstanceNorm: one mean and variance per sample and channel, over the positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch.overrides import has_torch_function_variadic

from evenkeel._errors import InvalidInputError
from evenkeel._spec import CastNormOptions
from evenkeel.functional._channel_checks import check_channels, check_pair, check_vectors, expand_mask
from evenkeel.functional._channel_kernels import (
    channels,
    direct_channels,
    effective_cast,
    laid_out,
    runs_channel_kernel,
)
from evenkeel.functional._channels import count_shared, tracked_reference, update_running
from evenkeel.functional._common import overridden
from evenkeel.functional._specs import channel_spec, keyword_options

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode


@keyword_options(CastNormOptions)
def instance_norm_reference(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    **options: Unpack[CastNormOptions],
) -> Tensor:
    """`instance_norm` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    spec = channel_spec("instance_norm", "sample_channel", eps, **options)
    running, valid = (running_mean, running_var), expand_mask("instance_norm", mask, input)
    return tracked_reference(spec, input, running, weight, bias, valid, use_input_stats, momentum)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    backend: str = "auto",
) -> Tensor:
    r"""Normalize each channel of each sample over its positions, then scale and shift per channel.

    .. math:: y = \frac{x - \mu_{nc}}{\sqrt{\sigma_{nc}^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    Positionally compatible with `torch.nn.functional.instance_norm`. Running statistics, if given, follow the mean
    over the samples of their own statistics (the variance unbiased), and are used when ``use_input_stats`` is False.

    Args:
        input: (batch, channels, \*positions), at least three axes, any floating dtype.
        running_mean: (channels,) or None.
        running_var: (channels,) or None.
        weight: γ, (channels,).
        bias: β, (channels,).
        use_input_stats: use the statistics of the input rather than the running ones.
        momentum: the share of the new statistic in the running one.
        eps: ε, added to the variance (or as ``eps_mode`` says).
        mask: boolean, True where valid; (batch,), (batch, time), or the input's shape without its channel axis.
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(σ, ε).
        weight_offset: added to the weight before use, in float32 at least.
        cast: ``late`` rounds once at the end; ``early`` rounds the normalized value first.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``; it chooses the kernels of the value and the first
            derivative.

    Returns:
        A tensor of the input's shape and dtype (``early``: the promoted dtype).

    Raises:
        InvalidInputError: shapes, dtypes or the mask do not fit, or a single position per channel.
        InvalidArgumentError: an unknown option.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> F.instance_norm(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]))
        tensor([[[-1.3416, -0.4472,  0.4472,  1.3416]]])

    Source: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization: The Missing Ingredient for Fast Stylization", 2016.
    """
    running = (running_mean, running_var)
    if has_torch_function_variadic(input, running_mean, running_var, weight, bias, mask):
        more: dict[str, Any] = {"weight": weight, "bias": bias, "use_input_stats": use_input_stats}
        more |= {"momentum": momentum, "eps": eps, "mask": mask, "eps_mode": eps_mode}
        more |= {"weight_offset": weight_offset, "cast": cast, "backend": backend}
        return overridden(instance_norm, (input, *running, weight, bias, mask), input, *running, **more)
    spec = channel_spec("instance_norm", "sample_channel", eps, eps_mode, weight_offset, cast)
    if backend == "auto" and mask is None and (running_mean is None or not use_input_stats):
        y = direct_channels(spec, input, weight, bias, running, not use_input_stats, 0.0, contiguous=True)
        if y is not None:
            return y
    vectors = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    check_instance_norm(input, running_mean, running_var, use_input_stats)
    check_vectors("instance_norm", input.shape[1], **vectors)
    valid = expand_mask("instance_norm", mask, input)
    spec = effective_cast(spec, input, weight, bias)
    if not runs_channel_kernel(backend, spec, input, (weight, bias), running, valid):
        return tracked_reference(spec, input, running, weight, bias, valid, use_input_stats, momentum)
    dense = laid_out(input)  # as torch does: the result is contiguous whatever the input's layout
    if not use_input_stats:
        return channels(spec, dense, weight, bias, running, valid)[0]
    y, moments, variance = channels(spec, dense, weight, bias, (None, None), valid)
    if running_mean is not None:
        mean, variance = (m.reshape(input.shape[:2]) for m in (moments[:, 0], variance))
        count = count_shared(mean, input.shape, list(range(2, input.ndim)), valid)
        update_running(running, momentum, mean, variance, count)
    return y


def check_instance_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, use_input_stats: bool
) -> None:
    """Raise, in torch's words, where a sample cannot be normalized with these statistics."""
    check_channels("instance_norm", input)
    if use_input_stats and math.prod(input.shape[2:]) == 1:
        raise InvalidInputError(
            f"instance_norm: Expected more than 1 spatial element when training, got input size {input.shape}; "
            "a single position has no spread"
        )
    check_pair("instance_norm", running_mean, running_var)
    if not use_input_stats and running_mean is None:
        raise InvalidInputError(
            "instance_norm: Expected running_mean and running_var to be defined when use_input_stats is false"
        )
