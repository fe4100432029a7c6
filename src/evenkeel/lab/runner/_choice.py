"""The executor that a user's choice of workers names."""

from __future__ import annotations

from evenkeel._options.workers import Workers
from evenkeel.lab.runner._executors import Executor
from evenkeel.lab.runner._machine import cores
from evenkeel.lab.runner._processes import Processes


def executor_of(workers: int | Workers, *, threads: int, gpu: bool = False) -> Executor:
    """Return who does the jobs; a context, within which it does.

    Args:
        workers: how many at a time, and where.
        threads: of the processor, that each job takes.
        gpu: whether a job computes on one.
    """
    chosen = workers if isinstance(workers, Workers) else Workers(count=workers)
    if chosen.engine == "ray":
        from evenkeel.lab.runner._ray import RayTasks

        return RayTasks(chosen, threads=threads, gpu=gpu)
    return Processes(chosen.count or max(1, cores() // threads))
