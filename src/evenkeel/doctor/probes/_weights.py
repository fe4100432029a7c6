"""The norms of a checkpoint, told by the names and shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from evenkeel.doctor.probes._norms import numbers_of

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel.doctor.probes._records import NormState

__all__ = ["states_of_weights"]

NAMED = re.compile(r"(?i)(norm|(^|[._])(ln|bn|gn)[_\d]*(_f)?$|layer_?norm|batch_?norm)")
PARTS = {
    "weight": "weight",
    "gamma": "weight",
    "scale": "weight",
    "bias": "bias",
    "beta": "bias",
    "running_mean": "mean",
    "running_var": "variance",
}
FEWEST = 2  # channels of a norm


def states_of_weights(tensors: Mapping[str, Tensor]) -> list[NormState]:
    """Find the norms of a checkpoint: what has running statistics, or a vector as weight and a norm's name."""
    groups: dict[str, dict[str, Tensor]] = {}
    counts: dict[str, int] = {}
    for name, tensor in tensors.items():
        site, _, part = name.rpartition(".")
        if part == "num_batches_tracked":
            counts[site] = int(tensor)
        elif part in PARTS and tensor.is_floating_point():
            groups.setdefault(site, {})[PARTS[part]] = tensor
    found = []
    for site, parts in groups.items():
        vectors = all(sum(size > 1 for size in t.shape) <= 1 for t in parts.values())
        is_norm = "variance" in parts or f"{site}.weight" in tensors or NAMED.search(site) is not None
        if (
            is_norm
            and vectors
            and {"weight", "variance"} & set(parts)
            and max(t.numel() for t in parts.values()) >= FEWEST
        ):
            state = numbers_of(site, parts, offset_of(parts.get("weight")), None)
            shares = "channel" if "variance" in parts else "token"
            found.append(replace(state, shares=shares, updates=counts.get(site)))
    return found


def offset_of(weight: Tensor | None) -> float:
    """The offset that the weight is used with, told by whether it lies around 0 or 1; zeros start a branch."""
    if weight is None or not bool((weight != 0).any()):
        return 0.0
    return 1.0 if abs(float(weight.float().median())) < 0.5 and bool((weight < 0).any()) else 0.0
