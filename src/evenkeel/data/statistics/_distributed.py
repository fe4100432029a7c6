"""Statistics of all ranks of torch.distributed together."""

from __future__ import annotations

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from evenkeel._errors import BackendError
from evenkeel.data.statistics._merging import merge_all
from evenkeel.data.statistics._statistics import Statistics


def all_merge(statistics: Statistics, *, group: ProcessGroup | None = None) -> Statistics:
    """Merge the statistics of all ranks, which may have seen different numbers of rows; every rank gets the same bits.

    The states are gathered and merged in a balanced tree in the order of the ranks.

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
    mine = as_bytes(statistics, device)
    ranks = distributed.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks)]
    distributed.all_gather(sizes, torch.tensor([mine.numel()], device=device), group=group)
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8, device=device)
    padded[: mine.numel()] = mine
    states = [torch.empty_like(padded) for _ in range(ranks)]
    distributed.all_gather(states, padded, group=group)
    merged = merge_all(from_tensor(state[: int(size)]) for state, size in zip(states, sizes, strict=True))
    return broadcast(merged, device, group) if merged.keeps_quantiles else merged


def broadcast(statistics: Statistics, device: torch.device, group: ProcessGroup | None) -> Statistics:
    """The first rank's statistics on every rank: merging sketches takes random numbers, which differ between ranks."""
    state = as_bytes(statistics, device)
    size = torch.tensor([state.numel()], device=device)
    distributed.broadcast(size, group=group, group_src=0)
    if distributed.get_rank(group) != 0:
        state = torch.empty(int(size), dtype=torch.uint8, device=device)
    distributed.broadcast(state, group=group, group_src=0)
    return from_tensor(state)


def as_bytes(statistics: Statistics, device: torch.device) -> torch.Tensor:
    """The state as a tensor of bytes."""
    return torch.frombuffer(bytearray(statistics.to_bytes()), dtype=torch.uint8).to(device)


def from_tensor(state: torch.Tensor) -> Statistics:
    """The statistics whose state is in a tensor of bytes."""
    return Statistics.from_bytes(state.cpu().numpy().tobytes())
