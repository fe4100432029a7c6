"""Statistics of a source of any kind and size, and the scalers they give."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from evenkeel._errors import InvalidArgumentError, InvalidTypeError, SourceError
from evenkeel._options.names import EngineName, NanPolicy, OnError, check_choice
from evenkeel._options.numbers import check_integer
from evenkeel.data._packages import reading
from evenkeel.data.fitting._engines import ENGINES, Outcome, Recipe, Workers, processors
from evenkeel.data.fitting._resume import ResumeFile
from evenkeel.data.scalers import SCALERS, scaler_class
from evenkeel.data.sources import Columns, Fragment, Skip, Source, open_source
from evenkeel.data.statistics import Statistics, merge_all

if TYPE_CHECKING:
    from evenkeel.data.scalers import Scaler


# Values of a stream that go into one state before the next is begun.
STREAM_ELEMENTS = 1 << 22
MOST_WORKERS = 16
SKIPPED_SHOWN = 3


class FitProgress(NamedTuple):
    """The progress of a fit; `fit` calls its ``progress`` with one after each fragment.

    Attributes:
        done: fragments finished, those of an interrupted run included.
        total: fragments there are; None for a stream.
        rows: rows read so far.
        skipped: files left out so far.

    Example:
        >>> from evenkeel.data import FitProgress, fit
        >>> seen = []
        >>> scaler = fit([[1.0], [3.0]], progress=seen.append)
        >>> seen[-1] == FitProgress(done=1, total=1, rows=2, skipped=0)
        True
    """

    done: int
    total: int | None
    rows: int
    skipped: int


@dataclass(frozen=True)
class Options:
    """The options of `fit` and `fit_statistics`; see there."""

    columns: Columns
    quantiles: bool
    nan_policy: NanPolicy
    engine: EngineName
    workers: int | None
    on_error: OnError
    resume: str | os.PathLike[str] | None
    progress: Callable[[FitProgress], None] | None
    storage_options: Mapping[str, Any] | None
    address: str | None
    sketch_size: int = 1024

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)
        check_choice("on_error", self.on_error, get_args(OnError))
        if self.address is not None and self.engine != "ray":
            raise InvalidArgumentError(
                f"address: {self.address} is that of a Ray cluster; pass engine='ray' (--engine ray)"
            )
        if self.workers is not None:
            check_integer("workers", self.workers, least=1)

    def recipe(self, names: tuple[str, ...] | None) -> Recipe:
        """The work on each fragment of a source with these columns."""
        return Recipe(names, self.quantiles, self.sketch_size, self.nan_policy, self.on_error == "skip")


@dataclass
class Collected:
    """The statistics of a source, and what was left out of them."""

    statistics: Statistics
    source: Source
    skipped: list[Skip] = field(default_factory=list)

    def note(self) -> dict[str, Any]:
        """The description of the source in a saved file."""
        fragments = self.source.fragments
        return {
            "description": self.source.description,
            "fragments": None if fragments is None else len(fragments),
            "rows": self.statistics.rows,
            "fingerprint": fingerprint(fragments) if self.source.reads and fragments else None,
            "dtypes": list(self.source.dtypes),
            "skipped": [{"file": skip.label, "error": skip.error} for skip in self.skipped],
        }


def fit(
    source: Any,
    *,
    scaler: str | Scaler = "standard",
    columns: Columns = None,
    quantiles: bool = False,
    nan_policy: NanPolicy = "omit",
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    on_error: OnError = "raise",
    resume: str | os.PathLike[str] | None = None,
    progress: Callable[[FitProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    address: str | None = None,
) -> Scaler:
    """Fit a scaler on data of any kind and size, in one pass and bounded memory.

    Fragments of the source (files, row groups, rows) are read side by side; each gives one small state, and the states
    are merged in a balanced tree in the source's order. So the result has the same bits whatever the number of
    workers and whichever the engine; quantile sketches are random and the same within their bound.

    A worker takes at most 64 MB (32 MB for Parquet without quantiles) whatever the source's size, of a store 8 MB more
    that are read ahead, and the same once more; beyond that one block of a table of more than some tens of columns, one
    compressed array or Arrow batch, one structured array, or 8 bytes for each pixel of one image. A header that says
    more than the file holds is an error before memory is taken.

    Args:
        source: (rows, columns): a NumPy array or memory map, a torch tensor, a pandas or Polars frame, an Arrow table,
            a Hugging Face data set (with its own selection and order) or a streamed one; the path of a ``.npy``,
            ``.npz``, Parquet, CSV, Feather or Arrow file, of a directory of them (with hive partitions) or of images, a
            pattern with ``*``, or a list of paths; the same by URL (``s3://``, ``gs://``, ``abfs://``, ``hdfs://``,
            ``https://`` and what fsspec knows); a Delta or Lance table; a query of DuckDB
            (``duckdb:///file.db?query=SELECT …``, or a connection or relation) or by ADBC (a cursor that
            has executed it); a dict of columns; a DataLoader or any iterable of arrays, tensors, frames, dicts of
            columns, or tuples (inputs, targets).
        scaler: ``standard``, ``minmax``, ``robust``, ``maxabs``, or a scaler with the options wanted, which itself
            stays as it is.
        columns: names or positions of the columns to use. By default all, which must be numbers (an error names those
            that are not); ``"numeric"`` takes those that are and leaves the others out. Columns that come from the
            names of folders (``year=2024``) are used only where they are named.
        quantiles: whether to keep quantiles too; ``robust`` always does. Sketches draw random bits that no seed
            fixes: two runs agree within ``quantile_error``. 8- and 16-bit integers are counted exactly.
        nan_policy: what NaN and nulls are: ``omit`` (counted, left out), ``raise`` or ``propagate``.
        engine: ``local``, threads of this process, or ``ray``, the workers of Ray Data (in the cluster at
            ``address`` or the one that the program has started, otherwise in a small one on this machine).
        workers: fragments read at a time; by default as many as there are processors, of a store twice as many, or
            eight times where its objects are small; at most 16.
        on_error: ``raise``, or ``skip`` to leave out files that cannot be read and list them in
            ``scaler.contract_.source["skipped"]``.
        resume: a file that keeps the states of finished fragments: made when missing, continued when there, removed
            where there is no state.
        progress: called after each fragment.
        storage_options: for the client of the store that a URL names (PyArrow's, or fsspec's), such as ``region`` and
            ``endpoint_override``; credentials are looked for where the store's own tools do.
        address: of the Ray cluster: ``host:port`` or ``auto``; by default ``RAY_ADDRESS``.

    Returns:
        The fitted scaler; ``statistics_`` holds the statistics.

    Raises:
        SourceError: the source cannot be read, has no rows or no such columns, or changed since it was interrupted.
        InvalidInputError: values are refused: NaN under ``nan_policy="raise"``, infinities.
        InvalidArgumentError: an option has no such value.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import fit
        >>> scaler = fit({"a": values, "b": -values} for values in (np.arange(3.0), np.arange(3.0, 5.0)))
        >>> scaler.feature_names_in_.tolist(), scaler.mean_.tolist()
        (['a', 'b'], [2.0, -2.0])
    """
    kind, parameters = scaler_kind(scaler)
    size, quantiles = parameters.get("sketch_size", 1024), quantiles or kind.__name__ == "RobustScaler"
    where = (storage_options, address)
    options = Options(columns, quantiles, nan_policy, engine, workers, on_error, resume, progress, *where, size)
    collected = collect(source, options)
    return kind.from_statistics(collected.statistics, **parameters).annotate(source=collected.note())


def fit_statistics(
    source: Any,
    *,
    columns: Columns = None,
    quantiles: bool = False,
    nan_policy: NanPolicy = "omit",
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    on_error: OnError = "raise",
    resume: str | os.PathLike[str] | None = None,
    progress: Callable[[FitProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    address: str | None = None,
) -> Statistics:
    """Compute the statistics of data of any kind and size, without a scaler.

    Args:
        source: as in `fit`.
        columns: as in `fit`.
        quantiles: whether to keep quantiles too; as in `fit`.
        nan_policy: as in `fit`.
        engine: as in `fit`.
        workers: as in `fit`.
        on_error: as in `fit`; a warning names what was skipped.
        resume: as in `fit`.
        progress: as in `fit`.
        storage_options: as in `fit`.
        address: as in `fit`.

    Returns:
        The statistics.

    Raises:
        SourceError: as in `fit`.
        InvalidInputError: NaN under ``nan_policy="raise"``.
        InvalidArgumentError: an option has no such value.

    Example:
        >>> import torch
        >>> from evenkeel.data import fit_statistics
        >>> fit_statistics(torch.tensor([[1.0, 10.0], [3.0, 30.0]])).mean
        array([ 2., 20.])
    """
    options = Options(
        columns, quantiles, nan_policy, engine, workers, on_error, resume, progress, storage_options, address
    )
    collected = collect(source, options)
    if collected.skipped:
        first = ", ".join(skip.label for skip in collected.skipped[:SKIPPED_SHOWN])
        rest = len(collected.skipped) - SKIPPED_SHOWN
        warnings.warn(
            f"skipped {len(collected.skipped)} that cannot be read: {first}{f' and {rest} more' if rest > 0 else ''}",
            stacklevel=2,
        )
    return collected.statistics


def scaler_kind(scaler: str | Scaler) -> tuple[type[Scaler], dict[str, Any]]:
    """The class of a scaler given by its word or an example, and its constructor's arguments."""
    from evenkeel.data.scalers import Scaler

    if isinstance(scaler, Scaler):
        return type(scaler), scaler.get_params(deep=False)
    if not isinstance(scaler, str):
        raise InvalidTypeError(f"scaler: expected one of {', '.join(SCALERS)} or a scaler, but got {scaler!r}")
    check_choice("scaler", scaler, SCALERS)
    return scaler_class(SCALERS[scaler]), {}


def collect(source: Any, options: Options) -> Collected:
    """Compute the statistics of a source, and note what was skipped."""
    opened = open_source(
        source, columns=options.columns, on_error=options.on_error, storage_options=options.storage_options
    )
    recipe = options.recipe(opened.names)
    collected = Collected(recipe.empty(), opened, list(opened.skipped))
    if opened.fragments is None:
        if options.engine != "local" or options.resume is not None:
            raise InvalidArgumentError(
                f"this {opened.description} is read once, in this process; use engine='local' without resume, or a path"
            )
        outcomes = stream_outcomes(opened, recipe)
    else:
        outcomes = fragment_outcomes(opened, recipe, options)
    states = watched(outcomes, collected, options.progress)
    first = next(states, None)
    if first is None:
        reason = f"{collected.skipped[0].error}" if collected.skipped else "it gives no batches"
        raise SourceError(f"nothing of {opened.description} can be read: {reason}")
    collected.statistics = merge_all(chain([first], states))
    if collected.statistics.rows == 0:
        if collected.skipped:
            raise SourceError(f"nothing of {opened.description} can be read: {collected.skipped[0].error}")
        raise SourceError(f"{opened.description} has no rows; there is nothing to fit")
    return collected


def fingerprint(fragments: Iterable[Fragment]) -> str:
    """A digest of the names, sizes and times of modification of files."""
    digest = hashlib.sha256()
    for fragment in fragments:
        digest.update(repr((fragment.key, fragment.signature)).encode())
    return digest.hexdigest()[:32]


def default_workers(source: Source) -> int | None:
    """Threads that pay off: none for values in memory, where the kernels' own threads share the work."""
    return min(processors() * source.waiting, MOST_WORKERS) if source.reads else None


def watched(
    outcomes: Iterable[Outcome], collected: Collected, progress: Callable[[FitProgress], None] | None
) -> Iterator[Statistics]:
    """Yield the states; note what was skipped, and tell the observer."""
    total = None if collected.source.fragments is None else len(collected.source.fragments)
    rows = 0
    for done, outcome in enumerate(outcomes, start=1):
        collected.skipped += outcome.skipped
        if outcome.statistics is not None:
            rows += outcome.statistics.rows
            yield outcome.statistics
        if progress is not None:
            progress(FitProgress(done, total, rows, len(collected.skipped)))


def stream_outcomes(source: Source, recipe: Recipe) -> Iterator[Outcome]:
    """Yield a state for every so many values of a stream."""
    statistics, number = recipe.empty(), 0
    for number, block in enumerate(source.stream or (), start=1):
        with reading(f"batch {number}"):
            block.add_to(statistics)
        if statistics.rows * (statistics.features or 1) >= STREAM_ELEMENTS:
            yield Outcome(statistics)
            statistics = recipe.empty()
    if number == 0 or statistics.rows:
        yield Outcome(statistics)


def fragment_outcomes(source: Source, recipe: Recipe, options: Options) -> Iterator[Outcome]:
    """Yield the outcome of every fragment in order: kept from an interrupted fit, or computed now and then kept."""
    parts = list(source.fragments or ())
    workers = Workers(options.workers or default_workers(source), options.address)
    kept = None if options.resume is None else ResumeFile(Path(options.resume), recipe, parts)
    with nullcontext() if kept is None else closing(kept):
        missing = [part for part in parts if kept is None or part.key not in kept]
        computed = ENGINES[options.engine](missing, recipe, workers)
        for part in parts:
            if kept is not None and part.key in kept:
                yield kept.read(part.key)
                continue
            outcome = next(computed)
            if kept is not None:
                kept.write(part, outcome)
            yield outcome
