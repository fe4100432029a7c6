"""Statistics and drift as tables and pages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import InvalidArgumentError
from evenkeel.data._images import ImageNormalize
from evenkeel.data.statistics import GroupStatistics, Statistics
from evenkeel.data.views._flags import constant_features, empty_features, flag_features, order_by_flags
from evenkeel.report import (
    Axis,
    Cell,
    Figure,
    Finding,
    Histogram,
    Page,
    Panel,
    Section,
    Sparkline,
    Table,
    histograms,
    join_words,
)

if TYPE_CHECKING:
    from evenkeel.data._drift import DriftReport, FeatureDrift

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
SPARK_BINS = 24
SPARKS = 1000  # the rows of a table that have one: each takes some hundred bytes of the page
PANELS = 2  # features drawn large: the worst flagged, the most changed
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
    """One row for each feature; without any value it has no mean and no range."""
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
        [name, valid.item(), missing.item(), *(cell(number.item()) if valid else None for number in row)]
        for name, valid, missing, *row in zip(names_of(statistics), *values, strict=True)
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
    """The page of `evenkeel data show`: one row for each feature, what is peculiar first."""
    statistics = statistics_of(item)
    names, flags = names_of(statistics), flag_features(statistics)
    order = order_by_flags(flags)
    lead = [describe(item) + "."]
    if not statistics.keeps_quantiles:
        lead.append("There are no histograms, since quantiles were not kept: fit with quantiles=True (--quantiles).")
    flagged = sum(map(bool, flags))
    heading = f"{flagged} of {len(names)} features have a flag" if flagged else f"No feature of {len(names)} has a flag"
    sections = [Section(heading, tables=[features_table(statistics, flags, order)])]
    if statistics.keeps_quantiles:
        sides = {"": statistics}
        drawn = [index for index in order if statistics.maximum[index] > statistics.minimum[index]][:PANELS]
        sections += distributions(names, sides, drawn, accuracy(statistics))
    return Page(title, lead, observations(statistics), sections, footer)


def features_table(statistics: Statistics, flags: list[list[str]], order: list[int]) -> Table:
    """One row for each feature, in this order: its histogram, its flags, its statistics."""
    plain = statistics_table(statistics)
    kept = [i for i, name in enumerate(plain.columns) if name not in ("feature", "valid", "25%", "75%")]
    with_bars = statistics.keeps_quantiles
    rows: list[list[Cell]] = []
    for place, index in enumerate(order):
        row = plain.rows[index]
        bars: list[Cell] = [spark({"": statistics}, index, str(row[0])) if place < SPARKS else ""] if with_bars else []
        rows.append([row[0], *bars, ", ".join(flags[index]), *(row[i] for i in kept)])
    columns = ["feature", *(["histogram"] if with_bars else []), "flags", *(plain.columns[i] for i in kept)]
    return Table(columns, rows, steps=[plain.steps[index] for index in order])


def accuracy(statistics: Statistics) -> str:
    """How exact the histograms are, in words."""
    error = statistics.quantile_error
    return f"Rank error at most {error:.2%} of the values." if error else "Counted exactly."


def distributions(names: list[str], sides: dict[str, Statistics], drawn: list[int], text: str) -> list[Section]:
    """The section with the histograms of some features side by side, if there are any."""
    if not drawn:
        return []
    panels = [histogram_figure(names[index], sides, index).panels[0] for index in drawn]
    panels = [
        Panel(spec=panel.spec, table=panel.table, heading=names[index], labels=panel.labels, hints=panel.hints)
        for panel, index in zip(panels, drawn, strict=True)
    ]
    title = f"{join_words([names[index] for index in drawn])} in detail"
    caption = f"Without the outermost {TAIL:.1%} on each side. {text}"
    return [Section("Distributions", figures=[Figure("distributions", title, caption, panels)])]


def observations(statistics: Statistics) -> list[Finding]:
    """The peculiarities of statistics that matter before scaling by them."""
    names = np.array(names_of(statistics))
    std = statistics.std()
    share = statistics.missing / max(statistics.rows, 1)
    most = share[share < 1].max(initial=0)
    findings = []
    for mask, title, text in (
        (empty_features(statistics), "without any value", "Nothing is known of them; leave them out."),
        (constant_features(statistics), "constant", "They carry no information and cannot be scaled."),
        (
            (share > 0) & (share < 1),
            "with missing values",
            f"At most {most:.1%} of a feature's rows.",
        ),
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
    order = sorted(range(len(report.features)), key=lambda i: change(report.features[i]))
    failing = sum(bool(feature.failures) for feature in report.features)
    heading = f"{failing or 'None'} of {len(order)} features {'fails' if failing < 2 else 'fail'}"
    sides = {"before": reference, "now": current}
    sections = [Section(heading, tables=[drift_features_table(report, sides, order)])]
    if reference.keeps_quantiles and current.keeps_quantiles:
        varied = (reference.m2 > 0) | (current.m2 > 0)
        drawn = [i for i in order if reference.count[i] and current.count[i] and varied[i]][:PANELS]
        sections += distributions([feature.name for feature in report.features], sides, drawn, "The most changed.")
    findings = [Finding("The data as a whole", problem) for problem in report.problems]
    return Page(f"{source} against {stats}", lead, findings, sections, footer)


def change(feature: FeatureDrift) -> tuple[bool, int, float]:
    """By what features are sorted: those that fail first, by their failures and how much the distribution changed."""
    return not feature.failures, -len(feature.failures), -(feature.psi or 0.0)


def drift_features_table(report: DriftReport, sides: dict[str, Statistics], order: list[int]) -> Table:
    """One row for each feature, in this order: both histograms, what fails, how it changed."""
    plain = drift_table(report)
    with_bars = all(statistics.keeps_quantiles for statistics in sides.values())
    rows: list[list[Cell]] = []
    for place, index in enumerate(order):
        feature, row = report.features[index], plain.rows[index]
        bars: list[Cell] = [spark(sides, index, feature.name) if place < SPARKS else ""] if with_bars else []
        rows.append([feature.name, *bars, "; ".join(feature.failures), *row[1:-1]])
    return Table(["feature", *(["now, before"] if with_bars else []), "fails", *plain.columns[1:-1]], rows)


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
    unit, edges, counts = binned(sides, index, BINS)
    items = [Histogram(side or name, edges, values) for side, values in counts.items()]
    caption = f"{name}, without the outermost {TAIL:.1%} on each side."
    title = f"{name}: {edges[0] * unit:.4g} to {edges[-1] * unit:.4g}"
    axis = Axis(name if unit == 1 else f"{name} / {unit:g}")
    return Figure(f"feature-{index}", title, caption, [histograms(items, x=axis)])


def spark(sides: dict[str, Statistics], index: int, name: str) -> Cell:
    """The last side's histogram of a feature in a cell, the first one's as its outline; nothing without values."""
    sides = {side: statistics for side, statistics in sides.items() if statistics.count[index]}
    if not sides:
        return ""
    unit, edges, counts = binned(sides, index, SPARK_BINS)
    *before, now = counts.values()
    label = f"histogram of {name} from {edges[0] * unit:.4g} to {edges[-1] * unit:.4g}"
    return Sparkline(now, before[0] if before else (), label)


def binned(sides: dict[str, Statistics], index: int, bins: int) -> tuple[float, list[float], dict[str, list[float]]]:
    """A feature's unit, the edges of its bins in that unit, and each side's counts."""
    samples = {side: statistics.distribution(index) for side, statistics in sides.items()}
    unit = unit_of(samples.values())
    samples = {side: (values / unit, weights) for side, (values, weights) in samples.items()}
    lows, highs = zip(*(central_range(*sample) for sample in samples.values()), strict=True)
    low, high = min(lows), max(highs)
    edges = np.linspace(low, high, bins + 1) if high > low else np.array([low - 0.5, low + 0.5])
    counts = {
        side: np.histogram(values, edges, weights=weights)[0].tolist() for side, (values, weights) in samples.items()
    }
    return unit, edges.tolist(), counts


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
