"""Statistics of all ranks of torch.distributed together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

from evenkeel._errors import BackendError
from evenkeel.data._statistics import Statistics, merge_all

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["all_merge"]


def all_merge(statistics: Statistics, *, group: ProcessGroup | None = None) -> Statistics:
    """Merge the statistics of all ranks, which may have seen different numbers of rows; every rank gets the same bits.

    Two collectives: the sizes of the states, then the states, merged in a balanced tree in the order of the ranks.

    Args:
        statistics: of this rank; they stay as they are.
        group: the ranks that take part; all by default.

    Returns:
        The statistics of all ranks together.

    Raises:
        BackendError: torch.distributed is not initialized.
        InvalidInputError: the ranks' statistics do not fit together.

    Example:
        >>> import tempfile, numpy as np, torch.distributed as dist
        >>> from evenkeel.data import Statistics, all_merge
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        ...     mean = all_merge(Statistics().update(np.eye(2))).mean
        ...     dist.destroy_process_group()
        >>> mean
        array([0.5, 0.5])
    """
    if not distributed.is_available() or not distributed.is_initialized():
        raise BackendError("all_merge: torch.distributed is not initialized; call init_process_group first")
    device = torch.device("cuda" if "nccl" in distributed.get_backend(group) else "cpu")
    mine = torch.frombuffer(bytearray(statistics.to_bytes()), dtype=torch.uint8).to(device)
    ranks = distributed.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks)]
    distributed.all_gather(sizes, torch.tensor([mine.numel()], device=device), group=group)
    largest = max(int(size) for size in sizes)
    padded = torch.zeros(largest, dtype=torch.uint8, device=device)
    padded[: mine.numel()] = mine
    states = [torch.empty_like(padded) for _ in range(ranks)]
    distributed.all_gather(states, padded, group=group)
    return merge_all(
        Statistics.from_bytes(state[: int(size)].cpu().numpy().tobytes())
        for state, size in zip(states, sizes, strict=True)
    )
