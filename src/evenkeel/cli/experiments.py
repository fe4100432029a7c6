"""`evenkeel study --experiment`: run experiments, or list them."""

from __future__ import annotations

import datetime
import difflib
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from evenkeel._errors import StudyError
from evenkeel.lab.experiments import EXPERIMENTS, VERDICTS, Claim, Experiment, ExperimentObserver, run_experiments
from evenkeel.lab.files import path_as_text
from evenkeel.report import Table, print_table

__all__ = ["ExperimentLines", "find_experiments", "list_experiments", "parse_assignments", "run_named"]

ALL = "all"


class ExperimentLines(ExperimentObserver):
    """A line on stderr when an experiment begins and ends, and every few seconds between."""

    every = 5.0  # seconds

    def __init__(self) -> None:
        self.title = ""
        self.started = self.said = time.monotonic()
        self.first = 0

    def experiment_started(self, experiment: Experiment, done: int, total: int) -> None:
        """Say which, and what is kept from before."""
        kept = f", {done} kept from before" if done else ""
        typer.echo(f"{experiment.name}: {total} trials{kept}", err=True)
        self.title, self.first = experiment.name, done
        self.started = self.said = time.monotonic()

    def trial_done(self, trial: Mapping[str, Any], done: int, total: int) -> None:
        """Say how far it is and how long it will take."""
        now = time.monotonic()
        if now - self.said >= self.every:
            left = (now - self.started) / (done - self.first) * (total - done)
            typer.echo(f"{self.title}: {done}/{total} trials, about {left:.0f} s left", err=True)
            self.said = now

    def experiment_ended(self, experiment: Experiment, claims: Sequence[Claim]) -> None:
        """Say how the claims fared."""
        counts = [
            f"{number} {text}" for key, text in VERDICTS.items() if (number := sum(c.verdict == key for c in claims))
        ]
        typer.echo(f"{experiment.name}: {', '.join(counts) or 'no claims'}", err=True)


def list_experiments() -> None:
    """Print the experiments with their questions."""
    rows = [[experiment.name, experiment.question] for experiment in EXPERIMENTS.values()]
    print_table(Table(["experiment", "question"], rows))


def find_experiments(names: str) -> list[Experiment]:
    """Return the experiments that a comma-separated list names, or every one for `all`."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise StudyError(f"no experiment named; choose of {', '.join(EXPERIMENTS)}, or all")
    if wanted == [ALL]:
        return list(EXPERIMENTS.values())
    for name in wanted:
        if name not in EXPERIMENTS:
            near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise StudyError(f"no experiment is called {name!r}; {hint}there are {', '.join(EXPERIMENTS)}, and all")
    return [EXPERIMENTS[name] for name in dict.fromkeys(wanted)]


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """Return the options of `--set name=value`."""
    found = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign or not name.strip():
            raise StudyError(f"--set takes name=value, but got {assignment!r}")
        found[name.strip().replace("-", "_")] = value.strip()
    return found


def run_named(names: str, out: Path | None, typed: Mapping[str, Any], *, resume: bool, quiet: bool) -> int:
    """Run the experiments that are named, and print what became of the claims."""
    experiments = find_experiments(names)
    if resume and out is None:
        raise StudyError("--resume needs --out: the directory of the run to continue")
    out = out or Path("runs") / f"experiments-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}"
    observer = ExperimentObserver() if quiet else ExperimentLines()
    try:
        options = {experiment.name: typed for experiment in experiments}
        summaries = run_experiments(experiments, out, options=options, resume=resume, observer=observer)
    except KeyboardInterrupt:
        again = f"evenkeel study --experiment {names} --out {shlex.quote(str(out))} --resume"
        typer.echo(f"interrupted; continue with the same options: {again}", err=True)
        raise
    for summary in summaries:
        for claim in summary["claims"]:
            typer.echo(f"{VERDICTS[claim['verdict']]}: {claim['claim']} ({claim['source']}). {claim['measured']}.")
    typer.echo(f"report: {path_as_text(out / 'report.html')}")
    return 0
