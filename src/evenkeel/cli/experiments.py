"""The work of `evenkeel study --experiment`: run experiments, or list them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from evenkeel._files import path_as_text
from evenkeel._options.workers import Workers
from evenkeel.cli import interrupts
from evenkeel.cli.output import Output, print_json
from evenkeel.cli.study import new_directory, resumable
from evenkeel.lab.experiments import EXPERIMENTS, VERDICTS, ExperimentObserver, run_experiments
from evenkeel.lab.progress import ExperimentLines
from evenkeel.report import Table, print_table


@interrupts.raising()
def list_experiments(output: Output) -> int:
    """Print the experiments with their questions."""
    if output.as_json:
        print_json({experiment.name: experiment.question for experiment in EXPERIMENTS.values()})
    else:
        rows = [[experiment.name, experiment.question] for experiment in EXPERIMENTS.values()]
        print_table(Table(["experiment", "question"], rows))
    return 0


@interrupts.raising()
def run_named(
    options: Mapping[str, dict[str, Any]],
    out: Path | None,
    typed: Mapping[str, Any],
    output: Output,
    *,
    resume: bool,
    force: bool,
    quiet: bool,
    workers: Workers,
) -> int:
    """Run experiments with what was typed for each, and print what became of their claims."""
    experiments = [EXPERIMENTS[name] for name in options]
    out = out or new_directory("experiments")
    observer = ExperimentObserver() if quiet else ExperimentLines()
    words = ["evenkeel", "study", "--experiment", ",".join(options), "--out", path_as_text(out), "--resume"]
    words += [word for name, value in typed.items() for word in ("--set", f"{name}={value}")]
    with resumable(shlex.join(words)):
        keep: dict[str, Any] = {"resume": resume, "force": force, "workers": workers}
        summaries = run_experiments(experiments, out, options=options, observer=observer, **keep)
    if output.as_json:
        print_json({"experiments": summaries, "report": out / "report.html"})
    else:
        for claim in (claim for summary in summaries for claim in summary["claims"]):
            typer.echo(f"{VERDICTS[claim['verdict']]}: {claim['claim']} ({claim['source']}). {claim['measured']}.")
    output.announce("report", out / "report.html")
    return 0
