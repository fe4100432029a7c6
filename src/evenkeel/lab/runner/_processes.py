"""Jobs done side by side in processes, which tell how they go in lines of JSON.

A process is a fresh interpreter, so that a user's program needs no guard around its main part, as `multiprocessing`
asks for. It takes its jobs from standard input, one after the other, and ends when the input does; what it tells goes
to standard output. Ctrl-C does not reach it: the first process ends it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel._errors import EvenkeelError, StudyError
from evenkeel.lab.runner._executors import Executor, Job, Losses, Lost, Message, Serial, Task, Told

PROGRAM = "from evenkeel.lab.runner import serve; serve()"


class Process:
    """One process, the job it has, and a thread that hands on what it tells."""

    def __init__(self, task: Task, messages: queue.SimpleQueue[Any], keep: int | None) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.job: int | None = None
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            pass_fds=() if keep is None else (keep,),
        )
        self.send({"module": task.prepare.__module__, "name": task.prepare.__name__, "setup": task.setup})
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


class Processes(Executor):
    """Does jobs in processes of this machine, each in the next one that is free.

    Args:
        count: how many processes there are at most.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def at_once(self, jobs: int) -> int:
        """Return how many processes there are for so many jobs."""
        return min(self.count, jobs)

    def starts(self, jobs: int) -> str:
        """Return that the processes have to start."""
        return f"the start of {self.at_once(jobs)} processes" if self.at_once(jobs) > 1 else ""

    def run(self, task: Task, jobs: Sequence[Job], *, told: Told, lost: Lost, keep: int | None = None) -> None:
        """Do jobs; a single one needs no process."""
        if self.at_once(len(jobs)) < 2:
            Serial().run(task, jobs, told=told, lost=lost)
            return
        messages: queue.SimpleQueue[tuple[Process, Message | None]] = queue.SimpleQueue()
        waiting, losses, pool = deque(range(len(jobs))), Losses(), set[Process]()

        def give(process: Process) -> None:
            process.job = waiting.popleft() if waiting else None
            if process.job is None:
                process.close()
            else:
                process.send(jobs[process.job])

        try:
            while waiting or pool:
                while waiting and len(pool) < self.count:
                    process = Process(task, messages, keep)
                    pool.add(process)
                    give(process)
                process, message = messages.get()
                if message is None:
                    pool.remove(process)
                    process.close()
                    reason = process.reason()
                    if process.job is not None:
                        losses.add(process.job, reason)
                        lost(process.job, reason)
                        waiting.appendleft(process.job)
                elif "failed" in message:
                    raise StudyError(message["failed"])
                elif "done" in message:
                    give(process)
                elif process.job is not None:
                    told(process.job, message)
        finally:
            for process in pool:
                process.kill()


def serve() -> None:
    """Do the jobs that `Processes` sends to this process."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is printed must not come between the messages

    def tell(message: Message) -> None:
        try:
            output.write(json.dumps(message) + "\n")
            output.flush()
        except BrokenPipeError:  # the first process is gone; what is on the disk can be resumed
            os._exit(1)

    try:
        first = json.loads(sys.stdin.readline())
        work = getattr(importlib.import_module(first["module"]), first["name"])(first["setup"])
        for line in sys.stdin:
            work(json.loads(line), tell)
            tell({"done": True})
    except EvenkeelError as error:
        tell({"failed": str(error)})
