"""The directory of a run: created, held against a second process, and its errors as one clear line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from evenkeel._errors import StudyError
from evenkeel._packages import REPORT, check_packages


@contextlib.contextmanager
def run_directory(out: Path) -> Iterator[int | None]:
    """Create the directory of a run and hold it while the run writes there; give the lock's file descriptor.

    Raises:
        StudyError: the directory cannot be created or written, or is in use; memory is short.
        EvenkeelError: the packages that the report needs are missing, which is said at the start and not after hours
            of training.
    """
    check_packages(*REPORT)
    with clear_errors(out), locked(out) as handle:
        yield handle


@contextlib.contextmanager
def clear_errors(out: Path) -> Iterator[None]:
    """Create the directory, and turn what goes wrong while writing, or for want of memory, into one clear line."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"cannot create directory {out}: {error.strerror}; choose another --out") from error
    try:
        yield
    except OSError as error:
        raise StudyError(
            f"cannot write to {out}: {error.strerror or error}; finished arms are kept: once this is mended, continue "
            "with --resume"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise StudyError("not enough memory for this model and batch; choose smaller sizes") from error


@contextlib.contextmanager
def locked(out: Path) -> Iterator[int | None]:
    """Hold the directory against a second process; the lock goes with the last process that has its descriptor."""
    try:
        import fcntl
    except ImportError:  # Windows has no advisory locks on directories
        yield None
        return
    handle = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield handle
    except BlockingIOError as error:
        raise StudyError(f"{out} is in use by another study; wait for it or choose another --out") from error
    finally:
        os.close(handle)


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Run with this many threads, then go back."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
