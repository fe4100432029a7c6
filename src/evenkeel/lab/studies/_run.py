"""The study: every arm at every learning rate on the same text with the same seeds, interruptible at any moment.

OUT/study.json                                          what was asked for, frozen; marks the directory as a study's own
OUT/arms/<arm>-lr<rate>-seed<k>/records.jsonl           append-only measurements, without anything that the clock says
OUT/arms/<arm>-lr<rate>-seed<k>/checkpoint.safetensors  where this run continues
OUT/cost.json                                           what a step of each arm takes, measured when all runs have ended
OUT/spent.json                                          time and memory, estimated before the first run and measured
OUT/text/                                               the text, where it is larger than memory or a table
OUT/summary.json                                        all runs so far, rewritten as they end
OUT/report.html                                         the same, to look at
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import evenkeel
from evenkeel._directories import STUDY, check_study
from evenkeel._options.study import Compute, StudySettings
from evenkeel._options.workers import Workers
from evenkeel.lab.runner import Executor, FrozenFile, Task, executor_of, run_directory, stamp, threads, write_json
from evenkeel.lab.studies._estimate import estimate, write_spent
from evenkeel.lab.studies._observer import Observer, Run, Spent, runs_of
from evenkeel.lab.studies._schemas import STUDY_FORMAT, FrozenStudy
from evenkeel.lab.studies._summary import read_costs, summarize
from evenkeel.lab.studies._training import VALIDATION_BATCHES, is_finished
from evenkeel.lab.studies._worker import TIMING, prepare, study_work, timed_arms
from evenkeel.lab.studies.page import write_report
from evenkeel.lab.training import (
    Corpus,
    check_device,
    even_windows,
    frequency_loss,
    is_laid_out_text,
    load_corpus,
    locate_text,
)

SUMMARY_SECONDS = 15.0
CHECKPOINT_SECONDS = 15.0


def run_study(
    settings: StudySettings,
    out: Path,
    *,
    text: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    observer: Observer | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    workers: int | Workers = 1,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train every arm at every learning rate with every seed, write records, summary and report; return the summary.

    Interrupted at any moment, a study continues with `resume` from its last checkpoints, with the losses it would have
    had; finished runs are not run again.

    Args:
        settings: what to compare and how.
        out: the directory to write to: new, empty, or (with `resume` or `force`) a study's own.
        text: a text file or directory, Parquet or Arrow files of text or token ids, or a URL of such, as `load_corpus`
            reads them; None means the Python standard library's source.
        resume: continue the study in `out` if there is one.
        force: replace the study in `out` if there is one.
        observer: is told how the study goes on.
        checkpoint_seconds: least time between two checkpoints of a run.
        workers: how many runs are trained side by side, and where; the records are the same.
        storage_options: for the client of the store that a URL names; see `evenkeel.data.fit`. They are not kept.

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
    observer = observer or Observer()
    executor = executor_of(workers, threads=settings.threads, gpu=settings.device == "cuda")
    if not executor.elsewhere:
        check_device(settings)
    place = locate_text(text, storage_options)
    size: dict[str, Any] = {"context": settings.context, "vocabulary": settings.vocabulary}
    corpus = None if is_laid_out_text(place) else load_corpus(text, **size)
    with executor, run_directory(out) as lock, threads(settings.threads):
        check_study(out)
        corpus = corpus or load_corpus(
            text, **size, folder=out, tell=observer.text_laid_out, storage_options=storage_options
        )
        settings.check_memory(corpus.vocabulary)
        given = None if place is None else str(place.resolve() if isinstance(place, Path) else place)
        frozen = freeze(settings, out, given, corpus, executor.stamp(), resume=resume, force=force)
        waiting = []
        for run in runs_of(settings):
            run.directory(out).mkdir(parents=True, exist_ok=True)
            if is_finished(run.directory(out)):
                observer.run_skipped(run)
            else:
                waiting.append(run)
        work = study_work(settings, corpus, out, checkpoint_seconds)
        setup = {
            "settings": frozen["settings"],
            "text": given if isinstance(place, Path | None) else str(text),  # whose URL may hold a signature
            "storage_options": dict(storage_options or {}),
            "digest": frozen["corpus"]["digest"],
            "out": str(out.resolve()),
            "checkpoint_seconds": checkpoint_seconds,
        }
        file, task = SummaryFile(out, frozen), Task(prepare, setup, work)
        if waiting:
            spent = estimate(settings, corpus, waiting, executor)
            observer.study_estimated(spent)
            spent = train(waiting, file, observer, executor, task, spent, lock)
            write_spent(out, spent)
            observer.study_trained(spent)
        measure_costs(settings, out, observer, executor.alone(), task)
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


def train(
    runs: Sequence[Run],
    file: SummaryFile,
    observer: Observer,
    executor: Executor,
    task: Task,
    estimated: Spent,
    lock: int | None,
) -> Spent:
    """Train runs; one whose process was lost goes on in another one from its last checkpoint. Return what they took."""
    numbers = {run: number for number, run in enumerate(runs_of(StudySettings.from_options(file.frozen["settings"])))}
    memory: list[int] = []

    def told(index: int, message: dict[str, Any]) -> None:
        if "memory" in message:
            memory.extend(filter(None, [message["memory"]]))
            return
        for method, arguments in message.items():
            getattr(observer, method)(runs[index], *arguments)
        if "run_ended" in message:
            file.refresh()

    began = time.monotonic()
    executor.run(
        task,
        [{"run": numbers[run], "folder": str(run.directory(Path()))} for run in runs],
        told=told,
        lost=lambda index, reason: observer.worker_lost(runs[index], reason),
        keep=lock,
    )
    return dataclasses.replace(estimated, seconds=time.monotonic() - began, bytes=max(memory, default=None))


def measure_costs(settings: StudySettings, out: Path, observer: Observer, executor: Executor, task: Task) -> None:
    """Measure what a step of each arm takes, unless that was done."""
    names = {arm.name for arm in timed_arms(settings)}
    costs = read_costs(out)
    if not names or (costs and costs.keys() == names):
        return
    observer.costs_started(len(names))
    executor.run(
        task,
        [TIMING],
        told=lambda index, message: write_json(out / "cost.json", {"arms": message["timed"]}),
        lost=lambda index, reason: None,
    )


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
    settings: StudySettings,
    out: Path,
    text: str | None,
    corpus: Corpus,
    versions: dict[str, str],
    *,
    resume: bool,
    force: bool,
) -> dict[str, Any]:
    """Write study.json into a new study's directory, or compare with the one that is there; return its content."""
    versions = stamp() | versions
    # what the models are compared with has to be measured on the bytes that they are: 3.13 there, 3.08 on all of them
    windows = even_windows(corpus, VALIDATION_BATCHES * settings.batch, context=settings.context)
    frequencies = frequency_loss(corpus.train, windows[:, 1:].flatten(), corpus.vocabulary)
    asked = {
        "format": STUDY_FORMAT,
        **versions,
        "kernels": [name for name, state in evenkeel.kernels_available().items() if state.startswith("available")],
        "settings": settings.as_dict(),
        "text": text,
        "corpus": corpus.describe() | {"frequency_loss": frequencies},
    }
    return STUDY_FILE.freeze(out, asked, resume=resume, force=force)


def changed_text(frozen: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """Yield that a text at the same place has other content, if it has."""
    if frozen["text"] == asked["text"] and frozen["corpus"].get("digest") != asked["corpus"]["digest"]:
        yield f"the content of the text ({asked['corpus']['source']}) has changed"


STUDY_FILE = FrozenFile(
    name=STUDY,
    owner="a study",
    run="a study",
    options="settings",
    fixed=("text", "evenkeel", "torch", "kernels"),
    own=("arms", "cost.json", "spent.json", "summary.json", "report.html"),
    format=STUDY_FORMAT,
    content=FrozenStudy,
    differences=changed_text,
    defaults=dataclasses.asdict(Compute()) | {"vocabulary": None},
)
