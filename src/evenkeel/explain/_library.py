"""The library's own function for each norm, on the same input in its own dtype: what the walk is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from evenkeel import functional as F
from evenkeel._errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import EpsMode
    from evenkeel.explain._setup import Setup

__all__ = ["library_output"]

ROW_LIMIT = 256  # groups with a mask that no function takes are compared one by one, at most so many


def library_output(setup: Setup, x: Tensor) -> tuple[str, Tensor] | None:
    """The name of a library function and its output in the input's shape, or None where none serves this case."""
    try:
        if setup.norm.key == "dyt":
            return "dyt", dyt(setup, x)
        if setup.given or setup.norm.family == "minmax":
            return "batch_norm in evaluation mode", remembered(setup, x)
        if setup.norm.key in ("batch", "instance", "group"):
            mask = channel_mask(setup)
            if not setup.masked or mask is not None:
                return f"{setup.norm.key}_norm", channels(setup, x, mask)
        name = "rms_norm" if setup.norm.family == "rms" else "layer_norm"
        found = masked_rows(setup, x) if setup.masked else rows(setup, x)
        return None if found is None else (name, found)
    except InvalidInputError:  # one value for each statistic, which the per-channel norms refuse, as torch does
        return None


def parameters(setup: Setup) -> tuple[Tensor | None, Tensor | None]:
    """γ' and β as flat float64 tensors."""
    return tuple(None if p is None else torch.from_numpy(p) for p in (setup.gamma, setup.beta))  # type: ignore[return-value]


def grouped(setup: Setup, x: Tensor) -> Tensor:
    """The input with a row for each group."""
    return x.reshape(-1)[torch.from_numpy(setup.layout.order)]


def ungrouped(setup: Setup, values: Tensor) -> Tensor:
    """The inverse of `grouped`."""
    order = torch.from_numpy(setup.layout.order).reshape(-1)
    return torch.zeros_like(values.reshape(-1)).index_copy(0, order, values.reshape(-1)).reshape(setup.x.shape)


def dyt(setup: Setup, x: Tensor) -> Tensor:
    """DyT with its parameters along their axes."""
    shape = [n if a in setup.layout.parameter_axes else 1 for a, n in enumerate(setup.x.shape)]
    weight, bias = (None if p is None else p.reshape(shape) for p in parameters(setup))
    return F.dyt(x, setup.alpha, weight, bias)


def rows(setup: Setup, x: Tensor) -> Tensor:
    """LayerNorm or RMSNorm over the members of each group; standardization is LayerNorm over each column."""
    values = grouped(setup, x)
    members = (values.shape[1],)
    weight, bias = parameters(setup)
    if setup.norm.family == "rms":
        return ungrouped(setup, F.rms_norm(values, members, weight, setup.eps, eps_mode=mode(setup)))
    y = F.layer_norm(values, members, weight, bias, floor(setup), eps_mode=mode(setup))
    if setup.correction:
        y = y * (max(members[0] - 1, 1) / members[0]) ** 0.5
    return ungrouped(setup, y)


def mode(setup: Setup) -> EpsMode:
    """The ε mode; without ε, a clamp that only makes 0/0 a 0."""
    return setup.eps_mode if "eps" in setup.norm.options else "clamp"


def floor(setup: Setup) -> float:
    """ε, or the least number that the library's arithmetic divides by."""
    single = setup.tensor.dtype != torch.float64
    return setup.eps if "eps" in setup.norm.options else torch.finfo(torch.float32 if single else torch.float64).tiny


def masked_rows(setup: Setup, x: Tensor) -> Tensor | None:
    """The valid members of each group through LayerNorm or RMSNorm, group by group."""
    values = grouped(setup, x)
    if values.shape[0] > ROW_LIMIT:
        return None
    order = setup.layout.order
    valid = torch.from_numpy(setup.valid.reshape(-1)[order])
    which = setup.layout.parameter_of[order]
    done = []
    for row, keep, index in zip(values, valid, which, strict=True):
        result = torch.zeros_like(row)
        if keep.any():
            part, at = row[keep], index[keep.numpy()]
            weight, bias = (None if p is None else p[at] for p in parameters(setup))
            n = (len(part),)
            if setup.norm.family == "rms":
                y = F.rms_norm(part, n, weight, setup.eps, eps_mode=mode(setup))
            else:
                y = F.layer_norm(part, n, weight, bias, floor(setup), eps_mode=mode(setup))
            scale = (max(n[0] - 1, 1) / n[0]) ** 0.5 if setup.correction else 1.0
            result = result.masked_scatter(keep, y * scale if setup.correction else y)
        done.append(result)
    return ungrouped(setup, torch.stack(done))


def channel_mask(setup: Setup) -> np.ndarray | None:
    """The mask without its channel axis, if it is the same for every channel."""
    channel = setup.layout.channel_axis
    if not setup.masked:
        return None
    if channel is None:
        return setup.valid
    first = np.take(setup.valid, [0], axis=channel)
    return np.squeeze(first, channel) if (setup.valid == first).all() else None


def channels(setup: Setup, x: Tensor, mask: np.ndarray | None) -> Tensor:
    """Batch-, Instance- or GroupNorm, with samples and channels as the leading axes."""
    lay, key = setup.layout, setup.norm.key
    front = [a for a in (lay.sample_axis, lay.channel_axis) if a is not None]
    if key == "batch":
        moved = x.reshape(-1, 1) if lay.channel_axis is None else x.movedim(lay.channel_axis, min(1, x.ndim - 1))
    else:
        moved = x.movedim(front, list(range(len(front))))
        moved = moved.reshape(*[1] * (2 - len(front)), *moved.shape)
    valid = None if mask is None else torch.from_numpy(np.ascontiguousarray(mask))
    if valid is not None and valid.ndim < moved.ndim - 1:
        valid = valid.reshape(moved.shape[0], *moved.shape[2:])
    weight, bias = (None if p is None else p.reshape(-1).expand(moved.shape[1]) for p in parameters(setup))
    shared = {"mask": valid, "eps_mode": setup.eps_mode}
    if key == "group":
        y = F.group_norm(moved, lay.num_groups or 1, weight, bias, setup.eps, **shared)  # type: ignore[arg-type]
    elif key == "instance":
        y = F.instance_norm(moved, None, None, weight, bias, eps=setup.eps, **shared)  # type: ignore[arg-type]
    else:
        y = F.batch_norm(moved, None, None, weight, bias, True, eps=setup.eps, **shared)  # type: ignore[arg-type]
    if key == "batch":
        return y.reshape(-1) if lay.channel_axis is None else y.movedim(min(1, x.ndim - 1), lay.channel_axis)
    return y.reshape(y.shape[2 - len(front) :]).movedim(list(range(len(front))), front)


def remembered(setup: Setup, x: Tensor) -> Tensor:
    """Given statistics (or minimum and range) as BatchNorm's remembered ones, with a channel for each group."""
    values = grouped(setup, x)
    wide = values if setup.norm.family != "image" else values / setup.scale
    if setup.norm.family == "minmax":
        keep = torch.from_numpy(setup.valid.reshape(-1)[setup.layout.order])
        low, high = wide.masked_fill(~keep, torch.inf).amin(1), wide.masked_fill(~keep, -torch.inf).amax(1)
        spread = torch.where(high > low, high - low, 1.0)
        y = F.batch_norm(wide.T, low, spread.square(), eps=0.0).T * (setup.high - setup.low) + setup.low
    else:
        assert setup.mean is not None  # set_up sees to it
        variance = np.square(np.asarray(setup.std)) if setup.variance is None else setup.variance
        variance = variance if "eps" in setup.norm.options else np.where(variance == 0, 1.0, variance)
        statistics = torch.from_numpy(setup.mean), torch.from_numpy(variance)
        y = F.batch_norm(wide.T, *statistics, eps=setup.eps, eps_mode=setup.eps_mode).T
        index = torch.from_numpy(setup.layout.parameter_of[setup.layout.order])
        weight, bias = parameters(setup)
        y = y if weight is None else (y * weight[index]).to(x.dtype)
        y = y if bias is None else (y + bias[index]).to(x.dtype)
    y = ungrouped(setup, y)
    return torch.where(torch.from_numpy(setup.valid), y, 0.0).to(x.dtype)
