"""The engines that read fragments: threads of this process, or the workers of a Ray cluster; the states are alike."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._cluster import ray_cluster
from evenkeel._errors import EvenkeelError, InvalidTypeError, SourceError
from evenkeel._options.names import EngineName, NanPolicy
from evenkeel._packages import require_package
from evenkeel._threads import threads
from evenkeel.data._packages import reading
from evenkeel.data.sources import Fragment, Skip
from evenkeel.data.statistics import Statistics
from evenkeel.functional import kernels_available

if TYPE_CHECKING:
    Engine = Callable[[Sequence[Fragment], "Recipe", "Workers"], Iterator["Outcome"]]


# Fragments begun ahead of the one that is merged next, for each worker: finished states wait here, and they are small.
AHEAD = 8
UNLIKE_WORKERS = (
    "some processes of this Ray cluster have the compiled kernels and some do not: the last digits of sums may differ; "
    "install the same evenkeel on all nodes"
)


@dataclass(frozen=True)
class Outcome:
    """The result of reading a fragment.

    Attributes:
        statistics: its state, or None where it could not be read.
        skipped: what was left out.
        data: the state as bytes, where another process sent it.
        version: of the objects that were read, where a store tells it.
    """

    statistics: Statistics | None
    skipped: Sequence[Skip] = ()
    data: bytes | None = None
    version: str = ""


@dataclass(frozen=True)
class Workers:
    """Who reads: so many at a time (None for the present thread), and the address of a Ray cluster."""

    count: int | None
    address: str | None = None


@dataclass(frozen=True)
class Recipe:
    """The work on each fragment: which statistics to keep, and whether to leave out unreadable ones."""

    names: tuple[str, ...] | None
    quantiles: bool
    sketch_size: int
    nan_policy: NanPolicy
    skip: bool

    def empty(self) -> Statistics:
        """Statistics that have seen nothing."""
        return Statistics(
            names=self.names, quantiles=self.quantiles, sketch_size=self.sketch_size, nan_policy=self.nan_policy
        )

    def run(self, fragment: Fragment) -> Outcome:
        """Read a fragment.

        Raises:
            SourceError: it cannot be read, and is not to be skipped.
            InvalidInputError: its values are refused (``nan_policy="raise"``).
        """
        skipped: list[Skip] = []
        statistics = self.empty()
        try:
            with reading(fragment.label):
                version = fragment.add_to(statistics, skipped if self.skip else None)
        except (SourceError, InvalidTypeError) as error:  # a damaged file may hold words for numbers
            if not self.skip:
                raise
            return Outcome(None, [Skip(fragment.label, str(error))])
        return Outcome(statistics, skipped, version=version)


def run_local(fragments: Sequence[Fragment], recipe: Recipe, workers: Workers) -> Iterator[Outcome]:
    """Yield the outcome of each fragment in order, read by so many threads of this process, or by the present one."""
    count = workers.count
    if count is None:
        yield from (recipe.run(fragment) for fragment in fragments)
        return
    with serial_kernels(), threads(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: deque[Future[Outcome]] = deque()
        for fragment in fragments:
            waiting.append(pool.submit(recipe.run, fragment))
            if len(waiting) >= AHEAD * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def serial_kernels() -> Iterator[None]:
    """Put back torch's number of threads, which the workers set to one lest each start a team of its own."""
    number = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(number)


def run_ray(fragments: Sequence[Fragment], recipe: Recipe, workers: Workers) -> Iterator[Outcome]:
    """Yield the outcome of each fragment in order, read by the workers of Ray Data.

    Ray runs as it is where the program has started it, or an address (or RAY_ADDRESS) names a cluster, which then must
    see the same paths; otherwise a small one is started in this machine and shut down at the end.
    """
    with ray_cluster(workers.address, workers.count or processors()) as ray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Ray Data imports
            context = require_package("ray.data").DataContext.get_current()
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context.enable_progress_bars = context.print_on_execution_start = False
        shared = ray.put((list(fragments), recipe, os.getcwd()))

        def compute(row: dict[str, Any]) -> dict[str, Any]:
            torch.set_num_threads(1)
            parts, recipe, folder = ray.get(shared)
            with suppress(OSError):  # relative paths are the caller's
                os.chdir(folder)
            return {"id": row["id"], "compiled": has_kernels(), **pack(recipe, parts[row["id"]])}

        rows = ray.data.range(len(fragments), override_num_blocks=min(len(fragments), 1000)).map(compute)
        early: dict[int, dict[str, Any]] = {}
        following, compare = 0, has_kernels()
        for row in rows.iter_rows():
            if row["compiled"] != compare:
                compare = row["compiled"]
                warnings.warn(UNLIKE_WORKERS, stacklevel=2)
            early[row["id"]] = row
            while following in early:
                yield unpack(early.pop(following))
                following += 1


def has_kernels() -> bool:
    """Whether this process computes with the compiled kernels."""
    return kernels_available()["cpu"].startswith("available")


def pack(recipe: Recipe, fragment: Fragment) -> dict[str, Any]:
    """The outcome of a fragment as plain values, which travel between processes."""
    try:
        outcome = recipe.run(fragment)
    except EvenkeelError as error:
        return {"state": b"", "skipped": "[]", "version": "", "error": str(error), "kind": type(error).__name__}
    state = outcome.statistics.to_bytes() if outcome.statistics else b""
    skipped = json.dumps([(skip.label, skip.error) for skip in outcome.skipped])
    return {"state": state, "skipped": skipped, "version": outcome.version, "error": "", "kind": ""}


def unpack(row: dict[str, Any]) -> Outcome:
    """The outcome that `pack` packed; its error is raised here."""
    if row["error"]:
        from evenkeel import _errors

        raise getattr(_errors, row["kind"], EvenkeelError)(row["error"])
    skipped = [Skip(*skip) for skip in json.loads(row["skipped"])]
    state = bytes(row["state"])
    return Outcome(Statistics.from_bytes(state) if state else None, skipped, state, row["version"])


def processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


ENGINES: dict[EngineName, Engine] = {"local": run_local, "ray": run_ray}
