"""Statistics and drift as tables and pages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import InvalidArgumentError
from evenkeel.data._images import ImageNormalize
from evenkeel.data.statistics import GroupStatistics, Statistics
from evenkeel.report import Axis, Cell, Figure, Finding, Histogram, Page, Section, Table, histograms, join_words

if TYPE_CHECKING:
    from evenkeel.data._drift import DriftReport

__all__ = [
    "describe",
    "drift_page",
    "drift_table",
    "show_page",
    "skipped_of",
    "statistics_of",
    "statistics_table",
]

QUARTILES = (0.25, 0.5, 0.75)
BINS = 60
# The outermost thousandth on each side is left out of a histogram, or one value would flatten all others.
TAIL = 0.001
FIGURES = 40
SEEN = 1000  # a table shows a feature's mean and range to this part of its standard deviation
NAMED = 4


def statistics_of(item: Any) -> Statistics:
    """The statistics of an object loaded from a file."""
    if isinstance(item, Statistics):
        return item
    if isinstance(item, ImageNormalize):
        if item.statistics_ is None:
            raise InvalidArgumentError("the file holds an image preset, which has constants but no statistics")
        return item.statistics_.pooled
    if isinstance(item, GroupStatistics):
        raise InvalidArgumentError(
            "the file holds statistics of groups; load it with evenkeel.data.load and choose one"
        )
    statistics: Statistics = item.statistics_
    return statistics


def names_of(statistics: Statistics) -> list[str]:
    """The features' names, or their positions."""
    return list(statistics.names or map(str, range(statistics.count.size)))


def describe(item: Any) -> str:
    """One line about an object loaded from a file."""
    statistics = statistics_of(item)
    source, left_out = source_of(item), skipped_of(item)
    origin = f" of {source['description']}" if source.get("description") else ""
    skipped = f", {len(left_out)} files skipped" if left_out else ""
    return f"{type(item).__name__}: {statistics.rows:,} rows, {statistics.count.size} features{origin}{skipped}"


def source_of(item: Any) -> dict[str, Any]:
    """What `evenkeel data fit` noted of the source of an object's data; others may have noted anything else."""
    source = getattr(getattr(item, "contract_", None), "source", None)
    return source if isinstance(source, dict) else {}


def skipped_of(item: Any) -> list[Any]:
    """The files that were left out of an object's data."""
    skipped = source_of(item).get("skipped")
    return skipped if isinstance(skipped, list) else []


def statistics_table(statistics: Statistics) -> Table:
    """One row for each feature."""
    columns = ["feature", "valid", "missing", "mean", "std", "min", "max"]
    values: list[Any] = [statistics.count, statistics.missing, statistics.mean, statistics.std()]
    values += [statistics.minimum, statistics.maximum]
    if statistics.infinite.any():
        columns.append("infinite")
        values.append(statistics.infinite)
    if statistics.keeps_quantiles:
        columns += [f"{share:.0%}" for share in QUARTILES]
        values += list(statistics.quantile(QUARTILES))
    rows: list[list[Cell]] = [
        [name, *(cell(number.item()) for number in row)]
        for name, *row in zip(names_of(statistics), *values, strict=True)
    ]
    return Table(columns, rows, steps=(statistics.std() / SEEN).tolist())


def cell(number: float) -> Cell:
    """A number for a table; infinities and NaN as words."""
    return number if math.isfinite(number) else str(number)


def drift_table(report: DriftReport) -> Table:
    """One row for each feature: how it changed, and whether that fails."""
    with_quantiles = any(feature.psi is not None for feature in report.features)
    columns = ["feature", "mean shift (std)", "std ratio", "out of range", "missing", "before"]
    rows = []
    for feature in report.features:
        numbers = (feature.shift, feature.spread, feature.outside, feature.missing, feature.missing_before)
        row: list[Cell] = [feature.name, *map(cell, numbers)]
        if with_quantiles:
            row += [feature.psi, feature.ks]
        rows.append([*row, "FAILS" if feature.failures else "ok"])
    return Table([*columns, *(["PSI", "KS"] if with_quantiles else []), "verdict"], rows)


def show_page(item: Any, title: str, *, footer: str = "") -> Page:
    """The page of `evenkeel data show`."""
    statistics = statistics_of(item)
    names = names_of(statistics)
    lead = [describe(item) + "."]
    if not statistics.keeps_quantiles:
        lead.append("There are no histograms, since quantiles were not kept: fit with quantiles=True (--quantiles).")
    sections = [Section("Features", tables=[statistics_table(statistics)])]
    if statistics.keeps_quantiles:
        figures = [
            histogram_figure(names[index], {"": statistics}, index)
            for index in np.flatnonzero(statistics.maximum > statistics.minimum)[:FIGURES].tolist()
        ]
        text = (
            f"Rank error at most {statistics.quantile_error:.2%} of the values."
            if statistics.quantile_error
            else "Counted exactly."
        )
        more = [f"The first {FIGURES} of {len(names)} features."] if len(names) > FIGURES else []
        sections.append(Section("Distributions", [text, *more], figures=figures))
    return Page(title, lead, observations(statistics), sections, footer)


def observations(statistics: Statistics) -> list[Finding]:
    """The peculiarities of statistics that matter before scaling by them."""
    names = np.array(names_of(statistics))
    std = statistics.std()
    share = statistics.missing / max(statistics.rows, 1)
    findings = []
    for mask, title, text in (
        (std == 0, "constant", "They carry no information and cannot be scaled."),
        (share > 0, "with missing values", f"At most {share.max():.1%} of a feature's rows." if share.size else ""),
        (statistics.infinite > 0, "with infinities", "No mean exists; replace them before fitting."),
    ):
        if affected := names[mask].tolist():
            rest = f" and {len(affected) - NAMED} more" if len(affected) > NAMED else ""
            listed = ", ".join(affected[:NAMED]) + rest if rest else join_words(affected)
            findings.append(Finding(f"{len(affected)} of {len(names)} features {title}", f"{listed}. {text}"))
    spread = std[std > 0]
    if spread.size > 1 and spread.max() / 10 > spread.min():
        text = f"Standard deviations range from {spread.min():.3g} to {spread.max():.3g}: unscaled, one dominates."
        decades = math.log10(spread.max()) - math.log10(spread.min())
        fold = f"{spread.max() / spread.min():,.0f}-fold" if decades < 9 else f"by {decades:.0f} powers of ten"
        findings.append(Finding(f"Scales differ {fold}", text))
    return findings


def drift_page(
    report: DriftReport, reference: Statistics, current: Statistics, stats: str, source: str, *, footer: str = ""
) -> Page:
    """The page of `evenkeel data check`."""
    lead = [f"{drift_verdict(report)}: {current.rows:,} rows of {source} against {reference.rows:,} rows of {stats}."]
    sections = [Section("Features", tables=[drift_table(report)])]
    if reference.keeps_quantiles and current.keeps_quantiles:
        order = sorted(range(len(report.features)), key=lambda i: -(report.features[i].psi or 0.0))[:FIGURES]
        figures = [
            histogram_figure(report.features[index].name, {"before": reference, "now": current}, index)
            for index in order
            if reference.count[index] and current.count[index] and (reference.m2[index] or current.m2[index])
        ]
        sections.append(Section("Distributions, the most changed first", figures=figures))
    return Page(f"{source} against {stats}", lead, drift_findings(report), sections, footer)


def drift_verdict(report: DriftReport) -> str:
    """Whether the data drifted, in a few words."""
    count = len(report.failures)
    return f"{count} difference{'s' * (count > 1)}" if count else "The data is like that of the fit"


def drift_findings(report: DriftReport) -> list[Finding]:
    """What drifted."""
    findings = [Finding("The data as a whole", problem) for problem in report.problems]
    failing = (feature for feature in report.features if feature.failures)
    return findings + [Finding(feature.name, "; ".join(feature.failures)) for feature in failing]


def histogram_figure(name: str, sides: dict[str, Statistics], index: int) -> Figure:
    """The histograms of one feature over the same bins."""
    samples = {side: statistics.distribution(index) for side, statistics in sides.items()}
    unit = unit_of(samples.values())
    samples = {side: (values / unit, weights) for side, (values, weights) in samples.items()}
    lows, highs = zip(*(central_range(*sample) for sample in samples.values()), strict=True)
    low, high = min(lows), max(highs)
    edges = np.linspace(low, high, BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])
    items = [
        Histogram(side or name, edges.tolist(), np.histogram(values, edges, weights=weights)[0].tolist())
        for side, (values, weights) in samples.items()
    ]
    caption = f"{name}, without the outermost {TAIL:.1%} on each side."
    title = f"{name}: {low * unit:.4g} to {high * unit:.4g}"
    axis = Axis(name if unit == 1 else f"{name} / {unit:g}")
    return Figure(f"feature-{index}", title, caption, [histograms(items, x=axis)])


def unit_of(samples: Iterable[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> float:
    """1, or the power of ten of the largest value where bins and densities would leave the range of float64."""
    largest = max((np.abs(values[np.isfinite(values)]).max(initial=0.0) for values, _ in samples), default=0.0)
    return 1.0 if largest == 0 or 1e-150 < largest < 1e150 else 10.0 ** max(math.floor(math.log10(largest)), -307)


def central_range(values: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The range of all values but the outermost; infinities do not count."""
    finite_ones = np.isfinite(values)
    values, ranks = values[finite_ones], np.cumsum(weights[finite_ones])
    low, high = np.searchsorted(ranks, [TAIL * ranks[-1], (1 - TAIL) * ranks[-1]])
    return float(values[low]), float(values[min(high, len(values) - 1)])
