"""`evenkeel study`: train the same transformer with each norm and placement on one text."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from evenkeel._errors import StudyError
from evenkeel.cli.experiments import find_experiments, list_experiments, parse_assignments, run_named
from evenkeel.cli.progress import make_observer
from evenkeel.lab import DEFAULT_ARMS, FEED_FORWARDS, StudySettings, ranking_table, read_study, run_study
from evenkeel.lab.runner import path_as_text
from evenkeel.report import print_table

__all__ = ["study"]

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
TOP_FINDINGS = 3
DEFAULTS = {field.name: field.default for field in dataclasses.fields(StudySettings)}


class Terminated(KeyboardInterrupt):
    """SIGTERM, made to end a study the way Ctrl-C does."""


def option(text: str, default: str = "") -> Any:
    """Return a Typer option whose help names the default: the option itself is None unless typed."""
    return typer.Option(help=f"{text} Default: {default}." if default else text, show_default=False)


def path_option(text: str, default: str) -> Any:
    """Return the option of a path, which an unset variable of a script must not turn into the present directory."""
    return typer.Option(help=f"{text} Default: {default}.", show_default=False, parser=parse_path, metavar="<path>")


def parse_path(value: str) -> Path:
    """Return a path as typed, which must not be empty."""
    if not value:
        raise typer.BadParameter("the path is empty; give one, or leave the option out")
    return Path(value)


def setting(text: str, name: str) -> Any:
    """Return the option of a setting that has a plain default."""
    return option(text, str(DEFAULTS[name]))


def study(
    text: Annotated[Path | None, path_option("Text file or directory.", "Python's standard library")] = None,
    out: Annotated[Path | None, path_option("Directory to write to.", "runs/study-<time>")] = None,
    arms: Annotated[str | None, option("Arms, comma-separated.", ", ".join(DEFAULT_ARMS))] = None,
    depth: Annotated[int | None, setting("Blocks.", "depth")] = None,
    width: Annotated[int | None, setting("Size of the residual stream.", "width")] = None,
    heads: Annotated[int | None, setting("Attention heads; divides the width.", "heads")] = None,
    context: Annotated[int | None, setting("Bytes of a sequence.", "context")] = None,
    batch: Annotated[int | None, setting("Sequences of a step.", "batch")] = None,
    steps: Annotated[int | None, setting("Training steps of each arm.", "steps")] = None,
    lr: Annotated[float | None, setting("Highest learning rate.", "lr")] = None,
    warmup: Annotated[int | None, option("Steps of warm-up.", "a tenth of the steps")] = None,
    clip: Annotated[float | None, option("Largest gradient norm.", "no clipping")] = None,
    weight_decay: Annotated[float | None, setting("Of linear maps' matrices.", "weight_decay")] = None,
    feed_forward: Annotated[
        str | None, setting(f"{' | '.join(FEED_FORWARDS)} (not of presets).", "feed_forward")
    ] = None,
    bias: Annotated[bool | None, option("Bias terms (not of presets).", "bias")] = None,
    qk_norm: Annotated[bool | None, option("Normalize queries and keys (not of presets).", "no-qk-norm")] = None,
    seed: Annotated[int | None, setting("Of initialization and data order.", "seed")] = None,
    seeds: Annotated[int | None, setting("Seeds that each arm runs.", "seeds")] = None,
    threads: Annotated[int | None, setting("Processor threads; more pay off for larger models.", "threads")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study in --out, if there is one.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    experiment: Annotated[str | None, option("Run experiments instead: names, comma-separated, or all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="An experiment's option, name=value; repeatable.", metavar="NAME=VALUE"),
    ] = None,
) -> int:
    """Train the same small transformer with each norm and placement on a text, and report what that shows.

    Arms are none, <placement>-<norm> with placement pre, post, peri or output-only and norm layer, rms, batch or dyt,
    and the presets gpt2, bert, llama, gemma2, olmo2.

    With --experiment, measure a claim of the literature instead (--list shows them); the options above that an
    experiment has too apply to it, --set gives the others.
    """
    # The parameters named as settings are: what was not typed is None, and left to the study or to the defaults.
    typed = {name: value for name, value in locals().items() if name in DEFAULTS and value is not None}
    if list_:
        list_experiments()
        return 0
    if experiment is not None:
        if text is not None:
            raise StudyError("experiments use their own data; leave --text out")
        typed |= parse_assignments(set_ or ())
        return run_experiment_command(experiment, typed, out, resume=resume, quiet=quiet)
    if set_:
        raise StudyError("--set gives options of an experiment; name it with --experiment")
    if arms is not None:
        typed["arms"] = [name.strip() for name in arms.split(",") if name.strip()]
    return run(typed, text, out, resume=resume, quiet=quiet)


def run_experiment_command(names: str, typed: dict[str, Any], out: Path | None, *, resume: bool, quiet: bool) -> int:
    """Run the experiments that are named."""
    experiments = find_experiments(names)
    out = where(out, "experiments", resume=resume)
    options = " ".join(f"--set {name}={value}" for name, value in typed.items())
    again = f"evenkeel study --experiment {names} --out {shlex.quote(str(out))} --resume {options}".rstrip()
    return guarded(lambda: run_named(experiments, out, typed, resume=resume, quiet=quiet), again)


def where(out: Path | None, kind: str, *, resume: bool) -> Path:
    """Return the directory to write to: the one typed, or a new one under runs/."""
    if out is None and resume:
        raise StudyError("--resume needs --out: the directory of the study to continue")
    return out or Path("runs") / f"{kind}-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}"


def run(typed: dict[str, Any], text: Path | None, out: Path | None, *, resume: bool, quiet: bool) -> int:
    """Run the study that the typed options ask for; a resumed one takes the others from what it froze."""
    out = where(out, "study", resume=resume)
    frozen = read_study(out) if resume else None
    settings = StudySettings.from_options({**(frozen["settings"] if frozen else {}), **typed})
    if text is None and frozen and frozen["text"]:
        text = Path(frozen["text"])

    def work() -> int:
        with make_observer(settings.steps, len(settings.arms) * settings.seeds, quiet=quiet) as observer:
            summary = run_study(settings, out, text=text, resume=resume, observer=observer)
        show(summary, out)
        return 0

    return guarded(work, f"evenkeel study --out {shlex.quote(str(out))} --resume")


def guarded(work: Callable[[], int], again: str) -> int:
    """Do long work; Ctrl-C and SIGTERM end it with the command that goes on with it, and the shell's exit code."""
    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        return work()
    except KeyboardInterrupt as error:
        typer.echo(f"interrupted; continue with: {again}", err=True)
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)


def terminate(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exception, so that files are closed on the way out."""
    raise Terminated


def show(summary: dict[str, Any], out: Path) -> None:
    """Print the ranking, the most important findings and where the report is."""
    print_table(ranking_table(summary))
    for number, finding in enumerate(summary["findings"][:TOP_FINDINGS], start=1):
        typer.echo(f"{number}. {finding['title']}. {finding['text']}")
    typer.echo(f"report: {path_as_text(out / 'report.html')}")
