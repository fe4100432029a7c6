"""`evenkeel study --experiment`: run experiments, or list them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from evenkeel._errors import StudyError
from evenkeel.cli.progress import ExperimentLines
from evenkeel.lab.experiments import EXPERIMENTS, VERDICTS, Experiment, ExperimentObserver, run_experiments
from evenkeel.lab.runner import path_as_text
from evenkeel.report import Table, print_table

__all__ = ["find_experiments", "list_experiments", "parse_assignments", "run_named"]

ALL = "all"


def list_experiments() -> None:
    """Print the experiments with their questions."""
    rows = [[experiment.name, experiment.question] for experiment in EXPERIMENTS.values()]
    print_table(Table(["experiment", "question"], rows))


def find_experiments(names: str) -> list[Experiment]:
    """Return the experiments that a comma-separated list names, or every one for `all`."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    if not listed:
        raise StudyError(f"no experiment named; choose of {', '.join(EXPERIMENTS)}, or all")
    if listed == [ALL]:
        return list(EXPERIMENTS.values())
    for name in listed:
        if name not in EXPERIMENTS:
            near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise StudyError(f"no experiment is called {name!r}; {hint}there are {', '.join(EXPERIMENTS)}, and all")
    return [EXPERIMENTS[name] for name in dict.fromkeys(listed)]


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """Return the options of `--set name=value`."""
    options = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign or not name.strip():
            raise StudyError(f"--set takes name=value, but got {assignment!r}")
        owner, dot, option = name.strip().rpartition(".")
        options[owner + dot + option.replace("-", "_")] = value.strip()
    return options


def run_named(
    experiments: Sequence[Experiment], out: Path, typed: Mapping[str, Any], *, resume: bool, quiet: bool
) -> int:
    """Run experiments, and print what became of their claims."""
    options = options_of_each(experiments, typed)
    observer = ExperimentObserver() if quiet else ExperimentLines()
    summaries = run_experiments(experiments, out, options=options, resume=resume, observer=observer)
    for summary in summaries:
        for claim in summary["claims"]:
            typer.echo(f"{VERDICTS[claim['verdict']]}: {claim['claim']} ({claim['source']}). {claim['measured']}.")
    typer.echo(f"report: {path_as_text(out / 'report.html')}")
    return 0


def options_of_each(experiments: Sequence[Experiment], typed: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was typed for each experiment: `name` is meant for all of them, `experiment.name` for one."""
    options: dict[str, dict[str, Any]] = {experiment.name: {} for experiment in experiments}
    for key, value in typed.items():
        owner, dot, name = key.rpartition(".")
        if dot and owner not in options:
            raise StudyError(
                f"--set {key}: no experiment of this run is called {owner!r}; it runs {', '.join(options)}"
            )
        for target in [owner] if dot else options:
            options[target][name] = value
    return options
