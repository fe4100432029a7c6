"""The weights of the processes of a training in two numbers each, which they leave for each other to read.

The numbers go through the store that the processes met at. Nobody waits: a watch in one process alone does not hang.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from evenkeel.doctor.probes._records import Replica

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["Replicas"]

KEPT = 8  # steps whose numbers stay in the store
RANGE = 8388593  # of a number: a prime below 2²³, exact in float32; modulo a power of 2 exponents would not count
FACTOR = 2654435761  # Knuth's, by which neighbours get unlike weights
WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
COUNTS: Counter[str] = Counter()  # watches of the same model in this process


class Replicas:
    """Copies of a model in the processes of a group.

    Under DistributedDataParallel all weights are compared, otherwise those of norms alone, which are whole in every
    process of a tensor parallel training as well. Sharded weights are no copies.
    """

    def __init__(self, model: nn.Module, norms: Mapping[str, Tensor]) -> None:
        self.store = store_of_group()
        self.everything = any(isinstance(m, torch.nn.parallel.DistributedDataParallel) for m in model.modules())
        whole = {name: w for name, w in norms.items() if not hasattr(w, "to_local")}
        self.norms = list(whole.values())
        said = repr([(name, tuple(w.shape), str(w.dtype)) for name, w in whole.items()]) + type(model).__name__
        name = hashlib.sha256(said.encode()).hexdigest()[:16]
        COUNTS[name] += 1
        self.name = f"evenkeel/doctor/{name}/{COUNTS[name]}"
        self.steps: list[int] = []

    def digest(self, samples: Sequence[Tensor]) -> list[Tensor]:
        """Two numbers of the weights, on their device; nothing where there are no copies."""
        if self.store is None:
            return []
        own = [w.detach() for w in self.norms] + [s for s in samples if self.everything and not hasattr(s, "to_local")]
        own = [t.reshape(-1) for t in own if t.numel()]
        if not own:
            return []
        total = torch.zeros(2, dtype=torch.int64, device=own[0].device)
        for dtype in dict.fromkeys(t.dtype for t in own):
            bits = torch.cat([t for t in own if t.dtype == dtype]).view(WHOLE[dtype.itemsize]).long() % RANGE
            place = torch.arange(1, bits.numel() + 1, device=bits.device) * FACTOR
            first, second = place % RANGE, place // RANGE % (RANGE - 1) + 1
            total += torch.stack([(bits * first).sum(), (bits * second).sum()]) % RANGE
        return list((total % RANGE).float())

    def leave(self, step: int, numbers: Sequence[float]) -> None:
        """Leave the numbers of a step for the others."""
        if self.store is None or not numbers:
            return
        rank = distributed.get_rank()
        self.steps.append(step)
        try:
            self.store.set(self.key(step, rank), " ".join(f"{number:.0f}" for number in numbers))
            if len(self.steps) > KEPT:
                self.store.delete_key(self.key(self.steps.pop(0), rank))
        except RuntimeError:  # the process that keeps the store has ended: the training goes on without
            self.store = None

    def found(self) -> tuple[Replica, ...]:
        """The numbers of all processes at the last step that most of them have left some of."""
        if self.store is None or not distributed.is_initialized():
            return ()
        size = distributed.get_world_size()
        best: list[Replica] = []
        try:
            for step in reversed(self.steps):
                some = [r for rank in range(size) if (r := self.read(step, rank)) is not None]
                best = some if len(some) > max(len(best), 1) else best
                if len(best) == size:
                    break
        except RuntimeError:  # the process that keeps the store has ended
            return ()
        return tuple(best)

    def read(self, step: int, rank: int) -> Replica | None:
        """The numbers of a process, if it has left some."""
        key = self.key(step, rank)
        if self.store is None or not self.store.check([key]):
            return None
        first, second = map(float, self.store.get(key).decode().split())
        return Replica(rank=rank, step=step, digest=(first, second))

    def key(self, step: int, rank: int) -> str:
        """The name of a process's numbers in the store."""
        return f"{self.name}/{step}/{rank}"


def store_of_group() -> Any:
    """The store that the processes met at; None where there are no others."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() < 2:
        return None
    everybody = distributed.group.WORLD
    return None if everybody is None else everybody.get_group_store()
