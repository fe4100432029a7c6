"""A training under watch in a group of processes: DDP, and FSDP2, which shards its norms."""

import sys

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

import evenkeel as ek


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))


def train(model, seed):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    with ek.doctor.watch(model, optimizer, every=10) as watch:
        for _ in range(30):
            loss = (model(torch.randn(16, 4, generator=generator)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            watch.step(loss)
            optimizer.zero_grad()
    return watch.report()


def main():
    rank, size, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    report = train(nn.parallel.DistributedDataParallel(small()), rank)
    sites = [signal.site for signal in report.measured.signals]
    sys.stdout.write(f"ddp {len(report.findings)} {len(report.measured.steps)} {sites}\n")
    sharded = small()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (size,)))
    report = train(sharded, rank)
    sites = [signal.site for signal in report.measured.signals]
    sys.stdout.write(f"fsdp {len(report.findings)} {len(report.measured.steps)} {sites}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
