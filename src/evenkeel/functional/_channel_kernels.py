"""Autograd and choice of the backend of the channel norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel.functional._channels import (
    affine_per_channel,
    batch_and_positions,
    count_shared,
    in_format_of,
    normalize_channels,
    normalize_groups,
    per_channel,
    update_running,
)
from evenkeel.functional._common import compute_dtype, needs_gradient, reference_gradients
from evenkeel.functional._specs import spec_of_channels
from evenkeel.kernels import (
    channels_backward,
    channels_forward,
    composite_required,
    is_compiling,
    moves_with_launch,
    nodes,
    normalize_small_channels,
    runs_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from evenkeel._spec import NormSpec
    from evenkeel.functional._specs import CallSpec

    Moved = tuple[Tensor, Tensor, float | Tensor]  # running mean and variance, and their momentum


class ChannelsFunction(torch.autograd.Function):
    """First derivatives by the kernel; a backward that must itself be differentiable runs the reference.

    It returns y, the statistics and their variances, or y where that was ``computed`` already: y, the statistics, and
    whether these are remembered. ``moved`` as in `channels`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        remembered: tuple[Tensor, Tensor] | None,
        valid: Tensor | None,
        spec: CallSpec,
        computed: tuple[Tensor, Tensor, bool] | None = None,
        moved: Moved | None = None,
    ) -> Any:
        ctx.spec = spec
        if computed is not None:
            y, statistics, ctx.remembered = computed
            ctx.save_for_backward(x, weight, bias, statistics, None)
            return y
        given = remembered or (None, None)
        y, statistics, variances = channels_forward(x, (weight, bias), given, valid, spec.channel_options, moved)
        ctx.remembered = remembered is not None
        ctx.set_materialize_grads(False)  # nobody needs zeros for the statistics
        ctx.mark_non_differentiable(statistics, variances)
        ctx.save_for_backward(x, weight, bias, statistics, valid)
        return y, statistics, variances

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 8
        found = gradients(dy, ctx.saved_tensors, ctx.spec, ctx.remembered, ctx.needs_input_grad[:3])
        return (*found, None, None, None, None, None)


def gradients(
    dy: Tensor,
    saved: tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None],
    spec: CallSpec,
    remembered: bool,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx, dweight and dbias, None for one that is not needed. ``saved`` ends with statistics and mask."""
    found: Any
    if torch.is_grad_enabled() or composite_required():
        *inputs, statistics, valid = saved

        def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return channels_reference(x, weight, bias, statistics if remembered else None, valid, spec)

        found = reference_gradients(reference, inputs, needed, dy)
    else:
        found = channels_backward(dy, saved, spec.channel_options, remembered, needed)
    dx, dweight, dbias = found
    return dx if needed[0] else None, dweight if needed[1] else None, dbias if needed[2] else None


def node_gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    options: Sequence[float],
    needed: tuple[bool, bool, bool],
) -> Sequence[Tensor | None]:
    """dx, dweight and dbias for a compiled node that somebody observes, or of tensors that it does not take."""
    remembered, *encoded = options
    return gradients(dy, (x, weight, bias, statistics, None), spec_of_channels(encoded), bool(remembered), needed)


def channels_reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor | None,
    valid: Tensor | None,
    spec: NormSpec,
) -> Tensor:
    """What the kernel computes, in plain PyTorch, with the remembered statistics that it used, if any."""
    if statistics is not None:
        mean, rest, reciprocal = (per_channel(column, x.ndim) for column in statistics[:, :3].unbind(1))
        centred = (x.to(mean.dtype) - mean) - rest
        normalized = (centred if valid is None else torch.where(valid, centred, 0.0)) * reciprocal
        y = affine_per_channel(normalized, weight, bias, spec, x.dtype, valid)
    elif spec.shares == "channel":
        y, *_ = normalize_channels(x, batch_and_positions(x), weight, bias, valid, None, spec)
    else:
        y = normalize_groups(x, spec.groups or x.shape[1], weight, bias, valid, spec)
    return in_format_of(y, x)


def direct_channels(
    spec: CallSpec,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    remembered: bool = False,
    momentum: float = 0.0,
    *,
    contiguous: bool = False,
) -> Tensor | None:
    """Normalize dense tensors that fit, before any check, and move the running statistics that are not used.

    None for all others. ``contiguous`` is what the result has to be.
    """
    if spec.late is not None:
        return None
    y: Tensor | None
    options = spec.channel_options
    if nodes is not None:
        arguments = (input, weight, bias, *running, options, remembered, momentum, contiguous)
        y = None if is_compiling() else nodes.normalize_channels(*arguments)
        return y
    if needs_gradient(*running) or (contiguous and not is_contiguous(input)):
        return None
    trained = needs_gradient(input, weight, bias)
    y = computed = normalize_small_channels(input, (weight, bias), running, options, remembered, momentum, trained)
    if trained and computed is not None:
        y = ChannelsFunction.apply(input, weight, bias, None, None, spec, (*computed, remembered))
    return y


def is_contiguous(input: Tensor) -> bool:
    """Whether something is a contiguous tensor."""
    return isinstance(input, torch.Tensor) and input.layout is torch.strided and input.is_contiguous()


def laid_out(input: Tensor) -> Tensor:
    """A contiguous tensor of the same values: torch's copy of channels-last memory takes up to ten times as long."""
    dense: Tensor | None = None if nodes is None or is_compiling() else nodes.contiguous(input)
    return input.contiguous() if dense is None else dense


def move_running(
    running: tuple[Tensor | None, Tensor | None],
    statistics: Tensor,
    variances: Tensor,
    momentum: float | Tensor,
    shape: Sequence[int],
    valid: Tensor | None,
) -> None:
    """Move the running statistics towards those that the kernel returned for a batch of a shape."""
    count = count_shared(variances, shape, [d for d in range(len(shape)) if d != 1], valid)
    plain = type(count) is int and count > 0 and type(momentum) is float and not torch.compiler.is_compiling()
    if plain and all(t is not None and t.is_contiguous() for t in running):
        torch.ops.evenkeel.update_running.default(*running, statistics, variances, momentum, count)
    else:
        update_running(running, momentum, statistics[:, 0], variances, count)


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
    moved: Moved | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the kernel: y, the statistics, of which the mean is the first column, and their biased variances.

    ``moved`` only where `moves_with_launch`.
    """
    results: tuple[Tensor, Tensor, Tensor]
    if needs_gradient(input, weight, bias):
        given = None if remembered[0] is None else remembered
        results = ChannelsFunction.apply(input, weight, bias, given, valid, spec, None, moved)
    else:
        results = channels_forward(input, (weight, bias), remembered, valid, spec.channel_options, moved)
    return results


def tracked_channels(
    spec: CallSpec,
    input: Tensor,
    parameters: tuple[Tensor | None, Tensor | None],
    running: tuple[Tensor, Tensor],
    momentum: float | Tensor,
    valid: Tensor | None,
) -> Tensor:
    """Run the kernel with the input's statistics, towards which the running ones move."""
    with_launch = moves_with_launch(input, running, momentum)
    moved = (*running, momentum) if with_launch else None
    y, statistics, variances = channels(spec, input, *parameters, (None, None), valid, moved)
    if not with_launch:
        move_running(running, statistics, variances, momentum, input.shape, valid)
    return y
