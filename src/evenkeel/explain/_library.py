"""The library's own function for each norm on the same input, in its dtype: the walk is compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenkeel import functional as F
from evenkeel._errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel.explain._setup import Setup

__all__ = ["library_output"]

ROW_LIMIT = 256  # groups with a mask that no function takes are compared one by one, at most so many


def library_output(setup: Setup, x: Tensor) -> tuple[str, Tensor] | None:
    """Return the name of the library's function and its output, or None where none serves this case."""
    try:
        if setup.spec.statistic == "none":
            return ("dyt", dyt(setup, x)) if setup.norm.key == "dyt" else None
        if setup.given or setup.norm.family == "minmax":
            return "batch_norm in evaluation mode", remembered(setup, x)
        if setup.norm.key in ("batch", "instance", "group"):
            mask = channel_mask(setup)
            if not setup.masked or mask is not None:
                return f"{setup.norm.key}_norm", channels(setup, x, mask)
        name = "rms_norm" if setup.norm.family == "rms" else "layer_norm"
        output = masked_rows(setup, x) if setup.masked else rows(setup, x)
        return None if output is None else (name, output)
    except InvalidInputError:  # one value for each statistic, which the per-channel norms refuse, as torch does
        return None


def parameters(setup: Setup) -> tuple[Tensor | None, Tensor | None]:
    """Return γ' and β as flat float64 tensors."""
    return tuple(None if p is None else torch.from_numpy(p) for p in (setup.gamma, setup.beta))  # type: ignore[return-value]


def grouped(setup: Setup, x: Tensor) -> Tensor:
    """Arrange the input as a row for each group."""
    return x.reshape(-1)[torch.from_numpy(setup.layout.order)]


def ungrouped(setup: Setup, values: Tensor) -> Tensor:
    """Arrange rows in the input's shape: the inverse of `grouped`."""
    order = torch.from_numpy(setup.layout.order).reshape(-1)
    return torch.zeros_like(values.reshape(-1)).index_copy(0, order, values.reshape(-1)).reshape(setup.x.shape)


def dyt(setup: Setup, x: Tensor) -> Tensor:
    """Run DyT with its parameters along their axes."""
    shape = [n if a in setup.layout.parameter_axes else 1 for a, n in enumerate(setup.x.shape)]
    weight, bias = (None if p is None else p.reshape(shape) for p in parameters(setup))
    return F.dyt(x, setup.alpha, weight, bias)


def rows(setup: Setup, x: Tensor) -> Tensor:
    """Normalize the members of each group as a row; standardization is LayerNorm over each column."""
    return ungrouped(setup, normalize(setup, grouped(setup, x), *parameters(setup)))


def normalize(setup: Setup, values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Run LayerNorm or RMSNorm over the last axis, with the sample deviation where the setup asks for it."""
    n = values.shape[-1]
    if setup.norm.family == "rms":
        return F.rms_norm(values, (n,), weight, **epsilon(setup))
    y = F.layer_norm(values, (n,), weight, bias, **epsilon(setup))
    return y * (max(n - 1, 1) / n) ** 0.5 if setup.correction else y


def epsilon(setup: Setup) -> dict[str, Any]:
    """Return ε and its mode; without ε, a clamp to the smallest normal number, so that 0/0 is 0."""
    if "eps" in setup.norm.options:
        return {"eps": setup.eps, "eps_mode": setup.spec.eps_mode}
    dtype = torch.float64 if setup.tensor.dtype == torch.float64 else torch.float32
    return {"eps": torch.finfo(dtype).tiny, "eps_mode": "clamp"}


def masked_rows(setup: Setup, x: Tensor) -> Tensor | None:
    """Normalize the valid members of each group, group by group; None for very many groups."""
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
            weight, bias = (None if p is None else p[index[keep.numpy()]] for p in parameters(setup))
            result = result.masked_scatter(keep, normalize(setup, row[keep], weight, bias))
        done.append(result)
    return ungrouped(setup, torch.stack(done))


def channel_mask(setup: Setup) -> np.ndarray | None:
    """Return the mask without its channel axis, if it is the same for every channel."""
    channel = setup.layout.channel_axis
    if not setup.masked:
        return None
    if channel is None:
        return setup.valid
    first = np.take(setup.valid, [0], axis=channel)
    return np.squeeze(first, channel) if (setup.valid == first).all() else None


def channels(setup: Setup, x: Tensor, mask: np.ndarray | None) -> Tensor:
    """Run Batch-, Instance- or GroupNorm with samples and channels as the leading axes."""
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
    shared = epsilon(setup) | {"mask": valid}
    if key == "group":
        y = F.group_norm(moved, lay.num_groups or 1, weight, bias, **shared)
    elif key == "instance":
        y = F.instance_norm(moved, None, None, weight, bias, **shared)
    else:
        y = F.batch_norm(moved, None, None, weight, bias, True, **shared)
    if key == "batch":
        return y.reshape(-1) if lay.channel_axis is None else y.movedim(min(1, x.ndim - 1), lay.channel_axis)
    return y.reshape(y.shape[2 - len(front) :]).movedim(list(range(len(front))), front)


def remembered(setup: Setup, x: Tensor) -> Tensor:
    """Run BatchNorm with given statistics (or minimum and range), a channel for each group."""
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
        y = F.batch_norm(wide.T, *statistics, eps=setup.eps, eps_mode=setup.spec.eps_mode).T
        index = torch.from_numpy(setup.layout.parameter_of[setup.layout.order])
        weight, bias = parameters(setup)
        y = y if weight is None else (y * weight[index]).to(x.dtype)
        y = y if bias is None else (y + bias[index]).to(x.dtype)
    y = ungrouped(setup, y)
    return torch.where(torch.from_numpy(setup.valid), y, 0.0).to(x.dtype)
