"""The work of `evenkeel data`: fits, copies, comparisons and merged statistics of files."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shlex
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer

import evenkeel
from evenkeel import data as library
from evenkeel._errors import EvenkeelError, InvalidArgumentError
from evenkeel._files import path_as_text
from evenkeel._options.urls import in_store, scheme_of
from evenkeel.cli import interrupts
from evenkeel.cli.data_progress import make_watcher
from evenkeel.cli.output import Output, print_json
from evenkeel.data import DriftLimits, Statistics
from evenkeel.data.sources import (
    StoredFile,
    check_bucket,
    dropped_columns,
    is_directory,
    is_query,
    locate,
    numeric_columns,
    place_exists,
)
from evenkeel.data.statistics import check_mergeable
from evenkeel.data.views import (
    describe,
    drift_page,
    drift_table,
    show_page,
    skipped_of,
    statistics_of,
    statistics_table,
    warn_of_features,
)
from evenkeel.report import print_table, write_page

if TYPE_CHECKING:
    from evenkeel.data import DriftReport
    from evenkeel.data.scalers import Scaler

DRIFTED = 1
FOOTER = f"evenkeel {evenkeel.__version__}"
SKIPPED_SHOWN = 5
DROPPED_SHOWN = 12
RESUME = "the same command with --resume continues"


@interrupts.raising()
def fit_files(
    source: str,
    storage: dict[str, Any],
    out: str,
    options: dict[str, Any],
    *,
    force: bool,
    threads: int | None,
    resume: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Fit a scaler and write it; the states of finished files wait beside it, those of a URL in this directory."""
    refuse_existing(out, storage, force=force)
    place = source if is_query(source) else locate(source, stored(source, storage))
    states = states_of(out)
    if not resume:
        states.unlink(missing_ok=True)
    with interrupts.advising(lambda: RESUME if states.exists() else ""):
        fitted = fit_source(place, out, states, options, threads=threads, quiet=quiet)
    try:
        library.save(fitted, out, storage_options=stored(out, storage))
    except EvenkeelError as error:
        raise with_advice(error, states) from error
    states.unlink(missing_ok=True)
    report_skipped(fitted.contract_.source["skipped"])
    report_columns(place, fitted, options["columns"])
    print_item(fitted, out, as_json=as_json)
    if not as_json:
        see = f"see also: evenkeel data show {shlex.quote(shown(out))}"
        typer.echo(f"{describe(fitted)}; written to {shown(out)}; {see}")
    return 0


def stored(place: str, storage: dict[str, Any]) -> dict[str, Any] | None:
    """Return the options of the store that a place lies in; a path and a query have none."""
    return storage if in_store(place) else None


def states_of(out: str) -> Path:
    """Return where the states of a fit wait; those for stores by the whole URL, as last parts may be alike."""
    if not scheme_of(out):
        return Path(f"{out}.partial")
    return Path(f"{name_of(out)}.{hashlib.sha256(out.encode()).hexdigest()[:8]}.partial")


def with_advice(error: EvenkeelError, states: Path) -> EvenkeelError:
    """Return an error that says how to go on, where states are kept."""
    advice = f"; what was read is kept in {states}: {RESUME}" if states.exists() else ""
    return type(error)(f"{error}{advice}")


def refuse_existing(out: str, storage: dict[str, Any], *, force: bool) -> None:
    """Raise where a store lacks the bucket, or holds what must not be replaced; of paths that is told before."""
    if not scheme_of(out):
        return
    place = locate(out, storage)
    assert isinstance(place, StoredFile)
    check_bucket(place)
    if is_directory(place):
        raise InvalidArgumentError(f"--out: {out} exists already, as a directory; name another")
    if not force and place_exists(place):
        raise InvalidArgumentError(f"--out: {out} exists already; replace it with --force, or name another")


def name_of(place: str) -> str:
    """Return the last part of a path or URL."""
    return locate(place).name


def shown(place: str) -> str:
    """Return a path or URL as text that any terminal takes."""
    where = locate(place)  # a URL without the signature that it may end in
    return path_as_text(where) if isinstance(where, Path) else str(where)


def fit_source(
    source: Any, out: str, states: Path, options: dict[str, Any], *, threads: int | None, quiet: bool
) -> Scaler:
    """Fit a scaler; an error about the file of states is one about the file to write."""
    with make_watcher("fit", quiet=quiet) as watcher, warnings_as_lines(), torch_threads(threads):
        options |= {"resume": None if is_query(source) else states, "progress": watcher.fragment_done}
        try:
            return library.fit(source, **options, workers=threads)
        except EvenkeelError as error:
            if watcher.whole:  # what was read gives no scaler, and would not next time
                states.unlink(missing_ok=True)
            if str(states) not in str(error):
                raise with_advice(error, states) from error
            if states.exists() or scheme_of(out):
                raise
            raise type(error)(str(error).replace(str(states), out)) from error


@interrupts.raising()
def show_file(file: str, storage: dict[str, Any], output: Output) -> int:
    """Show statistics as a table, JSON or a page."""
    item = library.load(file, storage_options=stored(file, storage))
    statistics_of(item)  # raises for an object without
    if not output.as_json:
        typer.echo(describe(item))
    print_item(item, file, as_json=output.as_json)
    output.write("statistics", lambda path: write_page(show_page(item, name_of(file), footer=FOOTER), path))
    return 0


@interrupts.raising()
def apply_to_files(
    source: str,
    storage: dict[str, Any],
    out: str,
    stats: str,
    options: dict[str, Any],
    *,
    force: bool,
    threads: int | None,
    quiet: bool,
) -> int:
    """Write a transformed copy."""
    refuse_existing(out, storage, force=force)
    scaler = load_scaler(stats, storage)
    options |= {"storage_options": storage if scheme_of(source) or scheme_of(out) else None}
    with make_watcher("apply", quiet=quiet) as watcher, warnings_as_lines(), torch_threads(threads):
        written = library.transform_files(scaler, source, out, **options, progress=watcher.block_done)
    typer.echo(f"written to {path_as_text(written) if isinstance(written, Path) else written}")
    return 0


@interrupts.raising()
def check_files(
    source: str,
    storage: dict[str, Any],
    stats: str,
    columns: list[str] | None,
    limits: DriftLimits,
    output: Output,
    *,
    threads: int | None,
    quiet: bool,
) -> int:
    """Compare data with that of a fit."""
    reference = statistics_of(library.load(stats, storage_options=stored(stats, storage)))
    names = columns or (list(reference.names) if reference.names else None)
    place = source if is_query(source) else locate(source, stored(source, storage))
    present = None if isinstance(place, str) else numeric_columns(place)
    if present is not None and (missing := [name for name in names or () if name not in present]):
        failure = f"{source} lacks the numeric columns {', '.join(missing)}; it has {', '.join(present)}"
        if output.as_json:
            print_json({"ok": False, "failures": [failure], "features": []})
        else:
            typer.echo(f"FAILS {failure}")
        return DRIFTED
    with make_watcher("check", quiet=quiet) as watcher, warnings_as_lines(), torch_threads(threads):
        keep, progress = reference.keeps_quantiles, watcher.fragment_done
        current = library.fit_statistics(place, columns=names, quantiles=keep, workers=threads, progress=progress)
    report = library.compare(reference, current, limits=limits)
    print_drift(report, current.rows, stats, as_json=output.as_json)
    output.write(
        "drift",
        lambda path: write_page(drift_page(report, reference, current, name_of(stats), source, footer=FOOTER), path),
    )
    return 0 if report.ok else DRIFTED


def print_drift(report: DriftReport, rows: int, stats: str, *, as_json: bool) -> None:
    """Print what drifted."""
    if as_json:
        features = [dataclasses.asdict(feature) for feature in report.features]
        print_json({"ok": report.ok, "rows": rows, "failures": report.failures, "features": features})
        return
    print_table(drift_table(report))
    for failure in report.failures:
        typer.echo(f"FAILS {failure}")
    count = len(report.failures)
    if count:
        typer.echo(f"{count} difference{'s' * (count > 1)} from {shown(stats)}")
    else:
        typer.echo(f"{rows:,} rows are like those of {shown(stats)}")


@interrupts.raising()
def merge_files(files: Sequence[str], storage: dict[str, Any], out: str, *, force: bool, as_json: bool) -> int:
    """Merge statistics and write those of the whole."""
    refuse_existing(out, storage, force=force)
    items = [library.load(file, storage_options=stored(file, storage)) for file in files]
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
    whole = merged if isinstance(items[0], Statistics) else rebuilt(items, merged)
    library.save(whole, out, storage_options=stored(out, storage))
    print_item(whole, out, as_json=as_json)
    if not as_json:
        typer.echo(f"{len(files)} files merged: {merged.rows:,} rows; written to {shown(out)}")
    return 0


def print_item(item: Any, file: str, *, as_json: bool) -> None:
    """Print the statistics of an object that a file holds."""
    statistics = statistics_of(item)
    table = statistics_table(statistics)
    if not as_json:
        print_table(table)
        return
    features = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    print_json({"file": shown(file), "kind": type(item).__name__, "rows": statistics.rows, "features": features})


def rebuilt(items: list[Any], merged: Statistics) -> Scaler:
    """A scaler like the first of several, with the statistics of all; it remembers what each was fitted on."""
    sources = [item.contract_.source for item in items]
    skipped = [skip for item in items for skip in skipped_of(item)]
    scaler: Scaler = type(items[0]).from_statistics(merged, **items[0].get_params())
    return scaler.annotate(source={"merged": sources, "skipped": skipped})


def load_scaler(place: str, storage: dict[str, Any]) -> Any:
    """The scaler in a file."""
    item = library.load(place, storage_options=stored(place, storage))
    if not hasattr(item, "transform"):
        raise InvalidArgumentError(f"{shown(place)} holds {type(item).__name__}, which has no transform; fit a scaler")
    return item


def report_columns(source: Any, fitted: Scaler, columns: object) -> None:
    """Say on stderr which columns --numeric left out, and which ones a scaler can do nothing with."""
    if columns == "numeric" and not is_query(source) and (dropped := dropped_columns(source)):
        listed = [f"{name} ({kind})" for name, kind in dropped.items()]
        rest = f" and {len(listed) - DROPPED_SHOWN} more" if len(listed) > DROPPED_SHOWN else ""
        typer.echo(f"left out, as they hold no numbers: {', '.join(listed[:DROPPED_SHOWN])}{rest}", err=True)
    for line in warn_of_features(fitted.statistics_):
        typer.echo(f"warning: {line}", err=True)


def report_skipped(skipped: list[dict[str, str]]) -> None:
    """Say on stderr which files were left out."""
    for skip in skipped[:SKIPPED_SHOWN]:
        typer.echo(f"skipped {skip['error']}", err=True)
    if skipped:
        typer.echo(f"{len(skipped)} files skipped; the list is in the file written", err=True)


@contextlib.contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Run the kernels with so many threads, then go back."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as the lines they are, without where in the program they came from."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
        yield
