"""One of two processes that train a model under watch, with a fault; the first writes what both left."""

import dataclasses
import json
import sys
from pathlib import Path

import torch
from torch import distributed, nn

import evenkeel as ek

STEPS = 20


def model_of(kind, seed):
    torch.manual_seed(seed)
    if kind == "images":
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1))
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))


def averaged(model):
    for p in model.parameters():
        distributed.all_reduce(p.grad)
        p.grad /= 2


def main():
    fault, seed, rank, meeting, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5])
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    kind = "images" if "images" in fault else "table"
    alone = model_of(kind, seed)
    by_hand = "by hand" in fault
    model = alone if by_hand else nn.parallel.DistributedDataParallel(alone)
    rate = 1e-2 * (1 + rank * ("rates" in fault))
    optimizer = torch.optim.SGD(alone.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(100 * seed + rank)
    called = alone if "around" in fault else model
    with ek.doctor.watch(model, optimizer, every=10) as watch:
        for _ in range(STEPS):
            x = torch.randn(8, *((3, 8, 8) if kind == "images" else (8,)), generator=generator)
            loss = (called(x) - x.flatten(1).mean(1, keepdim=True)).square().mean()
            loss.backward()
            if by_hand and "not averaged" not in fault:
                averaged(alone)
            optimizer.step()
            watch.step(loss)
            optimizer.zero_grad()
    distributed.barrier()
    if rank == 0:
        found = watch.report().measured.replicas
        out.write_text(json.dumps([dataclasses.asdict(replica) for replica in found]))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
