"""Curves and histograms."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel.report import _plotly
from evenkeel.report._panels import Axis, Histogram, Panel, Series, bins
from evenkeel.report._style import Style, assign_styles
from evenkeel.report._table import Cell, Table

HEIGHT = 300
# On a logarithmic axis densities below this share of the peak are the noise of single counts.
DENSITY_FLOOR = 1e-4
# Tails beyond this share of the values do not decide how wide a histogram's axis is.
TAIL = 5e-4


def lines(
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    styles: Mapping[str, Style] | None = None,
    heading: str = "",
) -> Panel:
    """Draw curves, each with a direct label and, if it has one, its range as a band.

    Args:
        series: the curves; one without any drawable value is left out of the plot and kept in the table.
        x: the horizontal axis, logarithmic where it says so and all positions are positive.
        y: the vertical axis.
        styles: style per series name; assigned in order when omitted.
        heading: the heading of the panel in its figure.

    Returns:
        The panel; its table has one row for each x and one column for each series.

    Example:
        >>> panel = lines([Series("a", [0, 1], [2.0, 1.0])], x=Axis("step"), y=Axis("loss"))
        >>> panel.table.rows
        [[0, 2.0], [1, 1.0]]
    """
    styles = styles or assign_styles(item.name for item in series)
    table = _wide_table(series, x)
    beyond = {item.name: _beyond(item, y) for item in series}
    series = [_bounded(item, y) for item in series]
    log = y.is_log(value for item in series for value in _all_values(item))
    wide = bool(x.log) and all(position > 0 for item in series for position in (*item.x, *item.lost))
    top = _top(series, y, log)
    traces: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    for item in series:
        points = [(a, b) for a, b in zip(item.x, item.y, strict=True) if _plotly.drawable(b, log)]
        if not points and not item.lost:
            continue
        style = styles[item.name]
        lost = [(position, top) for position in item.lost]
        traces += [*_band(item, style, log), *([_curve(item, style, log, x, y)] if points else [])]
        traces += _marks(item.name, lost, "x", style)
        traces += _marks(
            item.name, [point for point in points if point[0] in beyond[item.name]], "triangle-up-open", style
        )
        traces += _marks(item.name, points[-1:] if item.broken else [], "x", style)
        labels.append(_plotly.label(item.name, item.note, style, (points or lost)[-1], (wide, log)))
    drawn = (value for trace in traces for value in trace["y"])
    values = [
        value for value in (*drawn, *(max(value, y.floor) for value in y.include)) if _plotly.drawable(value, log)
    ]
    values += [y.level[1]] if y.level and traces else []
    positions = [*(value for trace in traces for value in trace["x"]), *x.include]
    layout = _plotly.layout(
        x,
        y,
        (-0.5, len(x.ticks) - 0.5) if x.ticks else _plotly.padded(positions, log=wide, room=0.02),
        _plotly.padded(values, log=log),
        logs=(wide, log),
        height=HEIGHT,
    )
    layout |= _plotly.level(y, log)
    return _plotly.panel(traces, layout, table, heading, labels, integer_x=x.integer and not wide)


def histograms(
    items: Sequence[Histogram],
    *,
    x: Axis,
    styles: Mapping[str, Style] | None = None,
    heading: str = "",
) -> Panel:
    """Draw histograms over each other as outlines of their densities, each with a direct label.

    The value axis leaves out the outermost 0.05 % on each side of every histogram; the table has all bins. The density
    axis is logarithmic where the peaks differ tenfold.

    Args:
        items: the histograms.
        x: the value axis.
        styles: style per histogram name; assigned in order when omitted.
        heading: the heading of the panel in its figure.

    Returns:
        The panel; its table has one row for each bin.

    Example:
        >>> panel = histograms([Histogram("after", [-1, 0, 1], [1, 1])], x=Axis("value"))
        >>> panel.table.rows[0]
        ['after', -1, 0, 1, 0.5]
    """
    styles = styles or assign_styles(item.name for item in items)
    rows: list[list[Cell]] = [
        [item.name, *ends_and_count, density]
        for item in items
        for ends_and_count, density in zip(bins(item), item.density(), strict=True)
    ]
    table = Table(["histogram", "from", "to", "count", "density"], rows)
    counted = [item for item in items if any(item.counts)]
    peaks = [max(item.density()) for item in counted]
    log = bool(peaks) and max(peaks) / min(peaks) >= 10
    floor = max(peaks, default=1.0) * DENSITY_FLOOR if log else 0.0
    y = Axis("share of values per unit", log=log)
    traces = [trace for item in counted for trace in _outline(item, styles[item.name], floor, x, y)]
    labels = [_plotly.label(item.name, item.note, styles[item.name], _shoulder(item), (False, log)) for item in counted]
    top = max(peaks, default=1.0)
    span_y = (math.log10(floor), math.log10(top) + 0.1) if log else (0.0, top * 1.06)
    layout = _plotly.layout(x, y, _central(counted), span_y, logs=(False, log), height=HEIGHT)
    return _plotly.panel(traces, layout, table, heading, labels)


def _bounded(item: Series, y: Axis) -> Series:
    def within(values: Sequence[float | None]) -> list[float | None]:
        finite = (value if value is not None and math.isfinite(value) else None for value in values)
        return [None if value is None else min(max(value, y.floor), y.ceiling) for value in finite]

    low, high = (None if values is None else within(values) for values in (item.low, item.high))
    return dataclasses.replace(item, y=within(item.y), low=low, high=high)


def _beyond(item: Series, y: Axis) -> set[float]:
    """Return the positions of values above the ceiling."""
    return {a for a, b in zip(item.x, item.y, strict=True) if b is not None and y.ceiling < b < math.inf}


def _top(series: Sequence[Series], y: Axis, log: bool) -> float:
    """Return where the crosses of lost positions stand: above every value."""
    covered = (value for item in series for value in (*_all_values(item), *y.include))
    values = [value for value in covered if _plotly.drawable(value, log)]
    return min(max(values, default=1.0), y.ceiling) if math.isfinite(y.ceiling) else max(values, default=1.0)


def _all_values(item: Series) -> list[float | None]:
    return [*item.y, *(item.low or ()), *(item.high or ())]


def _curve(item: Series, style: Style, log: bool, x: Axis, y: Axis) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if not x.ticks else "markers",
        "name": _plotly.escape_label(item.name),
        "x": list(item.x),
        "y": _plotly.clean(item.y, log),
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"color": style.colour, "symbol": style.marker, "size": 9 if x.ticks else 7, "maxdisplayed": 9},
        "hovertemplate": _plotly.hover(x, y),
    }


def _band(item: Series, style: Style, log: bool) -> list[dict[str, Any]]:
    """Fill the range between low and high, where there are at least two positions with both."""
    edges = [
        (a, low, high)
        for a, low, high in zip(item.x, item.low or (), item.high or (), strict=False)
        if _plotly.drawable(low, log) and _plotly.drawable(high, log)
    ]
    if len(edges) < 2:
        return []
    outline = [(a, high) for a, _, high in edges] + [(a, low) for a, low, _ in reversed(edges)]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": _plotly.escape_label(item.name),
            "x": [a for a, _ in outline],
            "y": [b for _, b in outline],
            "fill": "toself",
            "fillcolor": style.colour,
            "line": {"width": 0, "color": style.colour},
            "opacity": 0.2,
            "hoverinfo": "skip",
        }
    ]


def _marks(name: str, points: Sequence[tuple[float, float]], symbol: str, style: Style) -> list[dict[str, Any]]:
    """Draw a larger mark over some points."""
    if not points:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": _plotly.escape_label(name),
            "x": [x for x, _ in points],
            "y": [y for _, y in points],
            "marker": {"symbol": symbol, "size": 12, "color": style.colour},
            "hoverinfo": "skip",
        }
    ]


def _wide_table(series: Sequence[Series], x: Axis) -> Table:
    columns = [x.label]
    values: list[dict[float, float | None]] = []
    for item in series:
        for suffix, numbers in (("", item.y), (" lowest", item.low), (" highest", item.high)):
            if numbers is not None:
                columns.append(item.name + suffix)
                values.append(dict(zip(item.x, _plotly.clean(numbers, log=False), strict=True)))
    positions = sorted({position for item in series for position in item.x})
    rows = [
        [x.ticks[int(position)] if x.ticks else position, *(column.get(position) for column in values)]
        for position in positions
    ]
    return Table(columns, rows)


def _outline(item: Histogram, style: Style, floor: float, x: Axis, y: Axis) -> list[dict[str, Any]]:
    """Draw the steps of a density, closed down to the floor at both ends, over a faint filling."""
    density = [max(value, floor) for value in item.density()]
    steps = {
        "type": "scatter",
        "mode": "lines",
        "name": _plotly.escape_label(item.name),
        "x": [item.edges[0], *item.edges, item.edges[-1]],
        "y": [floor, *density, density[-1], floor],
    }
    filling = {"fill": "toself", "fillcolor": style.colour, "opacity": 0.15, "hoverinfo": "skip"}
    line = {"shape": "hv", "color": style.colour, "dash": style.dash, "width": 2}
    return [
        steps | filling | {"line": {"shape": "hv", "width": 0, "color": style.colour}},
        steps | {"line": line, "hovertemplate": _plotly.hover(x, y)},
    ]


def _shoulder(item: Histogram) -> tuple[float, float]:
    """Return a point of the outline where a label's line can start: the rightmost bin with half the peak's density."""
    density = item.density()
    index = max(i for i, value in enumerate(density) if value >= max(density) / 2)
    return item.edges[index + 1], density[index] * 0.75


def _central(items: Sequence[Histogram]) -> tuple[float, float]:
    """Return the smallest range that holds every histogram without its outermost tails."""
    ends: list[float] = []
    for item in items:
        total, below = math.fsum(item.counts), 0.0
        for left, right, count in bins(item):
            if below + count > TAIL * total and below < total - TAIL * total:
                ends += [left, right]
            below += count
    return (min(ends), max(ends)) if ends else (-1.0, 1.0)
