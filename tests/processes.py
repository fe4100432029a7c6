"""Run a function in several processes that form a gloo group, and collect what each returns."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def enter(rank, worker, count, folder, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    try:
        torch.manual_seed(0)
        torch.save(worker(rank, count, *arguments), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def run_in_processes(worker, count, folder, *arguments):
    """The results of ``worker(rank, count, *arguments)`` by rank; the worker is a function of an importable module."""
    mp.spawn(enter, (worker, count, str(folder), arguments), nprocs=count)
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(count)]
