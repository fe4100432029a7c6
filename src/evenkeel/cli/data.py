"""`evenkeel data`: fit, show, apply, check and merge statistics of data."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenkeel import data as library
from evenkeel._errors import EvenkeelError, InvalidArgumentError
from evenkeel.cli.data_page import (
    describe,
    drift_page,
    drift_table,
    show_page,
    skipped_of,
    statistics_of,
    statistics_table,
)
from evenkeel.cli.data_progress import make_watcher
from evenkeel.data import DriftLimits, Statistics
from evenkeel.data.sources import numeric_columns
from evenkeel.data.statistics import check_mergeable
from evenkeel.report import print_table, write_page

if TYPE_CHECKING:
    from evenkeel.data.scalers import Scaler

__all__ = ["data"]

DRIFTED = 1
SKIPPED_SHOWN = 5
LIMITS = DriftLimits()

data = typer.Typer(help="Fit statistics of data once, and show, apply, check and merge them.", no_args_is_help=False)

StatsOption = Annotated[Path, typer.Option("--stats", help="What `evenkeel data fit` wrote.", show_default=False)]
ColumnsOption = Annotated[
    str | None,
    typer.Option(help="Columns, comma-separated: names, or positions from 0 in an array.", show_default=False),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


@data.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Fit statistics of data once, and show, apply, check and merge them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data.command()
def fit(
    source: Annotated[str, typer.Argument(help="File, directory or quoted pattern with *.")],
    out: Annotated[Path, typer.Option(help="Where to write: .json or .safetensors.", show_default=False)],
    columns: ColumnsOption = None,
    numeric: Annotated[bool, typer.Option("--numeric", help="Leave out columns that hold no numbers.")] = False,
    scaler: Annotated[str, typer.Option(help="standard | minmax | robust | maxabs.")] = "standard",
    quantiles: Annotated[
        bool, typer.Option("--quantiles", help="Keep (random) sketches for histograms and drift.")
    ] = False,
    nan_policy: Annotated[str, typer.Option(help="Missing values: omit | raise | propagate.")] = "omit",
    engine: Annotated[str, typer.Option(help="local | ray.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Files read at a time.", show_default="processors")] = None,
    on_error: Annotated[str, typer.Option(help="Files that cannot be read: raise | skip.")] = "raise",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted fit with the same --out.")] = False,
    quiet: QuietOption = False,
) -> int:
    """Fit a scaler on files of any size and write it with its statistics."""
    check_out(out)
    states = out.with_name(f"{out.name}.partial")
    if not resume:
        states.unlink(missing_ok=True)
    try:
        with make_watcher("fit", quiet=quiet) as watcher, warnings_as_lines():
            fitted = library.fit(
                source,
                scaler=scaler,
                columns="numeric" if numeric and columns is None else split(columns),
                quantiles=quantiles,
                nan_policy=nan_policy,  # type: ignore[arg-type]  # the library checks the words
                engine=engine,  # type: ignore[arg-type]
                workers=workers,
                on_error=on_error,  # type: ignore[arg-type]
                resume=states,
                progress=watcher.fragment_done,
            )
    except KeyboardInterrupt:
        if states.exists():
            typer.echo("interrupted; the same command with --resume continues", err=True)
        raise
    library.save(fitted, out)
    states.unlink(missing_ok=True)
    report_skipped(fitted.contract_.source["skipped"])
    print_table(statistics_table(fitted.statistics_))
    typer.echo(f"{describe(fitted)}; written to {out}; see also: evenkeel data show {shlex.quote(str(out))}")
    return 0


@data.command()
def show(
    file: Annotated[Path, typer.Argument(help="What `evenkeel data fit` wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write a page with histograms.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show statistics as a table, or as a page with histograms."""
    item = library.load(file)
    statistics = statistics_of(item)
    if html is not None:
        write_page(show_page(item, file.name), html)
    if as_json:
        table = statistics_table(statistics)
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        typer.echo(json.dumps({"file": str(file), "kind": type(item).__name__, "features": rows}, indent=2))
    else:
        typer.echo(describe(item))
        print_table(statistics_table(statistics))
    if html is not None:
        typer.echo(f"page: {html}", err=as_json)
    return 0


@data.command()
def apply(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File or directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write, or directory.")],
    stats: StatsOption,
    columns: ColumnsOption = None,
    on_mismatch: Annotated[str, typer.Option(help="Data unlike that of the fit: raise | warn | ignore.")] = "raise",
    quiet: QuietOption = False,
) -> int:
    """Write a transformed copy of a file or directory, in bounded memory."""
    scaler = load_scaler(stats)
    with make_watcher("apply", quiet=quiet) as watcher, warnings_as_lines():
        library.transform_files(
            scaler,
            source,
            out,
            columns=split(columns),
            on_mismatch=on_mismatch,  # type: ignore[arg-type]
            progress=watcher.block_done,
        )
    typer.echo(f"written to {out}")
    return 0


@data.command()
def check(
    source: Annotated[str, typer.Argument(metavar="IN", help="File, directory or quoted pattern with *.")],
    stats: StatsOption,
    columns: ColumnsOption = None,
    max_shift: Annotated[float, typer.Option(help="Of a mean, in standard deviations.")] = LIMITS.shift,
    max_spread: Annotated[float, typer.Option(help="Ratio of standard deviations, either way.")] = LIMITS.spread,
    max_outside: Annotated[float, typer.Option(help="Share of the range seen, beyond it.")] = LIMITS.outside,
    max_missing: Annotated[float, typer.Option(help="Difference of shares of missing values.")] = LIMITS.missing,
    max_psi: Annotated[float, typer.Option(help="Population stability index.")] = LIMITS.psi,
    html: Annotated[Path | None, typer.Option(help="Write a page.", show_default=False)] = None,
    quiet: QuietOption = False,
) -> int:
    """Compare data with that of the fit: exit code 0 if it is alike, 1 if not."""
    limits = DriftLimits(shift=max_shift, spread=max_spread, outside=max_outside, missing=max_missing, psi=max_psi)
    loaded = library.load(stats)
    reference = statistics_of(loaded)
    names = split(columns) or (list(reference.names) if reference.names else None)
    present = numeric_columns(Path(source))
    if present is not None and (missing := [name for name in names or () if name not in present]):
        typer.echo(f"FAILS {source} lacks the numeric columns {', '.join(missing)}; it has {', '.join(present)}")
        return DRIFTED
    with make_watcher("check", quiet=quiet) as watcher, warnings_as_lines():
        current = library.fit_statistics(
            source, columns=names, quantiles=reference.keeps_quantiles, progress=watcher.fragment_done
        )
    report = library.compare(reference, current, limits=limits)
    print_table(drift_table(report))
    if html is not None:
        write_page(drift_page(report, reference, current, stats.name, str(source)), html)
        typer.echo(f"page: {html}")
    for failure in report.failures:
        typer.echo(f"FAILS {failure}")
    typer.echo(
        f"{len(report.failures)} difference{'s' * (len(report.failures) > 1)} from {stats}"
        if report.failures
        else f"{current.rows:,} rows are like those of {stats}"
    )
    return 0 if report.ok else DRIFTED


@data.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="What `evenkeel data fit` wrote, two or more.")],
    out: Annotated[Path, typer.Option(help="Where to write: .json or .safetensors.", show_default=False)],
) -> int:
    """Merge statistics of parts of the data into those of the whole."""
    check_out(out)
    if len(files) < 2:
        raise InvalidArgumentError("merge needs at least two files")
    if repeated := [file for number, file in enumerate(files) if file in files[:number]]:
        raise InvalidArgumentError(f"{repeated[0]} is given twice; its rows would count twice")
    items = [library.load(file) for file in files]
    kinds = sorted({type(item).__name__ for item in items})
    if len(kinds) > 1 or kinds == ["ImageNormalize"]:
        raise InvalidArgumentError(f"merge needs statistics or scalers of one kind, but got {' and '.join(kinds)}")
    parts = [statistics_of(item) for item in items]
    for file, part in zip(files[1:], parts[1:], strict=True):
        try:
            check_mergeable(parts[0], part)
        except EvenkeelError as error:
            raise InvalidArgumentError(f"{files[0]} and {file} do not fit together: {error}") from error
    merged = library.merge_all(parts)
    library.save(merged if isinstance(items[0], Statistics) else rebuilt(items, merged), out)
    print_table(statistics_table(merged))
    typer.echo(f"{len(files)} files merged: {merged.rows:,} rows; written to {out}")
    return 0


def rebuilt(items: list[Any], merged: Statistics) -> Scaler:
    """A scaler like the first of several, with the statistics of all; it remembers what each was fitted on."""
    sources = [item.contract_.source for item in items]
    skipped = [skip for item in items for skip in skipped_of(item)]
    scaler: Scaler = type(items[0]).from_statistics(merged, **items[0].get_params())
    return scaler.annotate(source={"merged": sources, "skipped": skipped})


def split(columns: str | None) -> list[str] | None:
    """The columns that a user typed."""
    if columns is None:
        return None
    names = [name.strip() for name in columns.split(",")]
    if not all(names):
        raise InvalidArgumentError(f"--columns: expected names with commas between them, but got {columns!r}")
    return names


def check_out(out: Path) -> None:
    """Raise before the work rather than after it where a file cannot be written so."""
    if out.suffix not in (".json", ".safetensors"):
        raise InvalidArgumentError(f"--out must end in .json or .safetensors, but got {out}")
    if not out.absolute().parent.is_dir():
        raise InvalidArgumentError(f"--out: there is no directory {out.parent}; make it first")


def load_scaler(path: Path) -> Any:
    """The scaler in a file."""
    item = library.load(path)
    if not hasattr(item, "transform"):
        raise InvalidArgumentError(f"{path} holds {type(item).__name__}, which has no transform; fit a scaler")
    return item


def report_skipped(skipped: list[dict[str, str]]) -> None:
    """Say on stderr which files were left out."""
    for skip in skipped[:SKIPPED_SHOWN]:
        typer.echo(f"skipped {skip['error']}", err=True)
    if skipped:
        typer.echo(f"{len(skipped)} files skipped; the list is in the file written", err=True)


@contextlib.contextmanager
def warnings_as_lines() -> Any:
    """Print warnings as the lines they are, without where in the program they came from."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
        yield
