"""Batches as (rows, features) tables, with their masks and weights, and their moments."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evenkeel._errors import InvalidInputError
from evenkeel.data.statistics._moments import Moments
from evenkeel.data.statistics._tables import table_moments


def to_rows(x: Tensor, axis: tuple[int, ...]) -> Tensor:
    """(rows, features): the axes that are kept flattened into the last one, the others into the first."""
    if x.ndim <= len(axis):
        raise InvalidInputError(
            f"axis={axis} keeps {len(axis)} axes, so a batch needs more, but its shape is "
            f"{tuple(x.shape)}; use x.reshape(-1, 1) for one feature or x.reshape(1, -1) for one row"
        )
    try:
        kept = [range(x.ndim)[index] for index in axis]
    except IndexError as error:
        raise InvalidInputError(f"axis={axis} is out of range for the shape {tuple(x.shape)}") from error
    reduced = x.ndim - len(kept)
    x = x.movedim(kept, list(range(reduced, x.ndim)))
    rows, features = (int(np.prod(sizes, dtype=np.int64)) for sizes in (x.shape[:reduced], x.shape[reduced:]))
    return x.reshape(rows, features)


def full_mask(mask: Tensor, x: Tensor) -> Tensor:
    """A mask of x's shape from one of that shape or of its leading axes."""
    if mask.dtype != torch.bool:
        raise InvalidInputError(f"mask: expected Booleans (True where valid), but got {mask.dtype}")
    if mask.shape != x.shape[: mask.ndim]:
        raise InvalidInputError(
            f"mask: expected the batch's shape {tuple(x.shape)} or that of its first axes, but got {tuple(mask.shape)}"
        )
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)).expand(x.shape)


def row_weights(weight: Tensor, x: Tensor) -> Tensor:
    """A float64 weight for each row of a (rows, features) tensor."""
    if weight.numel() != x.shape[0]:
        raise InvalidInputError(
            f"weight: expected one for each of the {x.shape[0]} rows, but got {tuple(weight.shape)}"
        )
    weight = weight.reshape(-1).to(x.device, torch.float64)
    if not (torch.isfinite(weight) & (weight >= 0)).all():
        raise InvalidInputError("weight: expected finite numbers >= 0")
    return weight


def block_moments(x: Tensor, weight: Tensor | None, valid: Tensor | None) -> Moments:
    """The moments of the valid elements of a (rows, features) tensor."""
    if valid is None:
        return table_moments(x, weight=weight)
    masked = torch.where(valid, x.double(), torch.nan)
    moments = table_moments(masked, weight=weight)
    hidden = ~valid if weight is None else ~valid & (weight != 0)[:, None]  # rows of weight 0 count nowhere
    return moments._replace(missing=moments.missing - hidden.sum(0).cpu().numpy())
