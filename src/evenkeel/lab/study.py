"""The study: every arm on the same text with the same seeds, interruptible at any moment.

OUT/study.json                                     what was asked for, frozen; marks the directory as a study's own
OUT/arms/<arm>-seed<k>/records.jsonl               append-only measurements
OUT/arms/<arm>-seed<k>/checkpoint.safetensors      where this arm continues
OUT/summary.json                                   all arms so far, rewritten after each
OUT/report.html                                    the same, to look at
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import evenkeel
from evenkeel._errors import StudyError
from evenkeel.lab.files import is_temporary, read_frozen, write_json
from evenkeel.lab.settings import StudySettings
from evenkeel.lab.summary import FORMAT, arm_directory, summarize
from evenkeel.lab.text import Corpus, load_corpus
from evenkeel.lab.training import ArmTraining, Observer, is_finished, train_arm

__all__ = ["read_study", "run_study"]

CHECKPOINT_SECONDS = 15.0


def run_study(
    settings: StudySettings,
    out: Path,
    *,
    text: Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> dict[str, Any]:
    """Train every arm, write records, summary and report, and return the summary.

    Interrupted at any moment, a study continues with `resume` from its last checkpoints, with the losses it would have
    had; finished arms are not run again.

    Args:
        settings: what to compare and how.
        out: the directory to write to: new, empty, or (with `resume`) a study's own.
        text: a text file or directory; None means the Python standard library's source.
        resume: continue the study in `out` if there is one.
        observer: is told how the study goes on.
        checkpoint_seconds: least time between two checkpoints of an arm.

    Returns:
        The summary, as in summary.json.

    Raises:
        StudyError: the text is bad; `out` is foreign, in use or cannot be written; the study to resume had other
            settings, text, or versions.

    Example:
        >>> import tempfile, pathlib
        >>> from evenkeel.lab import StudySettings, run_study
        >>> tiny = StudySettings(arms=("pre-rms",), depth=1, width=8, heads=1, context=8, batch=2, steps=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     summary = run_study(tiny, pathlib.Path(folder))
        >>> summary["arms"][0]["status"]
        'finished'
    """
    check_report_extra()
    observer = observer or Observer()
    corpus = load_corpus(text, context=settings.context)
    with writing_to(out), locked(out), threads(settings.threads):
        frozen = freeze(settings, out, text, corpus, resume=resume)
        for seed in range(settings.seed, settings.seed + settings.seeds):
            for arm in settings.find_arms():
                directory = arm_directory(out, arm.name, seed)
                directory.mkdir(parents=True, exist_ok=True)
                if is_finished(directory):
                    observer.arm_skipped(arm, seed)
                    continue
                training = ArmTraining(arm, seed, settings, corpus, directory)
                train_arm(training, observer, checkpoint_seconds=checkpoint_seconds)
                write_json(out / "summary.json", summarize(out, frozen))
        return report(out, frozen)


def report(out: Path, frozen: dict[str, Any]) -> dict[str, Any]:
    """Write summary.json and report.html, and return the summary as it reads back from the file."""
    from evenkeel.lab.page import write_report

    write_json(out / "summary.json", summarize(out, frozen))
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    write_report(summary, out / "report.html")
    return summary


def read_study(out: Path) -> dict[str, Any] | None:
    """Return what the study in a directory froze at its start, or None if there is no study.

    Args:
        out: the study's directory, which need not exist.

    Raises:
        StudyError: its study.json is damaged or of another format.

    Example:
        >>> import pathlib
        >>> from evenkeel.lab import read_study
        >>> read_study(pathlib.Path("no-such-study")) is None
        True
    """
    return read_frozen(
        out / "study.json",
        "a study's",
        version=FORMAT,
        check=lambda frozen: StudySettings.from_options(frozen["settings"]),
    )


def freeze(settings: StudySettings, out: Path, text: Path | None, corpus: Corpus, *, resume: bool) -> dict[str, Any]:
    """Write study.json into a new study's directory, or compare with the one that is there; return its content."""
    asked = {
        "format": FORMAT,
        "evenkeel": evenkeel.__version__,
        "torch": torch.__version__,
        "kernels": [name for name, state in evenkeel.kernels_available().items() if state.startswith("available")],
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "settings": settings.as_dict(),
        "text": None if text is None else str(text.resolve()),
        "corpus": corpus.describe(),
    }
    frozen = read_study(out)
    if frozen is None:
        foreign = [entry for entry in out.iterdir() if not is_temporary(entry)]
        if foreign:
            raise StudyError(
                f"{out} is not empty and holds no study (it has {foreign[0].name}); choose a new directory with --out"
            )
        write_json(out / "study.json", asked)
        return asked
    if not resume:
        raise StudyError(f"{out} already holds a study; continue it with --resume, or choose another --out")
    if differences := list(compare(frozen, asked)):
        raise StudyError(
            f"cannot resume {out}: {'; '.join(differences)}; resume with what it began with, or choose another --out"
        )
    return frozen


def compare(frozen: dict[str, Any], asked: dict[str, Any]) -> Iterator[str]:
    """Yield what differs between a study and what is asked of it, in words."""
    for name, value in asked["settings"].items():
        if (before := frozen["settings"].get(name)) != value:
            yield f"{name} was {shown(before)}, now {shown(value)}"
    for name in ("text", "evenkeel", "torch", "kernels"):
        if frozen.get(name) != asked[name]:
            yield f"{name} was {shown(frozen.get(name))}, now {shown(asked[name])}"
    if frozen["text"] == asked["text"] and frozen["corpus"].get("digest") != asked["corpus"]["digest"]:
        yield f"the content of the text ({asked['corpus']['source']}) has changed"


def shown(value: Any) -> str:
    """Return a setting as a user would type it."""
    return ",".join(value) if isinstance(value, list) else str(value)


def check_report_extra() -> None:
    """Raise at the start, not after training, if the report could not be written."""
    missing = [package for package in ("plotly", "jinja2") if importlib.util.find_spec(package) is None]
    if missing:
        raise StudyError(
            f"a study's report needs {' and '.join(missing)}; install with: pip install 'evenkeel[report]'"
        )


@contextlib.contextmanager
def writing_to(out: Path) -> Iterator[None]:
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
def locked(out: Path) -> Iterator[None]:
    """Hold the directory against a second process; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows has no advisory locks on directories
        yield
        return
    handle = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
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
