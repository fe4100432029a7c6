"""`evenkeel data`: fit, show, apply, check and merge statistics of data."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Any, get_args

import typer

from evenkeel._errors import InvalidArgumentError
from evenkeel._options.formats import DIRECTORIES, PACKAGES, WRITTEN_ENDINGS, format_name
from evenkeel._options.limits import DriftLimits
from evenkeel._options.names import SCALERS, EngineName, NanPolicy, OnError, OnMismatch
from evenkeel._options.urls import parse_storage_options, scheme_of
from evenkeel._options.workers import Workers
from evenkeel._packages import check_packages
from evenkeel.cli.options import (
    INPUT,
    OUTPUT,
    RUNNING,
    STATISTICS_ENDINGS,
    Force,
    Html,
    Json,
    Open,
    OutFile,
    Quiet,
    Resume,
    Storage,
    check_output,
    check_workers,
    choice,
    ending_of,
    examples,
    flag,
    option,
    parse_source,
    parse_statistics,
    parse_target,
    split_names,
    statistics_option,
    threads_option,
)
from evenkeel.cli.output import Output

__all__ = ["data"]

FITTING = "Fitting"
STATISTICS = "What `evenkeel data fit` wrote"
LIMITS = DriftLimits()

data = typer.Typer(
    help="Fit statistics of data once, and show, apply, check and merge them.",
    epilog=examples("evenkeel data fit measurements/ --numeric --out stats.json", "evenkeel data show stats.json"),
    no_args_is_help=False,
)

Source = Annotated[
    str, typer.Argument(metavar="IN", help="File, directory or quoted pattern with *; or a URL.", parser=parse_source)
]
Statistics = Annotated[str, statistics_option(f"{STATISTICS}.")]
Columns = Annotated[str | None, option("Names, or positions from 0 in an array, comma-separated.", panel=INPUT)]
Threads = Annotated[int | None, threads_option("the processors, at most 16")]


def limit(text: str, default: float) -> Any:
    """Return the option of a limit of drift."""
    return option(text, panel="Limits", default=default)


@data.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Fit statistics of data once, and show, apply, check and merge them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data.command(
    epilog=examples(
        "evenkeel data fit people/ --columns height,weight --out stats.json",
        "evenkeel data fit 'logs/*.csv' --numeric --scaler robust --out stats.json",
    )
)
def fit(
    source: Source,
    *,
    columns: Columns = None,
    storage: Storage = None,
    numeric: Annotated[bool, flag("--numeric", "Leave out columns that hold no numbers.", INPUT)] = False,
    on_error: Annotated[
        str, choice("Files that cannot be read", get_args(OnError), panel=INPUT, default="raise")
    ] = "raise",
    scaler: Annotated[str, choice("Scaler", SCALERS, panel=FITTING, default="standard")] = "standard",
    nan_policy: Annotated[str, choice("Missing values", get_args(NanPolicy), panel=FITTING, default="omit")] = "omit",
    quantiles: Annotated[
        bool, flag("--quantiles", "Keep (random) sketches for histograms and drift.", FITTING)
    ] = False,
    out: OutFile,
    force: Force = False,
    as_json: Json = False,
    engine: Annotated[Any, choice("Readers", get_args(EngineName), panel=RUNNING, default="local")] = "local",
    address: Annotated[
        str | None, option("Of the Ray cluster: host:port, or auto for that of this machine.", panel=RUNNING)
    ] = None,
    threads: Threads = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> int:
    """Fit a scaler on files of any size and write it with its statistics."""
    check_output(out, "--out", force=force, endings=STATISTICS_ENDINGS)
    names = split_names("--columns", columns)
    options = {"scaler": scaler, "nan_policy": nan_policy, "quantiles": quantiles, "on_error": on_error}
    options |= {"engine": engine, "address": address, "columns": "numeric" if numeric and names is None else names}
    stored = check_places(storage, source, out)
    check_workers(Workers(engine=engine, address=address))
    check_packages(*(["datasketches"] if quantiles else []))
    from evenkeel.cli.data import fit_files

    keep = {"force": force, "resume": resume}
    return fit_files(source, stored, out, options, threads=threads, quiet=quiet, as_json=as_json, **keep)


@data.command(
    epilog=examples("evenkeel data show stats.json", "evenkeel data show stats.safetensors --html stats.html --open")
)
def show(
    file: Annotated[str, typer.Argument(help=f"{STATISTICS}.", parser=parse_statistics, metavar="STATS")],
    storage: Storage = None,
    html: Html = None,
    open_page: Open = False,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Show statistics as a table, or as a page with histograms."""
    check_output(html, "--html", force=force)
    stored = check_places(storage, file)
    output = Output(html, open_page, as_json)
    from evenkeel.cli.data import show_file

    return show_file(file, stored, output)


@data.command(
    epilog=examples(
        "evenkeel data apply new.parquet --stats stats.json --out scaled.parquet",
        "evenkeel data apply people/ --stats stats.json --out scaled/",
    )
)
def apply(
    source: Source,
    *,
    stats: Statistics,
    columns: Columns = None,
    storage: Storage = None,
    on_mismatch: Annotated[
        str, choice("Data unlike that of the fit", get_args(OnMismatch), panel=INPUT, default="raise")
    ] = "raise",
    out: Annotated[
        str,
        option(
            "File to write, or a new directory for those of one; or a URL.",
            "--out",
            panel=OUTPUT,
            metavar="<path>",
            parser=parse_target,
        ),
    ],
    force: Force = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> int:
    """Write a transformed copy of a file or directory, in bounded memory."""
    check_copy(source, out, force=force)
    names, stored = split_names("--columns", columns), check_places(storage, source, out, stats)
    from evenkeel.cli.data import apply_to_files

    options = {"columns": names, "on_mismatch": on_mismatch}
    return apply_to_files(source, stored, out, stats, options, force=force, threads=threads, quiet=quiet)


@data.command(
    epilog=examples(
        "evenkeel data check new.parquet --stats stats.json",
        "evenkeel data check 'new/*.csv' --stats stats.json --max-shift 1 --json",
    )
)
def check(
    source: Source,
    stats: Statistics,
    columns: Columns = None,
    storage: Storage = None,
    max_shift: Annotated[float, limit("Of a mean, in standard deviations.", LIMITS.shift)] = LIMITS.shift,
    max_spread: Annotated[float, limit("Ratio of standard deviations, either way.", LIMITS.spread)] = LIMITS.spread,
    max_outside: Annotated[float, limit("Share of the range seen, beyond it.", LIMITS.outside)] = LIMITS.outside,
    max_missing: Annotated[float, limit("Difference of shares of missing values.", LIMITS.missing)] = LIMITS.missing,
    max_psi: Annotated[float, limit("Population stability index.", LIMITS.psi)] = LIMITS.psi,
    html: Html = None,
    open_page: Open = False,
    force: Force = False,
    as_json: Json = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> int:
    """Compare data with that of the fit: exit code 0 if it is alike, 1 if not."""
    limits = DriftLimits(shift=max_shift, spread=max_spread, outside=max_outside, missing=max_missing, psi=max_psi)
    check_output(html, "--html", force=force)
    names, stored = split_names("--columns", columns), check_places(storage, source, stats)
    output = Output(html, open_page, as_json)
    from evenkeel.cli.data import check_files

    return check_files(source, stored, stats, names, limits, output, threads=threads, quiet=quiet)


@data.command(
    epilog=examples(
        "evenkeel data merge monday.json tuesday.json --out week.json",
        "evenkeel data merge parts/*.json --out whole.safetensors --json",
    )
)
def merge(
    files: Annotated[
        list[str], typer.Argument(help=f"{STATISTICS}, two or more.", parser=parse_statistics, metavar="STATS...")
    ],
    storage: Storage = None,
    *,
    out: OutFile,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Merge statistics of parts of the data into those of the whole."""
    check_output(out, "--out", force=force, endings=STATISTICS_ENDINGS)
    if len(files) < 2:
        raise InvalidArgumentError("merge needs at least two files")
    if repeated := [file for number, file in enumerate(files) if file in files[:number]]:
        raise InvalidArgumentError(f"{repeated[0]} is given twice; its rows would count twice")
    stored = check_places(storage, *files, out)
    from evenkeel.cli.data import merge_files

    return merge_files(files, stored, out, force=force, as_json=as_json)


def check_places(storage: list[str] | None, *places: str) -> dict[str, object]:
    """Return the options of the store that URLs among the places name; raise where a package for them is missing."""
    formats = [format_name(PurePath(place).name) for place in places]
    check_packages("sklearn", *(PACKAGES[name] for name in formats if name in PACKAGES))
    return parse_storage_options(storage, *places)


def check_copy(source: str, out: str, *, force: bool) -> None:
    """Raise where a copy of a source must not or cannot be written; what a URL names is known when it is read."""
    path, target, elsewhere = Path(source.partition("::")[0]), Path(out), scheme_of(source)
    if not elsewhere and path.is_dir() and format_name(path.name) not in DIRECTORIES:
        if ending_of(out) in WRITTEN_ENDINGS:
            raise InvalidArgumentError(f"{source} is a directory, so the output is one; {out} names a file")
        if not scheme_of(out) and target.exists():
            raise InvalidArgumentError(f"--out: {out} exists already; name a directory that does not")
        return
    if not (elsewhere and target.is_dir()):
        check_output(out, "--out", force=force, endings=() if elsewhere else WRITTEN_ENDINGS)
    if not elsewhere and path.exists() and target.exists() and path.samefile(target):
        raise InvalidArgumentError(f"{out} is the input; name another file")
