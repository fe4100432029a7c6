"""The record of `benchmarks.gpu`: a file that every part's outcome goes into, so that the next run goes on from there.

An outcome is a list of problems (a part of the check; empty if it is green) or the record of a timed case; where a part
raised it has an "error", where it cannot run here it is "left out" with the reason. Problems and errors are tried again
by the next run. What was under way when the process ended, or broke the GPU for it, comes last there.
"""

import json
import secrets
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from evenkeel import EvenkeelError
from evenkeel.cli.interrupts import find_interrupt
from evenkeel.report import write_text_atomically

KINDS = ("checked", "checked quick", "results")
DECISIVE = ("evenkeel", "python", "torch", "triton")  # versions that all of a record has in common
ENDED = "the process ended within it"


class RefusedError(Exception):
    """What the user has to change, in one line."""


class LeftOutError(Exception):
    """Why a part cannot run here."""


class BrokenError(Exception):
    """The name of the part after which the GPU does no more work for this process."""


class Job(NamedTuple):
    """A part of the check, or a case to be timed.

    Attributes:
        kind: where its outcome lies in the record.
        name: what it is called there.
        work: does it, and returns its outcome.
        line: its outcome as a line for people.
        fields: of the outcome of a timed case that could not be timed.
        seconds: that have to be left for it.
    """

    kind: str
    name: str
    work: Callable[[], Any]
    line: Callable[[Any], str]
    fields: dict[str, Any] = {}
    seconds: float = 0.0


def identity(info: dict[str, Any]) -> dict[str, str]:
    """What has to be the same for all results of a record."""
    versions = info.get("versions", {})
    gpu, kernels = info.get("machine", {}).get("accelerator", "?"), info.get("kernels", "?")
    return {"GPU": gpu, "kernels": kernels} | {name: versions.get(name, "?") for name in DECISIVE}


def problems_of(outcome: Any) -> list[str]:
    """What is wrong in an outcome."""
    if isinstance(outcome, list):
        return outcome
    return [outcome["error"]] if "error" in outcome else []


def named(name: str, problem: str) -> str:
    """A problem with the name of its part, which most begin with."""
    return problem if problem.startswith(name) else f"{name}: {problem}"


def first_line(error: BaseException) -> str:
    """The type of an error and its first line, with the second if that only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {text}"[:300]


def settle() -> None:
    """Wait for the GPU, so that an error belongs to the part that made it; raises what the GPU met."""
    torch.cuda.synchronize()


def is_broken() -> bool:
    """Whether the GPU refuses all work, as after an illegal access, for as long as the process lives."""
    try:
        settle()
    except Exception:
        return True
    return False


class Record:
    """The outcomes of this run and, with a file, of those before it.

    Args:
        path: the file, if one is kept.
        info: of this machine.

    Raises:
        RefusedError: the file cannot be written, or holds something else, or is of another machine or other versions.
    """

    def __init__(self, path: Path | None, info: dict[str, Any]) -> None:
        self.path = path
        # drawn anew for each record, and kept with it: what was wrong is tried again with the same numbers
        self.found: dict[str, Any] = {"info": info, "seed": secrets.randbelow(2**31), "broke": {}}
        self.found |= {kind: {} for kind in KINDS}
        if path is not None and path.exists():
            self.found |= read(path, info)
        self.broke: dict[str, str] = self.found["broke"]
        self.save()

    def save(self) -> None:
        """Write the file, if there is one."""
        if self.path is None:
            return
        try:
            write_text_atomically(self.path, json.dumps(self.found, indent=1) + "\n")
        except EvenkeelError as error:
            raise RefusedError(f"{error}; give another --out") from None

    def outcome(self, job: Job) -> Any:
        """The outcome of a job, or None."""
        return self.found[job.kind].get(job.name)

    def is_over(self, job: Job) -> bool:
        """Whether a job need not be done again; a part of the check that was left out is tried again."""
        outcome = self.outcome(job)
        return outcome == [] or (job.kind == "results" and outcome is not None and "error" not in outcome)

    def attempt(self, job: Job) -> None:
        """Do a job and write its outcome, whatever it is.

        Raises:
            BrokenError: the GPU does no more work for this process.
        """
        self.broke[job.name] = ENDED
        self.save()
        try:
            outcome, broke = outcome_of(job, self.found["seed"])
        except KeyboardInterrupt:
            self.broke.pop(job.name)
            self.save()
            raise
        self.found[job.kind][job.name] = outcome
        self.broke.pop(job.name)
        if broke:
            self.broke[job.name] = outcome["error"]
        self.save()
        print(job.line(outcome), flush=True)
        if broke:
            raise BrokenError(job.name)

    def carry_out(self, jobs: Iterable[Job], left: Callable[[], float]) -> list[Job]:
        """Do what is not over; those for which less than their seconds are left are returned."""
        waiting = []
        for job in sorted(jobs, key=lambda job: job.name in self.broke):
            if self.is_over(job):
                continue
            if left() < job.seconds:
                waiting.append(job)
                continue
            if job.name in self.broke:
                print(f"{job.name}: once more, last, because {self.broke[job.name]}", flush=True)
            self.attempt(job)
        return waiting

    def problems(self, jobs: Iterable[Job]) -> Iterator[str]:
        """A line for each job in which something is wrong."""
        for job in jobs:
            if found := problems_of(self.outcome(job) or []):
                more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                yield named(job.name, found[0]) + more


def outcome_of(job: Job, seed: int) -> tuple[Any, bool]:
    """Do a job on random numbers: its outcome, and whether the GPU is broken after it."""
    torch.cuda.empty_cache()
    torch.manual_seed(seed)
    try:
        outcome = job.work()
        settle()
    except (LeftOutError, torch.OutOfMemoryError) as error:
        reason = str(error) if isinstance(error, LeftOutError) else first_line(error)
        return job.fields | {"left out": reason}, False
    except Exception as error:
        if find_interrupt(error):
            raise KeyboardInterrupt from error
        told = traceback.format_exc().splitlines()[-40:]
        return job.fields | {"error": first_line(error), "traceback": told}, is_broken()
    return outcome, False


def read(path: Path, info: dict[str, Any]) -> dict[str, Any]:
    """The record in a file, which has to be of this machine."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        there = identity(found["info"])
        whole = all(isinstance(found[kind], dict) for kind in ("broke", *KINDS))
    except OSError as error:
        raise RefusedError(f"{path} cannot be read ({error.strerror}); give another --out") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        whole = False
    if not whole:
        raise RefusedError(f"{path} is no record of this benchmark; give another --out")
    here = identity(info)
    other = [f"{name} {there[name]} there, {here[name]} here" for name in here if there[name] != here[name]]
    if other:
        raise RefusedError(
            f"{path} is of another machine or version ({'; '.join(other)}); give another --out, or remove it"
        )
    return found
