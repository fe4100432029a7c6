"""What a figure is made of: series, rows, axes and panels, all plain data."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenkeel._errors import InvalidArgumentError
from evenkeel.report._table import Table

# From this ratio of largest to smallest value on, the small values collapse on a linear axis.
LOG_RATIO = 8


@dataclass(frozen=True)
class Axis:
    """One axis: its label with unit, and its scale.

    Args:
        label: the quantity, with its unit.
        log: logarithmic, linear, or None to choose logarithmic where positive values span a ratio of 8 or more.
        integer: ticks at whole numbers only.
        ticks: names for the positions 0, 1, 2, … instead of numbers.
        include: values that the axis covers in any case, so that panels can share a scale.
        floor: smaller values are drawn at this one, so that rounding noise does not take up decades.
        ceiling: larger values are drawn at this one, as arrows, so that what differs below takes up the axis.
        at: positions of the ticks, where they are few.
        level: a line across the plot, by its name and value.

    Example:
        >>> Axis("loss (nats per byte)").is_log([1.2, 5.6]), Axis("RMS").is_log([0.01, 5.0])
        (False, True)
    """

    label: str
    log: bool | None = None
    integer: bool = False
    ticks: Sequence[str] = ()
    include: Sequence[float] = ()
    floor: float = -math.inf
    ceiling: float = math.inf
    at: Sequence[float] = ()
    level: tuple[str, float] | None = None

    def is_log(self, values: Iterable[float | None]) -> bool:
        """Whether these values are drawn on a logarithmic axis."""
        covered = (*values, *self.include)
        numbers = [max(value, self.floor) for value in covered if value is not None and math.isfinite(value)]
        positive = [value for value in numbers if value > 0]
        if self.log is not None:
            return self.log and bool(positive)
        return bool(positive) and len(positive) == len(numbers) and max(positive) / min(positive) >= LOG_RATIO


@dataclass(frozen=True)
class Series:
    """One curve, with its range over repetitions if there are any.

    Args:
        name: the label; it also selects the style.
        x: positions.
        y: values; None or a non-finite number leaves a gap.
        low: smallest value over the repetitions at each position, or None.
        high: largest value over the repetitions at each position, or None.
        note: a short remark set beside the label.
        broken: the curve ended early; its last point is drawn as a cross.
        lost: positions without a value, since what was measured failed there; drawn as crosses at the top.

    Raises:
        InvalidArgumentError: the sequences differ in length.

    Example:
        >>> Series("pre-rms", [0, 10], [5.5, 1.4]).note
        ''
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    note: str = ""
    broken: bool = False
    lost: Sequence[float] = ()

    def __post_init__(self) -> None:
        lengths = {len(values) for values in (self.x, self.y, self.low, self.high) if values is not None}
        if len(lengths) != 1 or (self.low is None) != (self.high is None):
            raise InvalidArgumentError(
                f"series {self.name!r} has x, y, low and high of unequal length; give one value for every position, "
                "and both low and high or neither"
            )


@dataclass(frozen=True)
class Row:
    """One line of a chart of named values.

    Args:
        name: the label; it also selects the style.
        value: the value, or None for a row that has a remark only.
        low: smallest value over the repetitions, or None.
        high: largest value over the repetitions, or None.
        points: the single values behind `value`.
        note: a short remark set beside the value.
        beside: a value to compare with, drawn in grey.

    Example:
        >>> Row("pre-rms", 1.41, low=1.40, high=1.42, points=(1.40, 1.42)).value
        1.41
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    points: Sequence[float] = ()
    note: str = ""
    beside: float | None = None


@dataclass(frozen=True)
class Histogram:
    """Counts between edges.

    Args:
        name: the label; it also selects the style.
        edges: ascending bin edges, one more than counts.
        counts: values per bin.
        note: a short remark set beside the label.

    Raises:
        InvalidArgumentError: there is not exactly one edge more than counts.

    Example:
        >>> Histogram("after", [-1.0, 0.0, 1.0], [3, 5]).density()
        [0.375, 0.625]
    """

    name: str
    edges: Sequence[float]
    counts: Sequence[float]
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise InvalidArgumentError(
                f"histogram {self.name!r} has {len(self.edges)} edges for {len(self.counts)} counts; "
                "give one edge more than counts"
            )

    def density(self) -> list[float]:
        """Return the share of all values per unit of x, bin by bin: it integrates to 1 (0 without any value)."""
        total = math.fsum(self.counts)
        widths = [(count, right - left) for left, right, count in bins(self)]
        return [count / (total * width) if total and width else 0.0 for count, width in widths]

    def spread(self) -> tuple[float, float]:
        """Return mean and standard deviation, each value taken at the middle of its bin; NaN without any value."""
        total = math.fsum(self.counts)
        if not total:
            return math.nan, math.nan
        middles = [((left + right) / 2, count) for left, right, count in bins(self)]
        mean = math.fsum(count * middle for middle, count in middles) / total
        square = math.fsum(count * (middle - mean) ** 2 for middle, count in middles)
        return mean, math.sqrt(square / total)


def bins(item: Histogram) -> list[tuple[float, float, float]]:
    """Return left edge, right edge and count of every bin."""
    return list(zip(item.edges[:-1], item.edges[1:], item.counts, strict=True))


@dataclass(frozen=True)
class Panel:
    """One drawn plot: a complete Plotly figure as a plain dict, and the table of what it draws.

    `labels` are the direct labels of the curves; the page places them beside the plot and keeps them apart.

    Example:
        >>> Panel(spec={"data": [], "layout": {}}, table=Table(["x"], []), heading="Validation").heading
        'Validation'
    """

    spec: dict[str, Any]
    table: Table
    heading: str = ""
    labels: Sequence[dict[str, Any]] = ()
    hints: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """Panels under one message.

    Args:
        name: a short identifier for the anchor and the names of downloads, unique on a page.
        title: the message of the figure, one sentence without a full stop.
        caption: what to see, one sentence or a few.
        panels: the plots, side by side where there is room.

    Example:
        >>> Figure(name="loss", title="Loss falls", caption="See the end.", panels=[]).name
        'loss'
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
