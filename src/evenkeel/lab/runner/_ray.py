"""Jobs done as tasks of a Ray cluster, each in a folder of its own on the node that it runs on.

No path has to be shared: what a job has kept so far travels to the node, and comes back whenever it keeps more. So a
lost worker or node costs what was done since then, and a lost first process nothing that it was told of.
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import torch

import evenkeel
from evenkeel._cluster import ray_cluster, starts_here
from evenkeel._errors import EvenkeelError, StudyError
from evenkeel._files import is_temporary, replace_file
from evenkeel._options.workers import Workers
from evenkeel.lab.runner._executors import FOLDER, OUT, Executor, Job, Losses, Lost, Message, Prepare, Task, Told
from evenkeel.lab.runner._machine import cores

MESSAGE_SECONDS = 0.2  # of messages travel together
APPENDED = ".jsonl"  # files that grow; others are replaced as a whole
REASONS = {
    "WorkerCrashedError": "was killed",
    "NodeDiedError": "went with its node",
    "LocalRayletDiedError": "went with its node",
    "OutOfMemoryError": "was ended by Ray, since its node was short of memory",
    "OutOfDiskError": "was ended by Ray, since its node had no space left on the disk",
}


class RayTasks(Executor):
    """Does jobs on a Ray cluster.

    Args:
        workers: how many at a time, and the cluster.
        threads: processors of each.
        gpu: whether each needs a GPU, or a share of one where there are fewer.
    """

    def __init__(self, workers: Workers, *, threads: int, gpu: bool) -> None:
        self.workers, self.threads, self.gpu = workers, threads, gpu
        self.elsewhere = not starts_here(workers.address)
        self.stack = contextlib.ExitStack()
        self.ray: Any = None
        self.ended: BaseException | None = None

    def __enter__(self) -> Self:
        handler = signal.getsignal(signal.SIGTERM)
        room = self.threads * (self.workers.count or 1)
        with contextlib.ExitStack() as stack:
            self.ray = stack.enter_context(ray_cluster(self.workers.address, max(room, cores())))
            self.share(1)
            self.stack = stack.pop_all()
        if callable(handler) and threading.current_thread() is threading.main_thread():
            # Ray takes SIGTERM for itself, and makes a KeyboardInterrupt of all that a handler raises while it waits.
            signal.signal(signal.SIGTERM, functools.partial(self.note, handler))
            self.stack.callback(signal.signal, signal.SIGTERM, handler)
        return self

    def note(self, handler: Callable[..., object], number: int, frame: FrameType | None) -> None:
        """Keep what the program's own handler of a signal raises."""
        try:
            handler(number, frame)
        except BaseException as error:
            self.ended = error
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stack.close()

    def at_once(self, jobs: int) -> int:
        """Return how many of so many jobs there is room for."""
        return min(self.share(jobs)[0], jobs)

    def starts(self, jobs: int) -> str:
        """Return that the tasks have to start."""
        return f"the start of {self.at_once(jobs)} tasks on Ray"

    def stamp(self) -> dict[str, str]:
        """Return Ray's version."""
        return {"ray": self.ray.__version__}

    def processors(self) -> float:
        """Return how many processors the cluster has."""
        return float(self.ray.cluster_resources().get("CPU", 1))

    def alone(self) -> Executor:
        """Return this: the cluster knows best where there is room."""
        return self

    def run(self, task: Task, jobs: Sequence[Job], *, told: Told, lost: Lost, keep: int | None = None) -> None:
        """Do jobs."""
        ray = self.ray
        count, needs = self.share(len(jobs))
        remote = ray.remote(num_returns="streaming", max_retries=0, **needs)(follow_job)
        waiting, losses, running = deque(range(len(jobs))), Losses(), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < count:
                    index = waiting.popleft()
                    folder = folder_of(task, jobs[index])
                    sent = (task.prepare, dict(task.setup), dict(jobs[index]), folder and read_files(folder))
                    running[remote.remote(*sent, versions())] = index
                ray.wait(list(running), num_returns=1, fetch_local=False)
                ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0, fetch_local=False)
                for stream in ready:
                    index = running[stream]
                    try:
                        for message in ray.get(next(stream)):
                            hand_on(message, index, folder_of(task, jobs[index]), told)
                    except StopIteration:
                        del running[stream]
                    except ray.exceptions.RayError as error:
                        del running[stream]
                        reason = reason_of(error)
                        losses.add(index, reason)
                        lost(index, reason)
                        waiting.appendleft(index)
        except KeyboardInterrupt as error:
            raise self.ended or error from None
        finally:
            for stream in running:
                ray.cancel(stream, force=True)

    def share(self, jobs: int) -> tuple[int, dict[str, float]]:
        """Return how many jobs there is room for at a time, and what Ray is to give each of them."""
        have = self.ray.cluster_resources()
        largest = max((node["Resources"].get("CPU", 0) for node in self.ray.nodes() if node["Alive"]), default=0)
        if largest < self.threads:
            raise StudyError(
                f"each worker needs {self.threads} processors, but the largest node of the Ray cluster has {largest:g}"
                "; choose fewer --threads"
            )
        needs = {"num_cpus": float(self.threads)}
        count = self.workers.count or max(1, int(have.get("CPU", 0) // self.threads))
        if self.gpu:
            gpus = have.get("GPU", 0)
            if not gpus:
                raise StudyError("the Ray cluster has no GPU; choose --device cpu")
            count = self.workers.count or int(gpus)
            needs["num_gpus"] = gpu_share(min(count, jobs), gpus)
        return count, needs


def gpu_share(jobs: int, gpus: float) -> float:
    """Return the part of a GPU that each of so many jobs gets: a whole one, or 1/2, 1/3, ... so that all fit."""
    return 1.0 / max(1, math.ceil(jobs / gpus))


def hand_on(message: Message, index: int, folder: Path | None, told: Told) -> None:
    """Do what a message of a job asks for: keep its files, raise its error, or tell."""
    if "failed" in message:
        raise StudyError(message["failed"])
    if "files" not in message:
        told(index, message)
    elif folder is not None:
        # A checkpoint says how long the records were: they must not be shorter, so they are written first.
        for name in sorted(message["files"], key=lambda name: not name.endswith(APPENDED)):
            replace_file(folder / name, message["files"][name])


def folder_of(task: Task, job: Job) -> Path | None:
    """Return where a job keeps its files on this machine, or None if it keeps none."""
    return Path(task.setup[OUT]) / job[FOLDER] if FOLDER in job else None


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by name: those that are replaced first, for the others grow meanwhile."""
    files = [path for path in folder.iterdir() if path.is_file() and not is_temporary(path)] if folder.exists() else []
    return {path.name: path.read_bytes() for path in sorted(files, key=lambda path: path.suffix == APPENDED)}


def reason_of(error: Any) -> str:
    """Return why a task was lost, in words that follow "its process"."""
    kind = type(error).__name__
    if kind in REASONS:
        return REASONS[kind]
    cause = getattr(error, "cause", None) or error
    line = " ".join((str(cause).strip() or type(cause).__name__).splitlines()[-1].split())
    return f"failed ({line[:200]})"


def versions() -> dict[str, Any]:
    """Return what decides about the bits of a training: the library, torch, and the kernels that can run."""
    kernels = [name for name, state in evenkeel.kernels_available().items() if state.startswith("available")]
    return {"evenkeel": evenkeel.__version__, "torch": torch.__version__, "kernels": ", ".join(kernels)}


def check_versions(expected: Mapping[str, Any]) -> None:
    """Raise `StudyError` unless this worker computes with what the first process has."""
    mine = versions()
    for name, value in expected.items():
        if mine[name] != value:
            raise StudyError(
                f"a worker of the Ray cluster has {name} {mine[name]}, but the study began with {value}; install the "
                "same wheel on every node"
            )


def follow_job(
    prepare: Prepare, setup: dict[str, Any], job: Job, files: dict[str, bytes] | None, expected: dict[str, Any]
) -> Iterator[list[Message]]:
    """Do a job on a node of the cluster, in a thread, and yield what it tells and keeps, several messages at a time."""
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    errors: list[Exception] = []
    with tempfile.TemporaryDirectory(prefix="evenkeel-") as place:
        folder = Path(place) / job.get(FOLDER, "")
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in (files or {}).items():
            (folder / name).write_bytes(data)

        def work() -> None:
            try:
                check_versions(expected)
                prepare({**setup, OUT: place})(job, messages.put)
            except EvenkeelError as error:
                messages.put({"failed": f"{error} (on the node {node_name()})"})
            except Exception as error:  # raised again where Ray sees it
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        kept = kept_before = stamps(folder)
        while thread.is_alive():
            thread.join(MESSAGE_SECONDS)
            kept = stamps(folder)
            bundle = drain(messages)
            if files is not None and kept != kept_before:
                kept_before = kept
                bundle.append({"files": read_files(folder)})
            if bundle:
                yield bundle
        if errors:
            raise errors[0]
        yield [*([{"files": read_files(folder)}] if files is not None else []), *drain(messages)]


def drain(messages: queue.SimpleQueue[Message]) -> list[Message]:
    """Return the messages that wait."""
    return [messages.get() for _ in range(messages.qsize())]


def stamps(folder: Path) -> dict[str, int]:
    """Return the files of a folder that are replaced as a whole, with what tells a new one from an old one."""
    paths = [path for path in folder.iterdir() if path.suffix != APPENDED and not is_temporary(path)]
    with contextlib.suppress(FileNotFoundError):
        return {path.name: path.stat().st_mtime_ns for path in paths}
    return {}


def node_name() -> str:
    """Return the address of this node."""
    import ray

    return str(ray.util.get_node_ip_address())
