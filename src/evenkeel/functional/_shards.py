"""Last-axis norms of distributed tensors: rows are independent, so each process normalizes those it holds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Run = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def is_distributed(tensor: Tensor | None) -> bool:
    """Whether this is a `DTensor`; if there is one, its module, which takes 0.7 s to import, has been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def rows_of_shards(name: str, run: Run, input: Any, axes: int, weight: Any, bias: Any) -> Tensor:
    """Run a norm over the trailing ``axes`` axes on the rows that each process holds.

    A shard of the normalized axes, and what is only a part of a sum, is gathered first; every other sharding stays.
    A parameter is gathered too, and its gradient is a partial sum over the processes that hold different rows.

    The operators have no sharding rules of their own (`register_sharding`): the statistics between forward and
    backward have one row per row of the input flattened, and for input sharded along its second axis there is no
    placement that says which.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate

    parameters = [p for p in (weight, bias) if p is not None]
    if not all(is_distributed(p) for p in parameters):
        raise InvalidInputError(
            f"{name}: got mixed torch.Tensor and DTensor; distribute weight and bias too, e.g. with "
            "torch.distributed.tensor.distribute_module"
        )
    kept = [p if p.is_shard() and p.dim % input.ndim < input.ndim - axes else Replicate() for p in input.placements]
    sums = [Partial() if p.is_shard() else Replicate() for p in kept]
    whole = [Replicate()] * len(kept)

    def local(parameter: Any) -> Any:
        if parameter is None:
            return None
        if list(parameter.placements) != whole:
            parameter = parameter.redistribute(placements=whole)
        return parameter.to_local(grad_placements=sums)

    if list(input.placements) != kept:
        input = input.redistribute(placements=kept)
    local_input = input.to_local(grad_placements=kept)
    y = run(local_input, local(weight), local(bias))
    stride = torch.empty(input.shape, device="meta").stride()
    return DTensor.from_local(y, input.device_mesh, kept, run_check=False, shape=input.shape, stride=stride)
