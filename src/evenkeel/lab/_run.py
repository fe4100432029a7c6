"""A study or an experiment from Python, in one call."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenkeel._errors import StudyError
from evenkeel._options.names import check_experiment
from evenkeel._options.study import StudySettings
from evenkeel._options.workers import Workers
from evenkeel.lab.studies import StudyResult, read_study, run_study

if TYPE_CHECKING:
    from evenkeel.lab.experiments import ExperimentResult


def study(
    *,
    text: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    workers: int | Workers = 1,
    storage_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> StudyResult:
    """Train the same small transformer with each norm and placement on a text; the Python side of `evenkeel study`.

    Args:
        text: a text file or directory, Parquet or Arrow files of text or token ids, or a URL of such, as `load_corpus`
            reads them; None means the Python standard library's source.
        out: the directory to write to; None keeps no files, so that an interrupted study is lost.
        resume: continue the study in `out` if there is one, with its settings where none are given here.
        force: replace the study in `out` if there is one.
        progress: whether to show, on stderr, how far it is.
        workers: how many trainings run side by side, each in its own process; `Workers` says where.
        storage_options: for the client of the store that a URL names; see `evenkeel.data.fit`. They are not kept.
        **settings: the fields of `StudySettings`: arms, depth, width, steps, lr, seeds, threads, …

    Returns:
        The result: a table, figures and a page.

    Raises:
        StudyError: as `run_study` and `StudySettings` raise it.

    Example:
        >>> from evenkeel import lab
        >>> sizes = dict(depth=1, width=8, heads=1, context=8, batch=2, steps=2, seeds=1)
        >>> result = lab.study(arms=["none", "pre-rms"], **sizes, progress=False)
        >>> len(result.table().rows), sorted(result.figures())[:2]
        (2, ['around-norms', 'centring'])
    """
    from evenkeel.lab.progress import make_observer

    with directory_of(out, resume=resume) as directory:
        frozen = read_study(directory) if resume else None
        merged = StudySettings.from_options({**(frozen["settings"] if frozen else {}), **settings})
        if text is None and frozen and frozen["text"]:
            text = frozen["text"]
        runs = len(merged.arms) * len(merged.rates) * merged.seeds
        keep: dict[str, Any] = {"resume": resume, "force": force, "workers": workers}
        keep["storage_options"] = storage_options
        with make_observer(merged.steps, runs, quiet=not progress) as observer:
            summary = run_study(merged, directory, text=text, observer=observer, **keep)
        return StudyResult(summary, None if out is None else directory)


def experiment(
    name: str,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    workers: int | Workers = 1,
    **options: Any,
) -> ExperimentResult:
    """Measure a claim of the literature; the Python side of `evenkeel study --experiment`.

    Args:
        name: of the experiment: a key of `evenkeel.lab.experiments.EXPERIMENTS`.
        out: the directory to write to; None keeps no files, so that an interrupted run is lost.
        resume: continue the run in `out` if there is one: trials that are measured are not measured again.
        force: replace the run in `out` if there is one.
        progress: whether to show, on stderr, how far it is.
        workers: how many trials are measured side by side; `Workers` says where.
        **options: of the experiment: seed, seeds, threads and its own.

    Returns:
        The result: a table of claims and verdicts, records, figures and a page.

    Raises:
        StudyError: as `run_experiments` raises it, or there is no such experiment.

    Example:
        >>> from evenkeel import lab
        >>> lab.experiment("padding", seeds=1, lengths=(4, 8), features=3, batch=4, progress=False)
        ExperimentResult('padding', 2 trials, claims: ...)
    """
    check_experiment(name)
    from evenkeel.lab.experiments import EXPERIMENTS, ExperimentObserver, ExperimentResult, run_experiments
    from evenkeel.lab.progress import ExperimentLines

    observer = ExperimentLines() if progress else ExperimentObserver()
    with directory_of(out, resume=resume) as directory:
        keep: dict[str, Any] = {"resume": resume, "force": force, "workers": workers}
        run_experiments([EXPERIMENTS[name]], directory, options={name: options}, observer=observer, **keep)
        result = ExperimentResult.read(directory / name)
    return result if out is not None else replace(result, directory=None)


@contextlib.contextmanager
def directory_of(out: str | os.PathLike[str] | None, *, resume: bool) -> Iterator[Path]:
    """Give the directory of a run: the one named, or one that goes with the run."""
    if out is not None:
        yield Path(out)
        return
    if resume:
        raise StudyError("resume needs out: the directory of the run to continue")
    with tempfile.TemporaryDirectory(prefix="evenkeel-") as place:
        yield Path(place)
