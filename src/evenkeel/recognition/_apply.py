"""A spec and a layout applied to an input, by the functions of `evenkeel.functional`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evenkeel import functional as F
from evenkeel._spec import NormSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from evenkeel.recognition._layout import Layout

__all__ = ["Tensors", "apply_norm", "normalized_shape"]

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: torch.nn.Identity(),
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
}


class Tensors(NamedTuple):
    """What a norm has learned and remembers."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Tensors:
        """The same in a dtype."""
        return Tensors(*(None if t is None else t.to(dtype) for t in self))

    def flat(self, layout: Layout) -> Tensors:
        """The same without the axes of length 1 by which a channel's parameters broadcast."""
        if layout.channel_axis == -1 and layout.shares == "token":
            return self
        return Tensors(*(None if t is None else t.reshape(-1) for t in self))


def normalized_shape(x: Tensor, layout: Layout) -> tuple[int, ...]:
    """The sizes over which a row norm takes its statistic, with the channels last."""
    return (x.shape[1],) if layout.channel_axis == 1 else tuple(x.shape[x.ndim - layout.axes :])


def apply_norm(
    spec: NormSpec,
    layout: Layout,
    x: Tensor,
    tensors: Tensors,
    *,
    gate: Tensor | None = None,
    backend: str = "reference",
    momentum: float | None = None,
) -> Tensor:
    """Normalize ``x``: with the remembered statistics if there are any and ``momentum`` is None.

    With a momentum, the statistics are the batch's, which the remembered ones take in. The gate is a second input of
    the input's shape.
    """
    options: dict[str, Any] = {"eps_mode": spec.eps_mode, "backend": backend}
    if spec.statistic != "l2":
        options |= {"weight_offset": spec.weight_offset, "cast": spec.cast}
    weight, bias, mean, variance = tensors.flat(layout)
    if spec.shares == "token":
        if spec.statistic != "l2":
            options["groups"] = spec.groups
        if spec.gating is not None:
            shape = normalized_shape(x, layout)
            return F.gated_rms_norm(x, gate, shape, weight, spec.epsilon(x.dtype), gating=spec.gating, **options)
        rows = x.movedim(1, -1) if layout.channel_axis == 1 else x
        y = ACTIVATIONS[spec.activation](apply_rows(spec, rows, normalized_shape(x, layout), weight, bias, options))
        return moved(y, -1, 1, layout) if layout.channel_axis == 1 else y
    eps = spec.epsilon(x.dtype)
    if spec.shares == "sample_channel":
        fresh = momentum is not None or mean is None
        y = F.instance_norm(x, mean, variance, weight, bias, fresh, momentum or 0.0, eps, **options)
        return ACTIVATIONS[spec.activation](y)
    options["activation"] = spec.activation
    if spec.shares == "sample_group":
        return F.group_norm(x, layout.groups or 1, weight, bias, eps, **options)
    x = x.movedim(-1, 1) if layout.channel_axis == -1 else x
    training = momentum is not None or mean is None
    y = F.batch_norm(x, mean, variance, weight, bias, training, momentum or 0.0, eps, **options)
    return moved(y, 1, -1, layout) if layout.channel_axis == -1 else y


def moved(y: Tensor, axis: int, target: int, layout: Layout) -> Tensor:
    """The result with its axes in the order of the input, laid out as the module lays it out."""
    back = y.movedim(axis, target)
    return back.contiguous() if layout.contiguous else back


def apply_rows(
    spec: NormSpec,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Normalize the trailing axes."""
    eps = spec.epsilon(x.dtype)
    if spec.statistic == "moments":
        return F.layer_norm(x, shape, weight, bias, eps, **options)
    if spec.statistic == "rms":
        return F.rms_norm(x, shape, weight, eps, **options)
    return F.normalize(x, dim=tuple(range(-len(shape), 0)), eps=eps, **options)
