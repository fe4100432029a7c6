"""Numbers of one norm's input, computed on its device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel.doctor.probes._norms import Site

__all__ = ["distances", "measure"]

FEWEST_POSITIONS = 64  # of each sample and channel
FEWEST_SAMPLES = 4  # of fewer it cannot be told how far the positions of one go together
MOST = 2**18  # elements that are looked at: rows, or positions of every sample, at equal distances


def measure(site: Site, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """Measure an input.

    Returns:
        Scalars on the device of the input: ``rms``; ``below_eps``: the share of the groups with a spread whose variance
        is below eps; ``mean_share``: the median of mean²/RMS²;
        ``groups`` and ``elements``; of a channel norm ``collapsed``: the share of channels without any spread,
        ``effective``: how many independent elements the batch's mean has, ``shift`` and ``ratio``: how far the
        remembered statistics are from the batch's; with a mask ``padded_shift``.
    """
    x = x.detach()
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    some = some_positions(site, x)
    groups, elements = size_of_groups(site, x)
    rows = grouped(site, some)
    if site.spec.shares == "token" and rows.numel() > MOST:
        rows = rows[:: math.ceil(rows.numel() / MOST)]
    rows = rows.to(wide)
    square = rows.square().mean(1)
    mean = rows.mean(1)
    power = square if site.spec.statistic != "moments" else rows.var(1, correction=0)
    # a row of zeros is padding, and a constant one has nothing to normalize
    spread = power > 0
    eps = site.spec.epsilon(x.dtype)
    below = spread & (power < eps) if site.spec.eps_mode == "inside" else spread & (power.sqrt() < eps)
    values = {
        "rms": square.mean().sqrt(),
        "below_eps": below.sum() / spread.sum().clamp(min=1),
        "mean_share": (mean.square() / square.clamp(min=torch.finfo(wide).tiny)).median(),
        "groups": torch.full((), groups, dtype=wide, device=x.device),
        "elements": torch.full((), elements, dtype=wide, device=x.device),
    }
    if site.spec.shares == "channel":
        values |= of_channels(site, some.to(wide), mean, power)
    if mask is not None:
        values |= of_padding(site, x.to(wide), mask)
    return {name: value.to(torch.float32) for name, value in values.items()}


def some_positions(site: Site, x: Tensor) -> Tensor:
    """The input of a norm over the batch at some positions of every sample; inputs of other norms as they are."""
    axis = site.layout.channel_axis
    positions = x.numel() // (x.shape[0] * x.shape[axis]) if x.numel() else 0
    if site.spec.shares != "channel" or axis != 1 or x.numel() <= MOST or positions < FEWEST_POSITIONS:
        return x
    step = min(math.ceil(x.numel() / MOST), positions // FEWEST_POSITIONS)
    # a number without a factor of 2 goes through rows of images as well
    return x.flatten(2)[:, :, :: step | 1]


def size_of_groups(site: Site, x: Tensor) -> tuple[int, int]:
    """How many groups of elements share a statistic, and how many elements each has."""
    if site.spec.shares == "token":
        elements = x.shape[1] if site.layout.channel_axis == 1 else math.prod(x.shape[x.ndim - site.layout.axes :])
        groups = x.numel() // max(1, elements)
    elif site.spec.shares == "channel":
        groups = x.shape[site.layout.channel_axis if x.ndim > 1 else -1]
    else:
        groups = x.shape[0] * (
            (site.spec.groups or site.layout.groups or 1) if site.spec.shares == "sample_group" else x.shape[1]
        )
    return groups, x.numel() // max(1, groups)


def grouped(site: Site, x: Tensor) -> Tensor:
    """The elements that share a statistic, in rows."""
    layout = site.layout
    if site.spec.shares == "token":
        if layout.channel_axis == 1:
            return x.movedim(1, -1).reshape(-1, x.shape[1])
        return x.reshape(-1, math.prod(x.shape[x.ndim - layout.axes :]))
    if site.spec.shares == "channel":
        axis = layout.channel_axis if x.ndim > 1 else -1
        return x.movedim(axis, 0).reshape(x.shape[axis], -1)
    if site.spec.shares == "sample_group":
        return x.reshape(x.shape[0] * (site.spec.groups or layout.groups or 1), -1)
    return x.reshape(x.shape[0] * x.shape[1], -1)


def of_channels(site: Site, x: Tensor, mean: Tensor, power: Tensor) -> dict[str, Tensor]:
    """Measure what only a statistic over the batch has."""
    axis = site.layout.channel_axis
    samples = x.movedim(axis, 1).reshape(x.shape[0], x.shape[axis], -1).mean(2)  # (samples, channels)
    count = x.numel() // x.shape[axis]
    values = {
        "collapsed": (power <= 1e-12 * mean.square() + 1e-24).to(x.dtype).mean(),
        "samples": x.new_full((), x.shape[0]),
    }
    if x.shape[0] >= FEWEST_SAMPLES:
        # the variance of a batch's mean is that of the samples' means over their number
        between = samples.var(0, correction=1).clamp(min=1e-30)
        values["effective"] = (x.shape[0] * power * count / (count - 1) / between).clamp(max=count).median()
    else:
        values["effective"] = values["samples"]
    if isinstance(site.module, torch.nn.SyncBatchNorm) and torch.distributed.is_initialized():
        values["effective"] = values["effective"] * torch.distributed.get_world_size()
    remembered, variance = site.tensor("mean"), site.tensor("variance")
    if remembered is not None and variance is not None and count > 1:
        batch, eps = power * count / (count - 1), site.spec.eps or 0.0
        known = remembered.to(x.dtype).reshape(-1), variance.to(x.dtype).reshape(-1)
        values["shift"], values["ratio"] = distances(mean, batch, *known, eps)
    return values


def distances(
    mean: Tensor, variance: Tensor, other: Tensor, other_variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """How far other statistics are from some, in the median channel: in deviations, and as a factor between both."""
    deviation = (variance + eps).sqrt()
    shift = ((mean - other).abs() / deviation).median()
    return shift, (deviation / (other_variance + eps).sqrt()).log().abs().median().exp()


def of_padding(site: Site, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Measure how far the statistic with padding is from that without, in deviations of the latter."""
    if site.spec.shares == "token" or x.ndim < 3:
        return {}
    axis = site.layout.channel_axis % x.ndim
    last = x.movedim(axis, -1)  # (samples, positions, channels)
    if tuple(last.shape[:-1]) != tuple(mask.shape) or bool(mask.all()):
        return {}
    weight = mask.to(x.dtype).unsqueeze(-1)
    dims = (0, 1) if site.spec.shares == "channel" else (1,)

    def moments(share: Tensor) -> tuple[Tensor, Tensor]:
        total = share.sum(dims, keepdim=True).clamp(min=1.0)
        mean = (last * share).sum(dims, keepdim=True) / total
        return mean, ((last - mean).square() * share).sum(dims, keepdim=True) / total

    (mean, variance), (clean, clean_variance) = moments(torch.ones_like(weight)), moments(weight)
    shift = (mean - clean).abs() / (clean_variance + (site.spec.eps or 0.0)).sqrt()
    ratio = ((variance + 1e-12) / (clean_variance + 1e-12)).sqrt().log().abs()
    return {"padded_shift": torch.maximum(shift, ratio).median()}
