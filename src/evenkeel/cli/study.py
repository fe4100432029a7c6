"""The work of `evenkeel study`: a study, its progress, and what it prints."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from evenkeel._files import path_as_text
from evenkeel._options.workers import Workers
from evenkeel.cli import interrupts
from evenkeel.cli.output import Output, print_json
from evenkeel.lab import StudyResult, compare_studies, study
from evenkeel.report import print_table

TERMINATED = 128 + signal.SIGTERM
TOP_FINDINGS = 3


def new_directory(kind: str) -> Path:
    """Return a new directory under runs/."""
    return Path("runs") / f"{kind}-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}"


@interrupts.raising()
def run(
    typed: dict[str, Any],
    source: tuple[str | None, dict[str, object]],
    out: Path | None,
    output: Output,
    *,
    workers: Workers,
    resume: bool,
    force: bool,
    quiet: bool,
) -> int:
    """Run the study that the typed options ask for; a resumed one takes the others from what it froze.

    The source is the text and the options of its store, which may be secrets: they are not kept, nor shown.
    """
    out = out or new_directory("study")
    text, stored = source
    again = f"evenkeel study --out {shlex.quote(path_as_text(out))} --resume{' --storage-option …' if stored else ''}"
    keep: dict[str, Any] = {"resume": resume, "force": force, "progress": not quiet, "workers": workers}
    with resumable(again):
        result = study(text=text, out=out, storage_options=stored, **keep, **typed)
    show(result, out, output)
    return 0


@interrupts.raising()
def compare_directories(studies: Sequence[Path], output: Output) -> int:
    """Compare studies, print the differences and the findings, and write the page if there is to be one."""
    comparison = compare_studies(*studies)
    output.write("comparison", comparison.save)
    if output.as_json:
        print_json(dict(comparison.summary))
    else:
        print_table(comparison.table())
        for number, finding in enumerate(comparison.findings()[:TOP_FINDINGS], start=1):
            typer.echo(f"{number}. {finding.title}.")
    return 0


@contextlib.contextmanager
def resumable(again: str) -> Iterator[None]:
    """Do long work; Ctrl-C and SIGTERM end it with the command that goes on with it, and the shell's exit code."""
    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        with interrupts.advising(lambda: f"continue with: {again}"):
            yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def terminate(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exception, so that files are closed on the way out, as they are after Ctrl-C."""
    raise interrupts.Interrupted("", TERMINATED)


def show(result: StudyResult, out: Path, output: Output) -> None:
    """Print the ranking, the three findings of the largest effect, a line each, and where the report is."""
    if output.as_json:
        print_json(dict(result.summary) | {"report": out / "report.html"})
    else:
        print_table(result.table())
        for number, finding in enumerate(result.findings()[:TOP_FINDINGS], start=1):
            typer.echo(f"{number}. {finding.title}.")
    output.announce("report", out / "report.html")
