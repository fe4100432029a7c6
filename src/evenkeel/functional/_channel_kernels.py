"""Autograd and choice of the backend of the channel norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel.functional._channels import (
    affine_per_channel,
    batch_and_positions,
    in_format_of,
    normalize_channels,
    normalize_groups,
    per_channel,
)
from evenkeel.functional._common import compute_dtype, needs_gradient, reference_gradients
from evenkeel.kernels import composite_required, runs_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import ChannelOptions, NormSpec
    from evenkeel.functional._specs import CallSpec


class ChannelsFunction(torch.autograd.Function):
    """First derivatives by the kernel; a backward that must itself be differentiable runs the reference."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        variance: Tensor | None,
        valid: Tensor | None,
        spec: NormSpec,
        options: ChannelOptions,
    ) -> tuple[Tensor, ...]:
        y, statistics, variances = torch.ops.evenkeel.channels_forward.default(
            x, weight, bias, mean, variance, valid, *options
        )
        ctx.spec, ctx.options, ctx.remembered = spec, options, mean is not None
        ctx.set_materialize_grads(False)  # nobody needs zeros for the statistics
        ctx.mark_non_differentiable(statistics, variances)
        ctx.save_for_backward(x, weight, bias, statistics, valid)
        return y, statistics, variances

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy = gradients[0]
        x, weight, bias, statistics, valid = ctx.saved_tensors
        needed: tuple[bool, bool, bool] = ctx.needs_input_grad[:3]
        if dy is None:
            return (None,) * 8
        if torch.is_grad_enabled() or composite_required():

            def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                used = statistics if ctx.remembered else None
                return channels_reference(x, weight, bias, used, valid, ctx.spec, ctx.options.groups)

            return (*reference_gradients(reference, (x, weight, bias), needed, dy), None, None, None, None, None)
        first = torch.ops.evenkeel.channels_backward.default(
            dy, x, weight, bias, statistics, valid, ctx.remembered, *ctx.options, *needed
        )
        return (*(g if need else None for g, need in zip(first, needed, strict=True)), None, None, None, None, None)


def channels_reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor | None,
    valid: Tensor | None,
    spec: NormSpec,
    groups: int,
) -> Tensor:
    """What the kernel computes, in plain PyTorch, with the remembered statistics that it used, if any."""
    if statistics is not None:
        mean, rest, reciprocal = (per_channel(column, x.ndim) for column in statistics[:, :3].unbind(1))
        centred = (x.to(mean.dtype) - mean) - rest
        normalized = (centred if valid is None else torch.where(valid, centred, 0.0)) * reciprocal
        y = affine_per_channel(normalized, weight, bias, spec, x.dtype, valid)
    elif groups:
        y = normalize_groups(x, groups, weight, bias, valid, spec)
    else:
        y, *_ = normalize_channels(x, batch_and_positions(x), weight, bias, valid, None, spec)
    return in_format_of(y, x)


def effective_cast(spec: CallSpec, input: Tensor, *parameters: Tensor | None) -> CallSpec:
    """Replace ``early`` by ``late`` where they agree: in the compute dtype, unless the result is promoted."""
    if spec.late is None or compute_dtype(input) != input.dtype:
        return spec
    dtypes = [p.dtype for p in parameters if p is not None]
    return spec if any(torch.promote_types(dtype, input.dtype) != input.dtype for dtype in dtypes) else spec.late


def runs_channel_kernel(
    backend: str,
    spec: CallSpec,
    input: Tensor,
    parameters: tuple[Tensor | None, ...],
    running: tuple[Tensor | None, ...],
    valid: Tensor | None,
) -> bool:
    """Whether the kernels run a channel norm with its `effective_cast`, or else the reference."""
    by_kernel = runs_kernel("channels", backend, spec, input, *parameters, *running, valid)
    return by_kernel and not needs_gradient(*running) and not composite_required()


def channels(
    spec: CallSpec,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    remembered: tuple[Tensor | None, Tensor | None],
    valid: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the kernel: y, the statistics, of which the mean is the first column, and their biased variances."""
    options = spec.channel_options(input.shape[1], remembered=remembered[0] is not None)
    tensors = (input, weight, bias, *remembered, valid)
    results: tuple[Tensor, Tensor, Tensor]
    if needs_gradient(input, weight, bias):
        results = ChannelsFunction.apply(*tensors, spec, options)
    else:
        results = torch.ops.evenkeel.channels_forward.default(*tensors, *options)
    return results
