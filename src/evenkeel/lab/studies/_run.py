"""The study: every arm on the same text with the same seeds, interruptible at any moment.

OUT/study.json                                     what was asked for, frozen; marks the directory as a study's own
OUT/arms/<arm>-seed<k>/records.jsonl               append-only measurements
OUT/arms/<arm>-seed<k>/checkpoint.safetensors      where this arm continues
OUT/summary.json                                   all arms so far, rewritten after each
OUT/report.html                                    the same, to look at
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import evenkeel
from evenkeel._errors import StudyError
from evenkeel._files import is_temporary
from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import FORMAT, FrozenFile, run_directory, stamp, threads, write_json
from evenkeel.lab.studies._schemas import FrozenStudy
from evenkeel.lab.studies._summary import arm_directory, summarize
from evenkeel.lab.studies._training import ArmTraining, Observer, is_finished, train_arm
from evenkeel.lab.studies.page import write_report
from evenkeel.lab.training import Corpus, load_corpus

CHECKPOINT_SECONDS = 15.0


def run_study(
    settings: StudySettings,
    out: Path,
    *,
    text: Path | None = None,
    resume: bool = False,
    force: bool = False,
    observer: Observer | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> dict[str, Any]:
    """Train every arm, write records, summary and report, and return the summary.

    Interrupted at any moment, a study continues with `resume` from its last checkpoints, with the losses it would have
    had; finished arms are not run again.

    Args:
        settings: what to compare and how.
        out: the directory to write to: new, empty, or (with `resume` or `force`) a study's own.
        text: a text file or directory; None means the Python standard library's source.
        resume: continue the study in `out` if there is one.
        force: replace the study in `out` if there is one.
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
    observer = observer or Observer()
    corpus = load_corpus(text, context=settings.context)
    with run_directory(out), threads(settings.threads):
        frozen = freeze(settings, out, text, corpus, resume=resume, force=force)
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
    return STUDY_FILE.read(out)


def freeze(
    settings: StudySettings, out: Path, text: Path | None, corpus: Corpus, *, resume: bool, force: bool
) -> dict[str, Any]:
    """Write study.json into a new study's directory, or compare with the one that is there; return its content."""
    foreign = next((entry for entry in out.iterdir() if not is_temporary(entry)), None)
    if foreign is not None and read_study(out) is None:
        raise StudyError(
            f"{out} is not empty and holds no study (it has {foreign.name}); choose a new directory with --out"
        )
    versions = stamp()
    asked = {
        "format": FORMAT,
        "evenkeel": versions["evenkeel"],
        "torch": versions["torch"],
        "kernels": [name for name, state in evenkeel.kernels_available().items() if state.startswith("available")],
        "created": versions["created"],
        "settings": settings.as_dict(),
        "text": None if text is None else str(text.resolve()),
        "corpus": corpus.describe(),
    }
    return STUDY_FILE.freeze(out, asked, resume=resume, force=force)


def changed_text(frozen: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """Yield that a text at the same place has other content, if it has."""
    if frozen["text"] == asked["text"] and frozen["corpus"].get("digest") != asked["corpus"]["digest"]:
        yield f"the content of the text ({asked['corpus']['source']}) has changed"


STUDY_FILE = FrozenFile(
    name="study.json",
    owner="a study",
    run="a study",
    options="settings",
    fixed=("text", "evenkeel", "torch", "kernels"),
    own=("arms", "summary.json", "report.html"),
    content=FrozenStudy,
    differences=changed_text,
)
