"""`evenkeel study`: train the same transformer with each norm and placement on one text, or run experiments."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from evenkeel._errors import StudyError
from evenkeel._options.arms import DEFAULT_ARMS, FEED_FORWARD_NAMES, LONG_WARMUP, arm_names
from evenkeel._options.names import EXPERIMENT_NAMES, check_experiment
from evenkeel._options.study import StudySettings
from evenkeel.cli.options import (
    OUTPUT,
    RUNNING,
    Force,
    Json,
    Open,
    Quiet,
    Resume,
    choice,
    flag,
    option,
    parse_threads,
    path_option,
    threads_option,
)
from evenkeel.cli.output import Output

__all__ = ["study"]

DEFAULTS = {field.name: field.default for field in dataclasses.fields(StudySettings)}
COMPARED, MODEL, TRAINING, EXPERIMENTS = "What is compared", "Model", "Training", "Experiments instead of a study"
ALL = "all"


def setting(text: str, name: str, panel: str) -> Any:
    """Return the option of a setting that has a plain default."""
    return option(text, panel=panel, default=DEFAULTS[name])


def study(
    text: Annotated[
        Path | None, path_option("Text file or directory.", panel=COMPARED, default="Python's standard library")
    ] = None,
    arms: Annotated[
        str | None,
        option(
            f"Comma-separated, of {', '.join(arm_names())}. "
            f"With +{LONG_WARMUP} behind it, an arm warms up over half of the steps.",
            panel=COMPARED,
            default=", ".join(DEFAULT_ARMS),
        ),
    ] = None,
    seed: Annotated[int | None, setting("Of initialization and data order.", "seed", COMPARED)] = None,
    seeds: Annotated[int | None, setting("Seeds that each arm runs at each rate.", "seeds", COMPARED)] = None,
    depth: Annotated[int | None, setting("Blocks.", "depth", MODEL)] = None,
    width: Annotated[int | None, setting("Size of the residual stream.", "width", MODEL)] = None,
    heads: Annotated[int | None, setting("Attention heads; divides the width.", "heads", MODEL)] = None,
    context: Annotated[int | None, setting("Bytes of a sequence.", "context", MODEL)] = None,
    feed_forward: Annotated[
        str | None, choice("Not of presets", FEED_FORWARD_NAMES, panel=MODEL, default=DEFAULTS["feed_forward"])
    ] = None,
    bias: Annotated[bool | None, option("Bias terms (not of presets).", panel=MODEL, default="bias")] = None,
    qk_norm: Annotated[
        bool | None, option("Normalize queries and keys (not of presets).", panel=MODEL, default="no-qk-norm")
    ] = None,
    batch: Annotated[int | None, setting("Sequences of a step.", "batch", TRAINING)] = None,
    steps: Annotated[int | None, setting("Training steps of each run.", "steps", TRAINING)] = None,
    lr: Annotated[
        str | None,
        option(
            "Highest learning rates, comma-separated; each arm is trained at each.",
            panel=COMPARED,
            default=", ".join(map(str, DEFAULTS["lr"])),
        ),
    ] = None,
    warmup: Annotated[int | None, option("Steps of warm-up.", panel=TRAINING, default="a tenth of the steps")] = None,
    clip: Annotated[float | None, option("Largest gradient norm.", panel=TRAINING, default="no clipping")] = None,
    weight_decay: Annotated[float | None, setting("Of linear maps' matrices.", "weight_decay", TRAINING)] = None,
    experiment: Annotated[
        str | None, option(f"Comma-separated, of {', '.join(EXPERIMENT_NAMES)}, or {ALL}.", panel=EXPERIMENTS)
    ] = None,
    set_: Annotated[
        list[str] | None,
        option("An option of theirs; repeatable.", "--set", panel=EXPERIMENTS, metavar="<name=value>"),
    ] = None,
    list_: Annotated[bool, flag("--list", "List them with their questions.", EXPERIMENTS)] = False,
    out: Annotated[
        Path | None, path_option("Directory to write to.", panel=OUTPUT, default="runs/study-<time>")
    ] = None,
    force: Force = False,
    as_json: Json = False,
    open_page: Open = False,
    workers: Annotated[
        int | None,
        option(
            "Trainings side by side, each in its own process.",
            panel=RUNNING,
            default="processors / threads",
            metavar="<int>",
            parser=parse_threads,
        ),
    ] = None,
    threads: Annotated[int | None, threads_option(f"{DEFAULTS['threads']} for each training")] = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> int:
    """Train the same small transformer with each norm and placement at each learning rate, and report what that shows.

    With --experiment, measure claims of the literature instead. The options above that an experiment has too apply \
to it; --set gives the others.
    """
    # The parameters named as settings are: what was not typed is None, and left to the study or to the defaults.
    typed = {name: value for name, value in locals().items() if name in DEFAULTS and value is not None}
    if force and resume:
        raise StudyError("--force starts afresh and --resume goes on; give one")
    if resume and out is None:
        raise StudyError("--resume needs --out: the directory of the study to continue")
    output = Output(open_page=open_page, as_json=as_json)
    keep = {"resume": resume, "force": force, "quiet": quiet}
    if list_ or experiment is not None:
        names = [] if experiment is None else check_experiments(experiment)
        assigned = parse_assignments(set_ or [])
        for name, value, reason in (("text", text, "use their own data"), ("workers", workers, "run in one process")):
            if value is not None:
                raise StudyError(f"experiments {reason}; leave --{name} out")
        from evenkeel.cli.experiments import list_experiments, run_named

        return list_experiments(output) if list_ else run_named(names, out, typed | assigned, output, **keep)
    if set_:
        raise StudyError("--set gives options of an experiment; name it with --experiment")
    if lr is not None:
        typed["lr"] = parse_rates(lr)
    if arms is not None:
        typed["arms"] = tuple(name.strip() for name in arms.split(",") if name.strip())
    if not resume:
        StudySettings(**typed)  # raises for impossible values; a resumed study adds its own to them
    if text is not None and not text.exists():
        raise StudyError(f"text {text} does not exist; give a text file or a directory of text files")
    from evenkeel.cli.study import run

    return run(typed, text, out, output, workers=workers, **keep)


def parse_rates(text: str) -> tuple[float, ...]:
    """Return the learning rates of a comma-separated list."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise StudyError(f"lr must be numbers with commas between them, but is {text!r}") from error


def check_experiments(text: str) -> list[str]:
    """Return the experiments that a comma-separated list names, or every one for `all`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == [ALL]:
        return list(EXPERIMENT_NAMES)
    if not names:
        raise StudyError(f"no experiment named; choose of those of `evenkeel study --list`, or {ALL}")
    for name in names:
        check_experiment(name)
    return list(dict.fromkeys(names))


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """Return the options of `--set name=value`."""
    options = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign or not name.strip():
            raise StudyError(f"--set takes name=value, but got {assignment!r}")
        owner, dot, option = name.strip().rpartition(".")
        options[owner + dot + option.replace("-", "_")] = value.strip()
    return options
