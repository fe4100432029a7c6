"""Who does jobs: this process, processes side by side, or a Ray cluster; a job and what it tells are the same for all.

A task is a function that prepares the work, and what it needs to know as plain values; a job is plain values too. While
a job is done it tells messages, which reach the first process in their order.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from evenkeel._errors import StudyError
from evenkeel.lab.runner._machine import cores

MOST_LOSSES = 3  # of a job's processes; the first ones may have been victims of another program's memory
Message = dict[str, Any]
Job = Mapping[str, Any]
Tell = Callable[[Message], None]
Work = Callable[[Job, Tell], None]
Prepare = Callable[[Mapping[str, Any]], Work]
Told = Callable[[int, Message], None]
Lost = Callable[[int, str], None]

FOLDER = "folder"  # of a job: where it keeps its files, below the task's OUT; Ray carries them to the job and back
OUT = "out"


@dataclass(frozen=True)
class Task:
    """What the jobs have in common.

    Attributes:
        prepare: gets the setup and returns what does a job; a function of a module, which other processes import.
        setup: plain values; under ``out`` the directory below which jobs have their folders, if they have any.
        work: what `prepare` would return, for the jobs that this process does itself.
    """

    prepare: Prepare
    setup: Mapping[str, Any]
    work: Work


class Executor(ABC):
    """Does jobs, within its context.

    Attributes:
        elsewhere: whether jobs are done on other machines, which may have what this one lacks.
    """

    elsewhere = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of what it holds."""
        return

    @abstractmethod
    def run(self, task: Task, jobs: Sequence[Job], *, told: Told, lost: Lost, keep: int | None = None) -> None:
        """Do jobs; one whose process was lost is given to another.

        Args:
            task: what the jobs have in common.
            jobs: in the order in which they begin.
            told: gets the index of a job and what is told of it, once more where its process was lost after that.
            lost: gets the index of a job and how its process ended.
            keep: a file descriptor that processes of this machine inherit, such as a lock's.

        Raises:
            StudyError: a job said so, or it lost three processes.
        """

    @abstractmethod
    def at_once(self, jobs: int) -> int:
        """Return how many of so many jobs are done at a time."""

    def starts(self, jobs: int) -> str:
        """Return what has to start before so many jobs can, in words; nothing where this process does them."""
        return ""

    def processors(self) -> float:
        """Return how many processors there are for the jobs."""
        return cores()

    def stamp(self) -> dict[str, str]:
        """Return the versions, besides those of every run, that a run which begins here is stamped with."""
        return {}

    def alone(self) -> Executor:
        """Return who does a job that must have the machine to itself."""
        return Serial()


class Serial(Executor):
    """Does the jobs one after the other, in this process."""

    def at_once(self, jobs: int) -> int:
        """Return one."""
        return 1

    def run(self, task: Task, jobs: Sequence[Job], *, told: Told, lost: Lost, keep: int | None = None) -> None:
        """Do jobs."""
        for index, job in enumerate(jobs):
            task.work(job, functools.partial(told, index))


class Losses:
    """How many processes each job has lost."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, index: int, reason: str) -> None:
        """Count a loss; raise `StudyError` if there were too many."""
        self.counts[index] = self.counts.get(index, 0) + 1
        if self.counts[index] >= MOST_LOSSES:
            raise StudyError(
                f"{self.counts[index]} processes of one run were lost, the last one {reason}; finished runs are kept: "
                "once the cause is gone (often too little memory for so many --workers), continue with --resume"
            )
