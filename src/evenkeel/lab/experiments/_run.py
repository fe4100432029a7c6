"""Running experiments: trial by trial, each kept as soon as it is measured, so that a run goes on where it stopped.

OUT/<experiment>/experiment.json    what was asked for, frozen; marks the directory as an experiment's own
OUT/<experiment>/records.jsonl      a line for each trial
OUT/<experiment>/summary.json       claims, what was measured, verdicts
OUT/report.html                     every experiment in OUT, to look at
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import evenkeel
from evenkeel._errors import StudyError
from evenkeel.lab.experiments._experiment import Claim, Experiment, Options, Record, Trial
from evenkeel.lab.files import Records, is_temporary, read_frozen, read_records, write_json
from evenkeel.lab.study import check_report_extra, locked, shown, threads, writing_to
from evenkeel.lab.summary import processor

__all__ = ["ExperimentObserver", "read_experiment", "run_experiments"]

FORMAT = 1
FROZEN_FILE = "experiment.json"


class ExperimentObserver:
    """Told how experiments go on; does nothing unless a method is overridden.

    Example:
        >>> from evenkeel.lab.experiments import ExperimentObserver
        >>> ExperimentObserver().trial_done({"seed": 0}, 1, 2)
    """

    def experiment_started(self, experiment: Experiment, done: int, total: int) -> None:
        """An experiment begins, or goes on, with this many of its trials done."""

    def trial_done(self, trial: Trial, done: int, total: int) -> None:
        """A trial is measured and kept."""

    def experiment_ended(self, experiment: Experiment, claims: Sequence[Claim]) -> None:
        """An experiment's trials are all measured, and its claims judged."""


def run_experiments(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    resume: bool = False,
    observer: ExperimentObserver | None = None,
) -> list[dict[str, Any]]:
    """Measure every trial of each experiment, write records, summaries and the report, and return the summaries.

    Interrupted at any moment, a run goes on with `resume`: trials that are measured are not measured again.

    Args:
        experiments: what to run, in this order.
        out: the directory to write to.
        options: for each experiment by name, the options that differ from its defaults.
        resume: continue what is in `out`.
        observer: is told how it goes on.

    Returns:
        One summary for each experiment, as in its summary.json.

    Raises:
        StudyError: an option is wrong; `out` is foreign, in use or cannot be written; what is to be resumed had other
            options or versions.

    Example:
        >>> import tempfile, pathlib
        >>> from evenkeel.lab.experiments import EXPERIMENTS, run_experiments
        >>> tiny = {"padding": {"seeds": 1, "lengths": (4, 8), "features": 3, "batch": 4}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (summary,) = run_experiments([EXPERIMENTS["padding"]], pathlib.Path(folder), options=tiny)
        >>> summary["complete"]
        True
    """
    check_report_extra()
    observer = observer or ExperimentObserver()
    asked = [
        (experiment, experiment.read_options((options or {}).get(experiment.name, {}))) for experiment in experiments
    ]
    with writing_to(out), locked(out):
        check_directory(out)
        for experiment, chosen in asked:
            freeze(experiment, chosen, out / experiment.name, resume=resume)
        for experiment, chosen in asked:
            with threads(chosen.threads):
                run_trials(experiment, chosen, out / experiment.name, observer)
            write_report(out)
        return [json.loads((out / experiment.name / "summary.json").read_text()) for experiment, _ in asked]


def run_trials(experiment: Experiment, options: Options, directory: Path, observer: ExperimentObserver) -> None:
    """Measure the trials that have no record yet, then write the summary."""
    path = directory / "records.jsonl"
    trials = experiment.trials(options)
    kept, size = complete_records(path)
    done = {trial_key(record["trial"]) for record in kept}
    left = [trial for trial in trials if trial_key(trial) not in done]
    observer.experiment_started(experiment, len(trials) - len(left), len(trials))
    with Records(path, keep=size) as records:
        for number, trial in enumerate(left, start=len(trials) - len(left) + 1):
            start = time.perf_counter()
            measured = experiment.measure(options, trial)
            records.write("trial", trial=trial, seconds=time.perf_counter() - start, measured=measured)
            records.sync()
            observer.trial_done(trial, number, len(trials))
    summary = summarize(experiment, options, directory)
    write_json(directory / "summary.json", summary)
    observer.experiment_ended(experiment, [Claim(**claim) for claim in summary["claims"]])


def summarize(experiment: Experiment, options: Options, directory: Path) -> dict[str, Any]:
    """Return what an experiment's records say so far."""
    frozen = read_experiment(directory) or {}
    records = flat_records(directory)
    trials = experiment.trials(options)
    return {
        "format": FORMAT,
        "name": experiment.name,
        "title": experiment.title,
        **{key: frozen.get(key) for key in ("evenkeel", "torch", "created", "machine", "options")},
        "trials": len(trials),
        "complete": len(records) >= len(trials),
        "seconds": sum(record["seconds"] for record in read_records(directory / "records.jsonl")),
        "claims": [vars(claim) for claim in experiment.judge(options, records)],
    }


def flat_records(directory: Path) -> list[Record]:
    """Return the records of an experiment: the trial's entries beside what was measured."""
    return [{**record["trial"], **record["measured"]} for record in read_records(directory / "records.jsonl")]


def complete_records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the whole records of a file and how many bytes they take; an unfinished last line is left out."""
    records = list(read_records(path))
    content = path.read_bytes() if path.exists() else b""
    return records, content.rfind(b"\n") + 1


def trial_key(trial: Trial) -> str:
    """Return a trial as one text, the same for the same entries in any order."""
    return json.dumps(trial, sort_keys=True)


def read_experiment(directory: Path) -> dict[str, Any] | None:
    """Return what an experiment froze at its start, or None if its directory holds none.

    Args:
        directory: the experiment's directory, which need not exist.

    Raises:
        StudyError: its experiment.json is damaged or of another format.

    Example:
        >>> import pathlib
        >>> from evenkeel.lab.experiments import read_experiment
        >>> read_experiment(pathlib.Path("no-such-run/padding")) is None
        True
    """
    return read_frozen(directory / FROZEN_FILE, "an experiment's", version=FORMAT)


def freeze(experiment: Experiment, options: Options, directory: Path, *, resume: bool) -> None:
    """Write experiment.json for a new run, or compare with the one that is there."""
    asked = {
        "format": FORMAT,
        "name": experiment.name,
        "evenkeel": evenkeel.__version__,
        "torch": torch.__version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{processor()}, {os.cpu_count()} logical processors, {platform.system()} {platform.machine()}",
        "options": options.as_dict(),
    }
    frozen = read_experiment(directory)
    if frozen is None:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / FROZEN_FILE, asked)
        return
    if not resume:
        raise StudyError(f"{directory} already holds a run; continue it with --resume, or choose another --out")
    if differences := list(compare(frozen, asked)):
        raise StudyError(
            f"cannot resume {directory}: {'; '.join(differences)}; resume with what it began with, or choose another "
            "--out"
        )


def compare(frozen: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between a run and what is asked of it, in words."""
    for name, value in asked["options"].items():
        if (before := frozen["options"].get(name)) != value:
            yield f"{name} was {shown(before)}, now {shown(value)}"
    for name in ("evenkeel", "torch"):
        if frozen.get(name) != asked[name]:
            yield f"{name} was {frozen.get(name)}, now {asked[name]}"


def check_directory(out: Path) -> None:
    """Refuse a directory that holds something else."""
    for entry in out.iterdir():
        known = entry.name == "report.html" or is_temporary(entry) or (entry / FROZEN_FILE).exists()
        if not known and not (entry.is_dir() and not any(entry.iterdir())):
            raise StudyError(
                f"{out} holds {entry.name}, which is not an experiment's; choose a new directory with --out"
            )


def write_report(out: Path) -> None:
    """Write report.html of every experiment in a directory."""
    from evenkeel.lab.experiments import EXPERIMENTS
    from evenkeel.lab.experiments._page import experiments_page
    from evenkeel.report import write_page

    found = [
        (experiment, json.loads(path.read_text()), flat_records(path.parent))
        for experiment in EXPERIMENTS.values()
        if (path := out / experiment.name / "summary.json").exists()
    ]
    write_page(experiments_page(found), out / "report.html")
