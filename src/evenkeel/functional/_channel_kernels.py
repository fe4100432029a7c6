"""Autograd and dispatch of the per-channel norms: first derivatives by the kernel, higher ones by plain code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel.functional._channels import (
    affine_per_channel,
    exported,
    in_format_of,
    normalize_channels,
    per_channel,
    scaled_moments,
)
from evenkeel.functional._common import arithmetic_dtype, composite_required
from evenkeel.functional._export import exports_as_standard, standard_groups
from evenkeel.kernels import _ops

if TYPE_CHECKING:
    from torch import Tensor


def normalize_groups(
    input: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    valid: Tensor | None,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    cast: str,
    activation: str | None,
) -> Tensor:
    """Normalize each group of channels of each sample in plain PyTorch."""
    if exports_as_standard(eps_mode, valid):
        operator = standard_groups(groups, eps)
        return exported(operator, input, weight, bias, weight_offset, cast, activation)
    x = input.to(arithmetic_dtype(input)).unflatten(1, (groups, -1))  # (batch, groups, channels, *positions)
    grouped = None if valid is None else valid.unsqueeze(1)
    moments = scaled_moments(x, list(range(2, x.ndim)), grouped, eps, eps_mode)
    normalized = moments.normalized(eps_mode).flatten(1, 2)
    return affine_per_channel(normalized, weight, bias, valid, weight_offset, input.dtype, cast, activation)


def channels_reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    remembered: Tensor | None,
    valid: Tensor | None,
    groups: int,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    activation: str | None,
) -> Tensor:
    """What the kernel computes, in plain PyTorch; ``remembered`` holds the statistics of each channel, if given."""
    if remembered is not None:
        mean, rest, reciprocal = (per_channel(column, x.ndim) for column in remembered[:, :3].unbind(1))
        centred = (x.to(mean.dtype) - mean) - rest
        normalized = (centred if valid is None else torch.where(valid, centred, 0.0)) * reciprocal
        y = affine_per_channel(normalized, weight, bias, valid, weight_offset, x.dtype, "late", activation)
    elif groups:
        y = normalize_groups(x, groups, weight, bias, valid, eps, eps_mode, weight_offset, "late", activation)
    else:
        dims = [d for d in range(x.ndim) if d != 1]
        y, *_ = normalize_channels(x, dims, weight, bias, valid, None, eps, eps_mode, weight_offset, "late", activation)
    return in_format_of(y, x)


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
        *options: Any,
    ) -> tuple[Tensor, ...]:
        y, statistics, variances = _ops.channels_forward(x, weight, bias, mean, variance, valid, *options)
        ctx.set_materialize_grads(False)  # nobody needs zeros for the statistics
        ctx.mark_non_differentiable(statistics, variances)
        ctx.save_for_backward(x, weight, bias, statistics, valid)
        ctx.remembered = mean is not None
        ctx.options = options
        return y, statistics, variances

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy = gradients[0]
        x, weight, bias, statistics, valid = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        rest = (None,) * (3 + len(ctx.options))
        if dy is None:
            return (None, None, None, *rest)
        create_graph = torch.is_grad_enabled()
        if not create_graph and not composite_required():
            dx, dweight, dbias = _ops.channels_backward(
                dy, x, weight, bias, statistics, valid, ctx.remembered, *ctx.options, *needed
            )
            return dx if needed[0] else None, dweight if needed[1] else None, dbias if needed[2] else None, *rest
        with torch.enable_grad():
            # views, so that differentiation stops at this call's inputs where one of them depends on another
            inputs = [t.view_as(t) if need else t for t, need in zip((x, weight, bias), needed, strict=True)]
            arguments = (*inputs, statistics if ctx.remembered else None, valid, *ctx.options)
            y = channels_reference(*arguments)
            wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
            found = iter(torch.autograd.grad(y, wanted, dy, create_graph=create_graph))
        return (*(next(found) if need else None for need in needed), *rest)


def choose_channels(
    input: Tensor,
    parameters: tuple[Tensor | None, ...],
    statistics: tuple[Tensor | None, ...],
    cast: str,
    valid: Tensor | None,
    backend: str,
) -> str:
    """The backend of a per-channel norm: ``cpu``, or ``reference`` where plain code is needed."""
    present = [p for p in parameters if p is not None]
    running = [s for s in statistics if s is not None]
    if cast == "early" and arithmetic_dtype(input) == input.dtype:
        # rounding to the arithmetic dtype changes nothing, so early is late unless the result is promoted
        cast = "early" if any(torch.promote_types(p.dtype, input.dtype) != input.dtype for p in present) else "late"
    chosen = _ops.choose("channels", backend, input, *present, *running, early=cast == "early", mask=valid)
    differentiable = torch.is_grad_enabled() and any(s.requires_grad for s in running)
    return "reference" if differentiable or composite_required() else chosen


def channels(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    remembered: tuple[Tensor | None, Tensor | None],
    valid: Tensor | None,
    groups: int,
    eps: float,
    eps_mode: str,
    weight_offset: float,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the kernel: y, the statistics, of which the mean is the first column, and their biased variances.

    ``groups`` is the number of groups in a sample, or 0 for one statistic per channel over the batch.
    """
    options: tuple[Any, ...] = (groups, float(eps), eps_mode, float(weight_offset), activation)
    parameters = [p for p in (weight, bias) if p is not None]
    needs_grad = torch.is_grad_enabled() and (input.requires_grad or any(p.requires_grad for p in parameters))
    run = ChannelsFunction.apply if needs_grad else _ops.channels_forward
    return run(input, weight, bias, *remembered, valid, *options)
