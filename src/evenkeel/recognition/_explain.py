"""Why a module is none of the specs: forms that models use and a spec cannot say."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from evenkeel.recognition._probes import distance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from evenkeel.recognition._layout import Layout

__all__ = ["explanation"]

CLOSE = 2e-6
# what a divisor may be besides the root of the mean square and of the variance
DIVISORS: dict[str, tuple[bool, Callable[[Tensor, list[int]], Tensor]]] = {
    "it divides by the sample deviation (n - 1)": (True, lambda x, dims: x.std(dims, keepdim=True)),
    "it divides by the sample deviation (n - 1) without subtracting the mean": (
        False,
        lambda x, dims: x.std(dims, keepdim=True),
    ),
    "it divides by the deviation without subtracting the mean": (
        False,
        lambda x, dims: x.var(dims, correction=0, keepdim=True).sqrt(),
    ),
    "it subtracts the mean and divides by the root mean square": (
        True,
        lambda x, dims: x.square().mean(dims, keepdim=True).sqrt(),
    ),
    "it divides by the mean of the absolute values": (False, lambda x, dims: x.abs().mean(dims, keepdim=True)),
    "it divides by the largest absolute value": (False, lambda x, dims: x.abs().amax(dims, keepdim=True)),
    "it subtracts the mean alone": (True, lambda x, dims: x.new_ones(())),
}
USUAL: dict[str, tuple[bool, Callable[[Tensor, list[int]], Tensor]]] = {
    "a LayerNorm": (True, lambda x, dims: x.var(dims, correction=0, keepdim=True).sqrt()),
    "an RMSNorm": (False, lambda x, dims: x.square().mean(dims, keepdim=True).sqrt()),
    "a division by the length": (False, lambda x, dims: x.square().sum(dims, keepdim=True).sqrt()),
}


def explanation(y: Tensor, x: Tensor, layout: Layout, values: dict[str, Tensor], learned: list[str]) -> str:
    """Say in one line what the module does on a large input, or nothing if no known form repeats it."""
    dims = shared_axes(layout, x.ndim)
    if dims is None or any(values[name].numel() not in (1, *x.shape) for name in learned):
        return ""
    for text, (centred, divisor) in (DIVISORS | USUAL).items():
        base = (x - x.mean(dims, keepdim=True) if centred else x) / divisor(x, dims)
        for result, how in with_affine(base, x, layout, values, learned):
            if distance(y, result) <= CLOSE and text in DIVISORS:
                return f"{text}{how}, which a spec cannot say"
            difference = y - result
            if text in USUAL and (difference - difference.mean()).abs().max() <= CLOSE * y.abs().max():
                return f"{text}{how} with {difference.mean().item():.3g} added"
            ratio = (y / result).flatten()
            if text in USUAL and (ratio - ratio.median()).abs().max() <= CLOSE * ratio.median().abs():
                return f"{text}{how} times the constant {ratio.median().item():.6g}"
    fits = len(learned) == 1 and layout.shares == "token" and layout.channel_axis == -1
    return weighted_before(y, x, dims, values[learned[0]]) if fits else ""


def weighted_before(y: Tensor, x: Tensor, dims: list[int], weight: Tensor) -> str:
    """Say whether the weight multiplies the input instead of the normalized value."""
    for offset in (0.0, 1.0):
        scaled = x * (weight + offset)
        for text, (centred, divisor) in USUAL.items():
            base = scaled - scaled.mean(dims, keepdim=True) if centred else scaled
            if distance(y, base / divisor(scaled, dims)) <= CLOSE:
                return f"{text} of the input times the weight, which a spec cannot say"
    return ""


def shared_axes(layout: Layout, ndim: int) -> list[int] | None:
    """The axes of the statistics, or None where they are parts of an axis."""
    if layout.shares == "token" and layout.groups is None:
        return [1] if layout.channel_axis == 1 else list(range(-layout.axes, 0))
    if layout.shares in ("channel", "sample_channel"):
        axis = layout.channel_axis % ndim
        first = 0 if layout.shares == "channel" else 1
        return [d for d in range(first, ndim) if d != axis]
    return None


def with_affine(
    base: Tensor, x: Tensor, layout: Layout, values: dict[str, Tensor], learned: list[str]
) -> Iterator[tuple[Tensor, str]]:
    """Yield a normalized value with the learned tensors in every part they can play."""
    views = [broadcast(values[name], layout, x) for name in learned]
    if not views:
        yield base, ""
    for order in itertools.permutations(views):
        for offset in (0.0, 1.0):
            if len(order) == 1:
                yield base * (order[0] + offset), " with a weight"
            elif len(order) == 2:
                yield base * (order[0] + offset) + order[1], " with a weight and a bias"
    if len(views) == 1:
        yield base + views[0], " with a bias"


def broadcast(tensor: Tensor, layout: Layout, x: Tensor) -> Tensor:
    """A parameter along the axis of the channels."""
    if layout.channel_axis == -1 or tensor.ndim > 1:
        return tensor
    return tensor.reshape(-1, *[1] * (x.ndim - 2))
