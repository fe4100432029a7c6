"""What the channel norms compute in plain PyTorch: masks, moments, affine and running statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from evenkeel.functional._common import (
    apply_affine,
    as_number,
    centred_moments,
    compute_dtype,
    range_scale,
    reciprocal_scale,
)
from evenkeel.functional._export import exports_as_standard, standard, standard_channels, standard_groups
from evenkeel.kernels import composite_required

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import NormSpec
    from evenkeel.functional._export import Standard


def activate(v: Tensor, activation: str | None) -> Tensor:
    """max(v, 0), v / (1 + exp(-v)), or v itself."""
    if activation == "relu":
        return torch.nn.functional.relu(v)
    return torch.nn.functional.silu(v) if activation == "silu" else v


def batch_and_positions(x: Tensor) -> list[int]:
    """Every axis but the channels'."""
    return [d for d in range(x.ndim) if d != 1]


def per_channel(parameter: Tensor, ndim: int) -> Tensor:
    """View (channels,) so that it broadcasts over (batch, channels, *positions)."""
    return parameter.reshape(1, -1, *[1] * (ndim - 2))


def affine_per_channel(
    normalized: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    spec: NormSpec,
    dtype: torch.dtype,
    valid: Tensor | None = None,
) -> Tensor:
    """Scale and shift each channel, apply the activation, round to ``dtype``, and set what is not valid to 0.

    Where cast is ``early``, the activation is applied to the rounded result, as it would be on its own.
    """
    ndim = normalized.ndim
    weight = None if weight is None else per_channel(weight, ndim)
    bias = None if bias is None else per_channel(bias, ndim)
    affine_dtype = normalized.dtype if spec.cast == "late" else dtype
    y = activate(apply_affine(normalized, weight, bias, spec, affine_dtype), spec.activation)
    y = y.to(dtype) if spec.cast == "late" else y
    return y if valid is None else torch.where(valid, y, 0.0)


def exported(operator: Standard, input: Tensor, weight: Tensor | None, bias: Tensor | None, spec: NormSpec) -> Tensor:
    """torch's operator where everything is valid, with the activation before the one rounding, or after the early."""

    def activated(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return activate(operator(x, w, b), spec.activation)

    run = activated if spec.cast == "late" else operator
    return standard(run, input, weight, bias, spec, affine_per_channel)


def in_format_of(y: Tensor, input: Tensor) -> Tensor:
    """Lay the result out as torch does: channels-last where the input is, otherwise contiguous."""
    if composite_required():  # under vmap a tensor does not tell its format
        return y
    for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if input.ndim == ndim and input.is_contiguous(memory_format=layout) and not input.is_contiguous():
            return y.contiguous(memory_format=layout)
    return y.contiguous()


def shared_moments(x: Tensor, dims: list[int], valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Centred values, mean, biased variance and count of the valid elements that share each statistic.

    Centred values are 0 where ``valid`` (broadcastable over x) is False. Where nothing is valid, the mean is 0,
    the variance 1 and the count 0.
    """
    if valid is None:
        count = x.new_full((), math.prod([x.shape[d] for d in dims]))
        centred, mean, variance = centred_moments(x, dims)
        return centred, mean, variance, count.expand_as(mean)
    repeats = math.prod([x.shape[d] for d in dims if valid.shape[d] == 1])  # axes along which the mask is constant
    count = valid.sum(dims, keepdim=True, dtype=x.dtype) * (repeats if repeats else 1)
    divisor = count.clamp_min(1)
    # where() rather than a product: what lies in the padding may be inf or NaN
    mean = torch.where(valid, x, 0.0).sum(dims, keepdim=True) / divisor
    centred = torch.where(valid, x - mean, 0.0)
    correction = centred.sum(dims, keepdim=True) / divisor
    centred = torch.where(valid, centred - correction, 0.0)
    variance = centred.square().sum(dims, keepdim=True) / divisor
    variance = torch.where(count > 0, variance, 1.0)  # with eps = 0, 0/0 would reach dweight
    return centred, mean + correction, variance, count.expand_as(mean)


class ScaledMoments(NamedTuple):
    """Centred values, their mean square and eps in units in which squares keep their bits; the moments themselves."""

    centred: Tensor
    square: Tensor
    eps: float | Tensor
    mean: Tensor
    variance: Tensor
    counts: Tensor

    def normalized(self, eps_mode: str) -> Tensor:
        """The centred values over the scale."""
        return self.centred * reciprocal_scale(self.square, self.eps, eps_mode)


def scaled_moments(x: Tensor, dims: list[int], valid: Tensor | None, spec: NormSpec) -> ScaledMoments:
    """`shared_moments`, for values of any size (`range_scale`)."""
    eps = spec.epsilon(x.dtype)
    scaling = range_scale(x, dims, eps, spec.eps_mode, valid)
    if scaling is None:
        centred, mean, variance, count = shared_moments(x, dims, valid)
        return ScaledMoments(centred, variance, eps, mean, variance, count)
    scale, scaled_eps = scaling
    centred, mean, square, count = shared_moments(x * scale, dims, valid)
    unit = scale.reciprocal()
    return ScaledMoments(centred, square, scaled_eps, mean * unit, square * unit * unit, count)


def normalize_channels(
    input: Tensor,
    dims: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    valid: Tensor | None,
    remembered: tuple[Tensor, Tensor] | None,
    spec: NormSpec,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize over ``dims`` with the input's statistics, or with remembered ones: y, mean, variance, count."""
    x = input.to(compute_dtype(input))
    eps = spec.epsilon(x.dtype)
    if remembered is None:
        moments = scaled_moments(x, dims, valid, spec)
    else:
        mean, variance = (per_channel(statistic, x.ndim).to(x.dtype) for statistic in remembered)
        centred = x - mean
        if valid is not None:  # 0 rather than what lies in the padding, whose inf or NaN would reach dweight
            centred = torch.where(valid, centred, 0.0)
        moments = ScaledMoments(centred, variance, eps, mean, variance, mean)
    *_, mean, variance, count = moments
    if exports_as_standard(spec, valid):
        operator = standard_channels(remembered, 0 in dims, eps)
        return exported(operator, input, weight, bias, spec), mean, variance, count
    y = affine_per_channel(moments.normalized(spec.eps_mode), weight, bias, spec, input.dtype, valid)
    return y, mean, variance, count


def normalize_groups(
    input: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, valid: Tensor | None, spec: NormSpec
) -> Tensor:
    """Normalize each group of channels of each sample."""
    if exports_as_standard(spec, valid):
        return exported(standard_groups(groups, spec.epsilon(input.dtype)), input, weight, bias, spec)
    x = input.to(compute_dtype(input)).unflatten(1, (groups, -1))  # (batch, groups, channels, *positions)
    grouped = None if valid is None else valid.unsqueeze(1)
    moments = scaled_moments(x, list(range(2, x.ndim)), grouped, spec)
    normalized = moments.normalized(spec.eps_mode).flatten(1, 2)
    return affine_per_channel(normalized, weight, bias, spec, input.dtype, valid)


def count_shared(statistic: Tensor, shape: Sequence[int], dims: list[int], valid: Tensor | None) -> Tensor | int:
    """How many valid elements of an input share each statistic over ``dims``, which include all positions."""
    if valid is None:
        return math.prod([shape[d] for d in dims])
    return valid.sum(dims).to(statistic.dtype).expand_as(statistic)


@torch.no_grad()
def update_running(
    running: tuple[Tensor | None, Tensor | None],
    momentum: float | Tensor,
    mean: Tensor,
    variance: Tensor,
    count: Tensor | int,
) -> None:
    """running <- (1 - momentum) running + momentum statistic, in place, with the unbiased variance.

    mean, variance and count are (channels,), or (samples, channels): then each sample that has valid elements
    counts once. A channel without any valid element keeps its running statistics. A single count is everyone's.
    """
    mean, variance = mean.detach(), variance.detach()  # traced, they are results of a graph
    if type(count) is int and type(momentum) is float and mean.ndim == 1:  # four operators instead of fifteen
        unbias = count / max(count - 1, 1)
        for remembered, statistic, factor in zip(running, (mean, variance), (1.0, unbias), strict=True):
            if remembered is not None and count > 0:
                remembered.mul_(1 - momentum).add_(statistic, alpha=momentum * factor)
        return
    if not (isinstance(momentum, torch.Tensor) and momentum.numel() == 1):
        momentum = as_number("batch_norm", "momentum", momentum)
    if not isinstance(count, torch.Tensor):
        count = mean.new_full((), count).expand_as(mean)
    unbiased = variance * (count / (count - 1).clamp_min(1))
    for remembered, statistic in zip(running, (mean, unbiased), strict=True):
        if remembered is None:
            continue
        seen = count > 0
        if statistic.ndim == 2:
            # divided first: the sum may leave the range in which the mean is
            statistic = (torch.where(seen, statistic, 0.0) / seen.sum(0).clamp_min(1)).sum(0)
            seen = seen.any(0)
        remembered.copy_(torch.where(seen, (1 - momentum) * remembered + momentum * statistic, remembered))


def tracked_reference(
    spec: NormSpec,
    input: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    weight: Tensor | None,
    bias: Tensor | None,
    valid: Tensor | None,
    use_input: bool,
    momentum: float,
) -> Tensor:
    """BatchNorm or InstanceNorm with the input's statistics, which update the running ones, or with these."""
    over_batch = spec.shares == "channel"
    dims = batch_and_positions(input) if over_batch else list(range(2, input.ndim))
    remembered = None if use_input or running[0] is None or running[1] is None else (running[0], running[1])
    y, *statistics = normalize_channels(input, dims, weight, bias, valid, remembered, spec)
    if use_input:
        update_running(running, momentum, *(t.flatten(0 if over_batch else 1) for t in statistics))
    return in_format_of(y, input) if over_batch else y.contiguous()
