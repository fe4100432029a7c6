"""Running experiments: trial by trial, each kept as soon as it is measured, so that a run goes on where it stopped.

OUT/<experiment>/experiment.json    what was asked for, frozen; marks the directory as an experiment's own
OUT/<experiment>/records.jsonl      a line for each trial
OUT/<experiment>/summary.json       claims, what was measured, verdicts
OUT/report.html                     every experiment in OUT, to look at
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from evenkeel._directories import EXPERIMENT, check_experiments
from evenkeel._errors import StudyError
from evenkeel._files import replace_file
from evenkeel._options.experiments import Options
from evenkeel._options.workers import Workers
from evenkeel._packages import check_packages
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial
from evenkeel.lab.experiments._page import draw, experiments_page
from evenkeel.lab.experiments._schemas import FrozenExperiment, Summary, TrialRecord
from evenkeel.lab.experiments._worker import prepare, trial_work
from evenkeel.lab.experiments.catalogue import EXPERIMENTS
from evenkeel.lab.runner import (
    FORMAT,
    Executor,
    FrozenFile,
    Records,
    Task,
    executor_of,
    platform_name,
    processors,
    read_records,
    run_directory,
    stamp,
    write_json,
)
from evenkeel.report import write_page

EXPERIMENT_FILE = FrozenFile(
    name=EXPERIMENT,
    owner="an experiment",
    run="a run",
    options="options",
    fixed=("evenkeel", "torch"),
    own=("records.jsonl", "summary.json"),
    content=FrozenExperiment,
)


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

    def worker_lost(self, trial: Trial, reason: str) -> None:
        """The process of a trial ended before the trial was measured; another one measures it."""

    def experiment_ended(self, experiment: Experiment, claims: Sequence[Claim]) -> None:
        """An experiment's trials are all measured, and its claims judged."""


def run_experiments(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    resume: bool = False,
    force: bool = False,
    observer: ExperimentObserver | None = None,
    workers: int | Workers = 1,
) -> list[dict[str, Any]]:
    """Measure every trial of each experiment, write records, summaries and the report, and return the summaries.

    Interrupted at any moment, a run goes on with `resume`: trials that are measured are not measured again.

    Args:
        experiments: what to run, in this order.
        out: the directory to write to.
        options: for each experiment by name, the options that differ from its defaults.
        resume: continue what is in `out`.
        force: measure these experiments afresh where `out` holds them.
        observer: is told how it goes on.
        workers: how many trials are measured side by side, and where; experiments that time something are measured
            here, one trial after the other.

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
    observer = observer or ExperimentObserver()
    asked = [(each, each.read_options((options or {}).get(each.name, {}))) for each in experiments]
    most = max((settings.threads for _, settings in asked), default=1)
    check_packages(*(package for _, settings in asked for package in settings.packages))
    with executor_of(workers, threads=most) as executor, run_directory(out) as lock:
        check_experiments(out)
        doers = [executor_of(1, threads=most) if experiment.timed else executor for experiment, _ in asked]
        for (experiment, settings), doer in zip(asked, doers, strict=True):
            freeze(experiment, settings, out / experiment.name, doer.stamp(), resume=resume, force=force)
        for (experiment, settings), doer in zip(asked, doers, strict=True):
            run_trials(experiment, settings, out / experiment.name, observer, doer, lock)
            write_report(out)
        return [read_summary(out / experiment.name) for experiment, _ in asked]


def freeze(
    experiment: Experiment,
    options: Options,
    directory: Path,
    versions: dict[str, str],
    *,
    resume: bool,
    force: bool,
) -> None:
    """Write experiment.json for a new run, or compare with the one that is there."""
    machine = f"{processors()}, {platform_name()}"
    versions = stamp() | versions
    asked = {"format": FORMAT, "name": experiment.name, **versions, "machine": machine, "options": options.as_dict()}
    EXPERIMENT_FILE.freeze(directory, asked, resume=resume, force=force)


def run_trials(
    experiment: Experiment,
    options: Options,
    directory: Path,
    observer: ExperimentObserver,
    executor: Executor,
    lock: int | None,
) -> None:
    """Measure the trials that have no record yet, then write the summary."""
    path = directory / "records.jsonl"
    trials = experiment.trials(options)
    with naming_what_lacks(directory):
        done = {trial_key(record["trial"]) for record in read_records(path, TrialRecord)}
    left = [trial for trial in trials if trial_key(trial) not in done]
    before = len(trials) - len(left)
    observer.experiment_started(experiment, before, len(trials))
    with Records(path) as records:
        measured = set[int]()

        def told(index: int, message: dict[str, Any]) -> None:
            if index in measured:  # its process was lost after it had told this
                return
            records.write("trial", trial=left[index], **message)
            records.sync()
            measured.add(index)
            observer.trial_done(left[index], before + len(measured), len(trials))

        setup = {"name": experiment.name, "options": options.as_dict()}
        executor.run(
            Task(prepare, setup, trial_work(experiment, options)),
            [{"trial": trial} for trial in left],
            told=told,
            lost=lambda index, reason: observer.worker_lost(left[index], reason),
            keep=lock,
        )
    put_in_order(path, trials)
    summary = summarize(experiment, options, directory)
    write_json(directory / "summary.json", summary)
    observer.experiment_ended(experiment, [Claim(**claim) for claim in summary["claims"]])


def put_in_order(path: Path, trials: Sequence[Trial]) -> None:
    """Put the records in the order of their trials, in which one worker would have written them."""
    places = {trial_key(trial): place for place, trial in enumerate(trials)}
    lines = path.read_bytes().splitlines(keepends=True)
    ordered = sorted(lines, key=lambda line: places.get(trial_key(json.loads(line)["trial"]), len(places)))
    if ordered != lines:
        replace_file(path, b"".join(ordered))


def summarize(experiment: Experiment, options: Options, directory: Path) -> dict[str, Any]:
    """Return what an experiment's records say so far."""
    frozen = read_experiment(directory) or {}
    trials = experiment.trials(options)
    with naming_what_lacks(directory):
        records = flat_records(directory)
        seconds = sum(record["seconds"] for record in read_records(directory / "records.jsonl", TrialRecord))
        claims = [vars(claim) for claim in experiment.judge(options, records)]
    return {
        "format": FORMAT,
        "name": experiment.name,
        "title": experiment.title,
        **{key: frozen.get(key) for key in ("evenkeel", "torch", "created", "machine", "options")},
        **{key: frozen[key] for key in ("ray",) if key in frozen},
        "trials": len(trials),
        "complete": len(records) >= len(trials),
        "seconds": seconds,
        "claims": claims,
    }


def read_summary(directory: Path) -> dict[str, Any]:
    """Return the summary of an experiment; StudyError where it is damaged."""
    path = directory / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
        msgspec.convert(summary, Summary)
    except (RecursionError, ValueError) as error:
        raise StudyError(f"{path} is damaged; delete the directory {directory} to run this experiment again") from error
    return summary


def flat_records(directory: Path) -> list[Record]:
    """Return the records of an experiment: the trial's entries beside what was measured."""
    records = read_records(directory / "records.jsonl", TrialRecord)
    return [{**record["trial"], **record["measured"]} for record in records]


@contextlib.contextmanager
def naming_what_lacks(directory: Path) -> Iterator[None]:
    """Turn an entry that a record lacks, or that is no such value, into one clear line."""
    again = f"delete the directory {directory} to run this experiment again"
    try:
        yield
    except KeyError as error:
        raise StudyError(f"a record of {directory / 'records.jsonl'} lacks {error}; {again}") from error
    except (TypeError, ValueError) as error:
        raise StudyError(f"a record of {directory / 'records.jsonl'} is damaged ({error}); {again}") from error


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
    return EXPERIMENT_FILE.read(directory)


def write_report(out: Path) -> None:
    """Write report.html of every experiment in a directory."""
    runs = []
    for experiment in EXPERIMENTS.values():
        directory = out / experiment.name
        if (directory / "summary.json").exists():
            with naming_what_lacks(directory):
                runs.append(draw(experiment, read_summary(directory), flat_records(directory)))
    write_page(experiments_page(runs), out / "report.html")
