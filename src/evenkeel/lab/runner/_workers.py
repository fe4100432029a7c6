"""Jobs done side by side in processes, which tell how they go in lines of JSON.

A process is a fresh interpreter that runs a module, so that a user's program needs no guard around its main part, as
`multiprocessing` asks for. It takes its jobs from standard input, one after the other, and ends when the input does;
what it tells goes to standard output. Ctrl-C does not reach it: the first process ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenkeel._errors import StudyError

MOST_LOSSES = 3  # of a job's processes; the first ones may have been victims of another program's memory
Message = dict[str, Any]
Job = Mapping[str, Any]
Tell = Callable[[Message], None]


class Worker:
    """One process, the job it has, and a thread that hands on what it tells."""

    def __init__(
        self, module: str, setup: Mapping[str, Any], messages: queue.SimpleQueue[Any], keep: int | None
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.job: int | None = None
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            pass_fds=() if keep is None else (keep,),
        )
        self.send(setup)
        self.listener = threading.Thread(target=self._listen, args=(messages,), daemon=True)
        self.listener.start()

    def _listen(self, messages: queue.SimpleQueue[Any]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):  # else the process was killed while it wrote
                    messages.put((self, json.loads(line)))
        messages.put((self, None))

    def send(self, value: Mapping[str, Any]) -> None:
        """Send a line; a process that is gone is noticed where its output ends."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(value).encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Let the process end when its job is done."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def reason(self) -> str:
        """Return how the process ended, in words."""
        code = self.process.wait()
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()
        self.listener.join()
        self.close()


def run_jobs(
    module: str,
    setup: Mapping[str, Any],
    jobs: Sequence[Job],
    *,
    workers: int,
    told: Callable[[int, Message], None],
    lost: Callable[[int, str], None],
    keep: int | None = None,
) -> None:
    """Do jobs side by side, each in the next process that is free; a job whose process was lost is given to another.

    Args:
        module: what each process runs; it calls `serve`.
        setup: sent to each process first.
        jobs: in the order in which they begin.
        workers: how many processes there are at most.
        told: gets the index of a job and what its process tells of it.
        lost: gets the index of a job and how its process ended.
        keep: a file descriptor that the processes inherit, such as a lock's.

    Raises:
        StudyError: a job said so, or it lost three processes.
    """
    messages: queue.SimpleQueue[tuple[Worker, Message | None]] = queue.SimpleQueue()
    waiting, losses, pool = deque(range(len(jobs))), Counter[int](), set[Worker]()

    def give(worker: Worker) -> None:
        worker.job = waiting.popleft() if waiting else None
        if worker.job is None:
            worker.close()
        else:
            worker.send(jobs[worker.job])

    try:
        while waiting or pool:
            while waiting and len(pool) < workers:
                worker = Worker(module, setup, messages, keep)
                pool.add(worker)
                give(worker)
            worker, message = messages.get()
            if message is None:
                pool.remove(worker)
                worker.close()
                reason = worker.reason()
                if worker.job is not None:
                    losses[worker.job] += 1
                    lost(worker.job, check_loss(reason, losses[worker.job]))
                    waiting.appendleft(worker.job)
            elif "failed" in message:
                raise StudyError(message["failed"])
            elif "done" in message:
                give(worker)
            elif worker.job is not None:
                told(worker.job, message)
    finally:
        for worker in pool:
            worker.kill()


def check_loss(reason: str, losses: int) -> str:
    """Return how a job's process ended; raise if too many did."""
    if losses >= MOST_LOSSES:
        raise StudyError(
            f"{losses} processes of one run were lost, the last one {reason}; finished runs are kept: once there is "
            "enough memory for fewer workers, continue with --resume and --workers"
        )
    return reason


def serve(prepare: Callable[[Mapping[str, Any]], Callable[[Job, Tell], None]]) -> None:
    """Do the jobs that `run_jobs` sends to this process.

    Args:
        prepare: gets the setup and returns what does a job and tells how it goes.
    """
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is printed must not come between the messages

    def tell(message: Message) -> None:
        try:
            output.write(json.dumps(message) + "\n")
            output.flush()
        except BrokenPipeError:  # the first process is gone; what is on the disk can be resumed
            os._exit(1)

    try:
        work = prepare(json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            work(json.loads(line), tell)
            tell({"done": True})
    except StudyError as error:
        tell({"failed": str(error)})
