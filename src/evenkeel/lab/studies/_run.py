"""The study: every arm at every learning rate on the same text with the same seeds, interruptible at any moment.

OUT/study.json                                          what was asked for, frozen; marks the directory as a study's own
OUT/arms/<arm>-lr<rate>-seed<k>/records.jsonl           append-only measurements, without anything that the clock says
OUT/arms/<arm>-lr<rate>-seed<k>/checkpoint.safetensors  where this run continues
OUT/cost.json                                           what a step of each arm takes, measured when all runs have ended
OUT/summary.json                                        all runs so far, rewritten as they end
OUT/report.html                                         the same, to look at
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import evenkeel
from evenkeel._errors import StudyError
from evenkeel._files import is_temporary
from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import FrozenFile, run_directory, run_jobs, stamp, threads, write_json
from evenkeel.lab.studies._observer import Observer, Run, runs_of
from evenkeel.lab.studies._schemas import STUDY_FORMAT, FrozenStudy
from evenkeel.lab.studies._summary import read_costs, summarize
from evenkeel.lab.studies._training import VALIDATION_BATCHES, ArmTraining, is_finished, train_arm
from evenkeel.lab.studies.page import write_report
from evenkeel.lab.training import Corpus, even_windows, frequency_loss, load_corpus, measure_in_turn
from evenkeel.lab.transformer import Transformer

WORKER = "evenkeel.lab.studies._worker"
SUMMARY_SECONDS = 15.0
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
    workers: int = 1,
) -> dict[str, Any]:
    """Train every arm at every learning rate with every seed, write records, summary and report; return the summary.

    Interrupted at any moment, a study continues with `resume` from its last checkpoints, with the losses it would have
    had; finished runs are not run again.

    Args:
        settings: what to compare and how.
        out: the directory to write to: new, empty, or (with `resume` or `force`) a study's own.
        text: a text file or directory; None means the Python standard library's source.
        resume: continue the study in `out` if there is one.
        force: replace the study in `out` if there is one.
        observer: is told how the study goes on.
        checkpoint_seconds: least time between two checkpoints of a run.
        workers: how many runs are trained side by side, each in its own process; the records are the same.

    Returns:
        The summary, as in summary.json.

    Raises:
        StudyError: the text is bad; `out` is foreign, in use or cannot be written; the study to resume had other
            settings, text, or versions; processes of a run were lost three times.

    Example:
        >>> import tempfile, pathlib
        >>> from evenkeel.lab import StudySettings, run_study
        >>> sizes = dict(depth=1, width=8, heads=1, context=8, batch=2, steps=2)
        >>> tiny = StudySettings(arms=("pre-rms",), lr=0.01, seeds=1, **sizes)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     summary = run_study(tiny, pathlib.Path(folder))
        >>> summary["arms"][0]["status"]
        'finished'
    """
    if workers < 1:
        raise StudyError(f"workers must be at least 1, but is {workers}")
    observer = observer or Observer()
    corpus = load_corpus(text, context=settings.context)
    with run_directory(out) as lock, threads(settings.threads):
        frozen = freeze(settings, out, text, corpus, resume=resume, force=force)
        waiting = []
        for run in runs_of(settings):
            run.directory(out).mkdir(parents=True, exist_ok=True)
            if is_finished(run.directory(out)):
                observer.run_skipped(run)
            else:
                waiting.append(run)
        file = SummaryFile(out, frozen)
        if min(workers, len(waiting)) > 1:
            how: dict[str, Any] = {"workers": workers, "checkpoint_seconds": checkpoint_seconds, "lock": lock}
            train_side_by_side(waiting, file, observer, **how)
        else:
            for run in waiting:
                training = ArmTraining(run, settings, corpus, run.directory(out))
                train_arm(training, observer, checkpoint_seconds=checkpoint_seconds)
                file.refresh()
        measure_costs(settings, corpus, out, observer)
        summary = file.write()
        write_report(summary, out / "report.html")
        return summary


class SummaryFile:
    """The summary on the disk, written again at most every few seconds."""

    def __init__(self, out: Path, frozen: dict[str, Any]) -> None:
        self.out, self.frozen, self.due = out, frozen, 0.0

    def refresh(self) -> None:
        """Write the summary if that is due."""
        if time.monotonic() >= self.due:
            self.write()

    def write(self) -> dict[str, Any]:
        """Write the summary and return it as a reader finds it."""
        write_json(self.out / "summary.json", summarize(self.out, self.frozen))
        self.due = time.monotonic() + SUMMARY_SECONDS
        return dict(json.loads((self.out / "summary.json").read_text()))


def train_side_by_side(
    runs: Sequence[Run],
    file: SummaryFile,
    observer: Observer,
    *,
    workers: int,
    checkpoint_seconds: float,
    lock: int | None,
) -> None:
    """Train runs in processes; a run whose process was lost goes on in another one from its last checkpoint."""
    frozen = file.frozen
    numbers = {run: number for number, run in enumerate(runs_of(StudySettings.from_options(frozen["settings"])))}

    def told(index: int, message: dict[str, Any]) -> None:
        for method, arguments in message.items():
            getattr(observer, method)(runs[index], *arguments)
        if "run_ended" in message:
            file.refresh()

    setup = {
        "settings": frozen["settings"],
        "text": frozen["text"],
        "digest": frozen["corpus"]["digest"],
        "out": str(file.out.resolve()),
        "checkpoint_seconds": checkpoint_seconds,
    }
    run_jobs(
        WORKER,
        setup,
        [{"run": numbers[run]} for run in runs],
        workers=workers,
        told=told,
        lost=lambda index, reason: observer.worker_lost(runs[index], reason),
        keep=lock,
    )


def measure_costs(settings: StudySettings, corpus: Corpus, out: Path, observer: Observer) -> None:
    """Measure what a step of each arm takes, all in turn, unless that was done; warm-up changes no step's time."""
    arms = {arm.name: arm for arm in settings.find_arms() if not arm.long_warmup}
    costs = read_costs(out)
    if not arms or (costs and costs.keys() == arms.keys()):
        return
    observer.costs_started(len(arms))
    size = {"depth": settings.depth, "width": settings.width, "heads": settings.heads, "context": settings.context}
    models = {name: functools.partial(Transformer, arm, **size) for name, arm in arms.items()}
    windows = even_windows(corpus, settings.batch, context=settings.context)
    write_json(out / "cost.json", {"arms": measure_in_turn(models, windows)})


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
    # what the models are compared with has to be measured on the bytes that they are: 3.13 there, 3.08 on all of them
    windows = even_windows(corpus, VALIDATION_BATCHES * settings.batch, context=settings.context)
    frequencies = frequency_loss(corpus.train, windows[:, 1:].flatten())
    asked = {
        "format": STUDY_FORMAT,
        "evenkeel": versions["evenkeel"],
        "torch": versions["torch"],
        "kernels": [name for name, state in evenkeel.kernels_available().items() if state.startswith("available")],
        "created": versions["created"],
        "settings": settings.as_dict(),
        "text": None if text is None else str(text.resolve()),
        "corpus": corpus.describe() | {"frequency_loss": frequencies},
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
    own=("arms", "cost.json", "summary.json", "report.html"),
    format=STUDY_FORMAT,
    content=FrozenStudy,
    differences=changed_text,
)
