"""`evenkeel study`: train the same transformer with each norm and placement on one text, or run experiments.

`evenkeel study compare` joins studies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from evenkeel._directories import EXPERIMENT, STUDY, check_experiments, check_new, check_study
from evenkeel._errors import StudyError
from evenkeel._options.arms import DEFAULT_ARMS, FEED_FORWARD_NAMES, LONG_WARMUP, arm_names
from evenkeel._options.names import EXPERIMENT_NAMES, EngineName, check_experiment, nearest
from evenkeel._options.study import (
    DEVICES,
    FLAG,
    PRECISIONS,
    SETTINGS,
    TEXT,
    TEXTS,
    WHOLE,
    Kind,
    StudySettings,
    check_kind,
)
from evenkeel._options.urls import parse_storage_options, scheme_of
from evenkeel._options.workers import Workers
from evenkeel._packages import REPORT, check_packages
from evenkeel.cli.options import (
    OUTPUT,
    RUNNING,
    Force,
    Html,
    Json,
    Open,
    Quiet,
    Resume,
    Storage,
    check_output,
    check_workers,
    choice,
    examples,
    flag,
    missing_source,
    option,
    option_names,
    parse_target,
    parse_threads,
    parse_url,
    path_option,
    threads_option,
)
from evenkeel.cli.output import Output

__all__ = ["study"]

DEFAULTS = {field.name: field.default for field in dataclasses.fields(StudySettings)}
COMPARED, MODEL, TRAINING, EXPERIMENTS = "What is compared", "Model", "Training", "Experiments instead of a study"
ALL = "all"
# What a file of options may hold beside the settings, each as it is typed.
BESIDE_SETTINGS: dict[str, Kind] = {
    "text": TEXT,
    "storage_option": TEXTS,
    "out": TEXT,
    "workers": WHOLE,
    "engine": TEXT,
    "address": TEXT,
    "quiet": FLAG,
}

study = typer.Typer(
    epilog=examples(
        "evenkeel study --text corpus.txt --arms pre-rms,llama --out runs/mine",
        "evenkeel study --experiment padding --out runs/padding --open",
    ),
    no_args_is_help=False,
)


def setting(text: str, name: str, panel: str) -> Any:
    """Return the option of a setting that has a plain default."""
    return option(text, panel=panel, default=DEFAULTS[name])


@study.callback(invoke_without_command=True)
def train(
    group: typer.Context,
    *,
    text: Annotated[
        str | None,
        option(
            "Text file or directory; Parquet or Arrow files of text or token ids (path::column); or a URL.",
            panel=COMPARED,
            default="Python's standard library",
            metavar="<path>",
            parser=parse_target,
        ),
    ] = None,
    storage_option: Storage = None,
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
    context: Annotated[int | None, setting("Bytes or tokens of a sequence.", "context", MODEL)] = None,
    vocabulary: Annotated[
        int | None, option("How many token ids there are.", panel=MODEL, default="as many as the largest says")
    ] = None,
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
    device: Annotated[
        str | None, choice("Where steps are computed", DEVICES, panel=TRAINING, default=DEFAULTS["device"])
    ] = None,
    precision: Annotated[
        str | None, choice("Of linear maps and attention", PRECISIONS, panel=TRAINING, default=DEFAULTS["precision"])
    ] = None,
    compile_: Annotated[
        bool | None, option("Compile the models.", "--compile/--no-compile", panel=TRAINING, default="no-compile")
    ] = None,
    accumulate: Annotated[
        int | None, setting("Parts of a batch whose gradients are summed.", "accumulate", TRAINING)
    ] = None,
    experiment: Annotated[
        str | None, option(f"Comma-separated, of {', '.join(EXPERIMENT_NAMES)}, or {ALL}.", panel=EXPERIMENTS)
    ] = None,
    set_: Annotated[
        list[str] | None,
        option("An option of theirs; repeatable.", "--set", panel=EXPERIMENTS, metavar="<name=value>"),
    ] = None,
    list_: Annotated[bool, flag("--list", "List them with their questions.", EXPERIMENTS)] = False,
    from_: Annotated[
        Path | None, path_option("TOML file of these options; what is typed goes first.", "--from", panel=RUNNING)
    ] = None,
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
            default="processors / threads; 1 for experiments",
            metavar="<int>",
            parser=parse_threads,
        ),
    ] = None,
    engine: Annotated[str | None, choice("Who trains", get_args(EngineName), panel=RUNNING, default="local")] = None,
    address: Annotated[
        str | None,
        option(
            "Of the Ray cluster: host:port or auto.",
            panel=RUNNING,
            default="RAY_ADDRESS, or a cluster in this machine",
            metavar="<address>",
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
    typed = {name.rstrip("_"): value for name, value in locals().items() if value is not None and name != "quiet"}
    if group.invoked_subcommand is not None:
        refuse_options(group)
        return 0
    typed = {name: value for name, value in typed.items() if name in (*DEFAULTS, *BESIDE_SETTINGS)}
    if from_ is not None:
        typed = read_options_file(from_, option_names(group)) | typed
    beside = {name: typed.pop(name, None) for name in BESIDE_SETTINGS}
    place = None if beside["out"] is None else Path(beside["out"])
    if force and resume:
        raise StudyError("--force starts afresh and --resume goes on; give one")
    if resume:
        check_resumed(place, asked=bool(typed or beside["text"] or experiment))
    output = Output(open_page=open_page, as_json=as_json)
    keep: dict[str, Any] = {
        "resume": resume,
        "force": force,
        "quiet": quiet or bool(beside["quiet"]),
        "workers": workers_of(beside, several=experiment is None),
    }
    if list_ or experiment is not None:
        names = [] if experiment is None else named_experiments(experiment)
        assigned = parse_assignments(set_ or [])
        if names and (beside["text"] is not None or beside["storage_option"]):
            raise StudyError("experiments use their own data; leave --text and --storage-option out")
        options = options_of_each(names, typed | assigned)
        if not list_:
            check_packages(*REPORT)
            check_place(place, names, resume=resume, force=force)
        from evenkeel.cli.experiments import list_experiments, run_named

        return list_experiments(output) if list_ else run_named(options, place, typed | assigned, output, **keep)
    if set_:
        raise StudyError("--set gives options of an experiment; name it with --experiment")
    parse_lists(typed)
    if not resume:
        StudySettings.from_options(typed)  # raises for impossible values; a resumed study adds its own to them
    check_text(beside["text"])
    check_place(place, resume=resume, force=force)
    check_packages(*REPORT)
    stored = parse_storage_options(beside["storage_option"], *([] if resume else [beside["text"]]))
    from evenkeel.cli.study import run

    return run(typed, (beside["text"], stored), place, output, **keep)


@study.command(
    epilog=examples(
        "evenkeel study compare runs/wide runs/narrow",
        "evenkeel study compare runs/a runs/b runs/c --html comparison.html --open",
    )
)
def compare(
    studies: Annotated[list[Path], typer.Argument(metavar="STUDY...", help="Directories of studies of the same text.")],
    html: Html = None,
    force: Force = False,
    open_page: Open = False,
    as_json: Json = False,
) -> int:
    """Join studies: each arm at its best rate, its loss compared seed by seed with the same arm of the first study."""
    check_output(html, "--html", force=force)
    for path in studies:
        if not (path / "summary.json").is_file():
            raise StudyError(f"{path} holds no summary of a study; give the directory that was its --out")
    output = Output(html, open_page, as_json=as_json)
    from evenkeel.cli.study import compare_directories

    return compare_directories(studies, output)


def refuse_options(group: typer.Context) -> None:
    """Raise `StudyError` for options of a study that stand before the name of a command, which has its own."""
    typed = [name for name, value in group.params.items() if value not in (None, False, [], ())]
    if typed:
        name = typed[0].rstrip("_").replace("_", "-")
        raise StudyError(f"--{name} belongs to `evenkeel study`, not to `evenkeel study {group.invoked_subcommand}`")


def workers_of(beside: Mapping[str, Any], *, several: bool) -> Workers:
    """Return who trains; where neither a number nor a cluster is asked for, experiments run in one process."""
    engine: Any = beside["engine"] or "local"
    count = None if several or engine == "ray" else 1
    if beside["workers"] is not None:
        count = beside["workers"]
    return check_workers(Workers(count=count, engine=engine, address=beside["address"]))


def check_resumed(place: Path | None, *, asked: bool) -> None:
    """Raise `StudyError` where there is nothing to resume, nor anything that says what to begin."""
    if place is None:
        raise StudyError("--resume needs --out: the directory of the study to continue")
    if not asked and not (place / STUDY).exists():
        raise StudyError(f"--resume: {place} holds no study to continue; name its directory with --out")


def read_options_file(path: Path, typed: Sequence[str]) -> dict[str, Any]:
    """Return the options that a TOML file gives, by the names that they have on the command line, which knows more."""
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"--from: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyError(f"--from: {path} is not TOML: {error}") from error
    options = {name.replace("-", "_"): value for name, value in content.items()}
    kinds = SETTINGS | BESIDE_SETTINGS
    try:
        parse_lists(options)
        for name, value in options.items():
            if f"--{name}" in typed and name not in kinds:
                raise StudyError(f"{name} is for the command line alone: type --{name}")
            if name not in kinds:
                raise StudyError(f"there is no option {name!r}; did you mean {nearest(name, kinds)}?")
            check_kind(name, value, kinds[name])
    except StudyError as error:
        raise StudyError(f"--from: {path}: {error}") from error
    return options


def parse_lists(typed: dict[str, Any]) -> None:
    """Put the arms and the learning rates, typed with commas between them, as settings have them."""
    if isinstance(typed.get("lr"), str):
        typed["lr"] = parse_rates(typed["lr"])
    if isinstance(typed.get("arms"), str):
        typed["arms"] = tuple(name.strip() for name in typed["arms"].split(",") if name.strip())


def check_place(place: Path | None, names: Sequence[str] = (), *, resume: bool, force: bool) -> None:
    """Raise `StudyError` where a study, or these experiments, must not be written."""
    if place is None:
        return
    (check_experiments if names else check_study)(place)
    for directory, file, run in [(place / name, EXPERIMENT, "a run") for name in names] or [(place, STUDY, "a study")]:
        check_new(directory, file, run, resume=resume, force=force)


def check_text(text: str | None) -> None:
    """Raise `StudyError` where there is no text on this machine, before anything heavy is imported."""
    if text is None:
        return
    if scheme_of(text):
        parse_url(text)
    elif problem := missing_source(Path(text.partition("::")[0])):
        raise StudyError(f"--text: {problem}; give a text file or a directory of text files")


def parse_rates(text: str) -> tuple[float, ...]:
    """Return the learning rates of a comma-separated list."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise StudyError(f"lr must be numbers with commas between them, but is {text!r}") from error


def named_experiments(text: str) -> list[str]:
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


def options_of_each(names: list[str], typed: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was typed for each experiment: `name` is meant for all of them, `experiment.name` for one.

    Raises:
        StudyError: an experiment has no such option, or it cannot be that.
    """
    from evenkeel._options.experiments import EXPERIMENT_OPTIONS, read_options

    options: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in typed.items():
        owner, dot, name = key.rpartition(".")
        if dot and owner not in options:
            raise StudyError(
                f"--set {key}: no experiment of this run is called {owner!r}; it runs {', '.join(options)}"
            )
        for target in [owner] if dot else options:
            options[target][name] = value
    for name, given in options.items():
        check_packages(*read_options(name, EXPERIMENT_OPTIONS[name], given).packages)
    return options
