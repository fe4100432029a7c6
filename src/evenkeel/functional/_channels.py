"""What the per-channel norms share: masks, moments, running statistics and checks in torch's words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel.functional._common import (
    apply_affine,
    arithmetic_dtype,
    centred_moments,
    check_floating,
    composite_required,
    range_scale,
    reciprocal_scale,
)
from evenkeel.functional._export import exports_as_standard, standard, standard_channels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel.functional._export import Standard


ACTIVATIONS = (None, "relu", "silu")


def check_activation(name: str, activation: str | None) -> None:
    """Raise `InvalidArgumentError` unless the activation is known."""
    if activation not in ACTIVATIONS:
        raise InvalidArgumentError(f"{name}: activation must be None, 'relu' or 'silu', but got {activation!r}")


def activate(v: Tensor, activation: str | None) -> Tensor:
    """max(v, 0), v / (1 + exp(-v)), or v itself."""
    if activation == "relu":
        return torch.nn.functional.relu(v)
    return torch.nn.functional.silu(v) if activation == "silu" else v


def check_channels(name: str, input: Tensor) -> None:
    """Raise `InvalidInputError` unless the input is a floating (batch, channels, ...)."""
    if input.ndim < 2:
        raise InvalidInputError(
            f"{name}: expected at least 2 dimensions (batch, channels, ...), but got input of shape "
            f"{tuple(input.shape)}"
        )
    check_floating(name, "input", input)


def check_vectors(name: str, channels: int, **vectors: Tensor | None) -> None:
    """Raise `InvalidInputError`, in torch's words, unless each vector has one element for each channel."""
    for label, vector in vectors.items():
        if vector is None:
            continue
        check_floating(name, label, vector)
        if tuple(vector.shape) != (channels,):
            raise InvalidInputError(
                f"{name}: {label} should contain {channels} elements not {vector.numel()}: "
                f"it has shape {tuple(vector.shape)} and the input has {channels} channels"
            )


def check_pair(name: str, running_mean: Tensor | None, running_var: Tensor | None) -> None:
    """Raise `InvalidInputError`, in torch's words, where only one of the running statistics is given."""
    if (running_mean is None) != (running_var is None):
        raise InvalidInputError(f"{name}: running_mean and running_var must either both be None or neither be None")


def check_values_per_channel(shape: Sequence[int]) -> None:
    """Raise `InvalidInputError`, in torch's words, where each statistic would come from a single value."""
    if shape[0] * math.prod(shape[2:]) == 1:
        raise InvalidInputError(
            f"Expected more than 1 value per channel when training, got input size {list(shape)}; "
            "a single value has no spread: use a larger batch or evaluation mode"
        )


def expand_mask(name: str, mask: Tensor | None, input: Tensor) -> Tensor | None:
    """View a mask as (batch, 1, *positions) so that it broadcasts over the input (batch, channels, *positions)."""
    if mask is None:
        return None
    positions = (input.shape[0], *input.shape[2:])
    if mask.dtype != torch.bool:
        raise InvalidInputError(
            f"{name}: mask must be boolean (True where valid), but got {mask.dtype}; pass mask.bool()"
        )
    if mask.ndim == 0 or tuple(mask.shape) != positions[: mask.ndim]:
        raise InvalidInputError(
            f"{name}: mask must have the input's shape without its channel axis, {positions}, or its leading axes, "
            f"but got {tuple(mask.shape)} for an input of shape {tuple(input.shape)}"
        )
    leading = mask.reshape(mask.shape[0], 1, *mask.shape[1:], *[1] * (len(positions) - mask.ndim))
    return leading.expand(-1, 1, *input.shape[2:])


def per_channel(parameter: Tensor, ndim: int) -> Tensor:
    """View (channels,) so that it broadcasts over (batch, channels, *positions)."""
    return parameter.reshape(1, -1, *[1] * (ndim - 2))


def affine_per_channel(
    normalized: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    valid: Tensor | None,
    weight_offset: float,
    dtype: torch.dtype,
    cast: str,
    activation: str | None,
) -> Tensor:
    """Scale and shift each channel, apply the activation, round to ``dtype``, and set what is not valid to 0.

    Where cast is ``early``, the activation is applied to the rounded result, as it would be on its own.
    """
    ndim = normalized.ndim
    weight = None if weight is None else per_channel(weight, ndim)
    bias = None if bias is None else per_channel(bias, ndim)
    affine_dtype = normalized.dtype if cast == "late" else dtype
    y = activate(apply_affine(normalized, weight, bias, weight_offset, affine_dtype, cast), activation)
    y = y.to(dtype) if cast == "late" else y
    return y if valid is None else torch.where(valid, y, 0.0)


def exported(
    operator: Standard,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    weight_offset: float,
    cast: str,
    activation: str | None,
) -> Tensor:
    """torch's operator where everything is valid, with the activation before the one rounding, or after the early."""

    def affine(x: Tensor, w: Tensor | None, b: Tensor | None, offset: float, dtype: torch.dtype, order: str) -> Tensor:
        return affine_per_channel(x, w, b, None, offset, dtype, order, activation)

    def activated(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return activate(operator(x, w, b), activation)

    run = activated if cast == "late" else operator
    return standard(run, input, weight, bias, weight_offset, cast, affine)


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


def scaled_moments(x: Tensor, dims: list[int], valid: Tensor | None, eps: float, eps_mode: str) -> ScaledMoments:
    """`shared_moments`, for values of any size (`range_scale`)."""
    scaling = range_scale(x, dims, eps, eps_mode, valid)
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
    eps: float,
    eps_mode: str,
    weight_offset: float,
    cast: str,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize over ``dims`` with the input's statistics, or with remembered ones: y, mean, variance, count."""
    x = input.to(arithmetic_dtype(input))
    if remembered is None:
        moments = scaled_moments(x, dims, valid, eps, eps_mode)
    else:
        mean, variance = per_channel(remembered[0], x.ndim).to(x.dtype), per_channel(remembered[1], x.ndim).to(x.dtype)
        centred = x - mean
        if valid is not None:  # 0 rather than what lies in the padding, whose inf or NaN would reach dweight
            centred = torch.where(valid, centred, 0.0)
        moments = ScaledMoments(centred, variance, eps, mean, variance, mean)
    *_, mean, variance, count = moments
    if exports_as_standard(eps_mode, valid):
        operator = standard_channels(remembered, 0 in dims, eps)
        y = exported(operator, input, weight, bias, weight_offset, cast, activation)
        return y, mean, variance, count
    normalized = moments.normalized(eps_mode)
    y = affine_per_channel(normalized, weight, bias, valid, weight_offset, input.dtype, cast, activation)
    return y, mean, variance, count


def count_shared(statistic: Tensor, shape: Sequence[int], dims: list[int], valid: Tensor | None) -> Tensor | int:
    """How many valid elements of an input share each statistic over ``dims``, which include all positions."""
    if valid is None:
        return math.prod([shape[d] for d in dims])
    return valid.sum(dims).to(statistic.dtype).expand_as(statistic)


@torch.no_grad()
def update_running(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    mean: Tensor,
    variance: Tensor,
    count: Tensor | int,
) -> None:
    """running <- (1 - momentum) running + momentum statistic, in place, with the unbiased variance.

    mean, variance and count are (channels,), or (samples, channels): then each sample that has valid elements
    counts once. A channel without any valid element keeps its running statistics. A single count is everyone's.
    """
    if type(count) is int and type(momentum) is float and mean.ndim == 1:  # four operators instead of fifteen
        unbias = count / max(count - 1, 1)
        for running, statistic, factor in ((running_mean, mean, 1.0), (running_var, variance, unbias)):
            if running is not None and count > 0:
                running.mul_(1 - momentum).add_(statistic, alpha=momentum * factor)
        return
    if not isinstance(count, torch.Tensor):
        count = mean.new_full((), count).expand_as(mean)
    unbiased = variance * (count / (count - 1).clamp_min(1))
    for running, statistic in ((running_mean, mean), (running_var, unbiased)):
        if running is None:
            continue
        seen = count > 0
        if statistic.ndim == 2:
            # divided first: the sum may leave the range in which the mean is
            statistic = (torch.where(seen, statistic, 0.0) / seen.sum(0).clamp_min(1)).sum(0)
            seen = seen.any(0)
        running.copy_(torch.where(seen, (1 - momentum) * running + momentum * statistic, running))
