"""Charts of named values: bars from zero, and dots with whiskers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel.report import _plotly
from evenkeel.report._panels import Axis, Panel, Row
from evenkeel.report._style import LIGHT, Style, assign_styles
from evenkeel.report._table import Table
from evenkeel.report._text import format_number

ROW_HEIGHT = 46


def bars(
    rows: Sequence[Row],
    *,
    x: Axis,
    styles: Mapping[str, Style] | None = None,
    heading: str = "",
    unit: str = "",
) -> Panel:
    """Draw one horizontal bar from zero for each row, with its value written above it.

    Args:
        rows: from top to bottom; a row without a value has its remark only.
        x: the value axis.
        styles: style per row name; assigned in order when omitted.
        heading: the heading of the panel in its figure.
        unit: written after each value.

    Returns:
        The panel.

    Example:
        >>> bars([Row("layer", 12.5), Row("rms", 9.0)], x=Axis("time (ms)"), unit=" ms").table.rows
        [['layer', 12.5, None, None, ''], ['rms', 9.0, None, None, '']]
    """
    styles = styles or assign_styles(row.name for row in rows)
    traces = []
    for position, row in enumerate(rows):
        if row.value is None:
            continue
        mark = {"color": styles[row.name].colour}
        bar = {"type": "bar", "orientation": "h", "width": 0.34, "marker": mark} | _row_data(row, position, x)
        if row.low is not None and row.high is not None:
            bar["error_x"] = _whisker(row, LIGHT["muted"])
        traces.append(bar)
    largest = max((row.high if row.high is not None else row.value for row in rows if row.value is not None), default=0)
    span = (0.0, largest * 1.04 or 1.0)
    return _rows_panel(rows, traces, x, span, heading, unit, digits=3)


def dots(
    rows: Sequence[Row],
    *,
    x: Axis,
    styles: Mapping[str, Style] | None = None,
    heading: str = "",
    unit: str = "",
) -> Panel:
    """Draw one dot for each row, with a whisker from low to high and a small ring for each single value.

    Unlike a bar, a dot does not need the axis to start at zero, so small differences stay visible. A value to compare
    with is a grey diamond.

    Args:
        rows: from top to bottom; a row without a value has its remark only.
        x: the value axis.
        styles: style per row name; assigned in order when omitted.
        heading: the heading of the panel in its figure.
        unit: written after each value.

    Returns:
        The panel.

    Example:
        >>> dots([Row("layer", 1.5, low=1.4, high=1.6)], x=Axis("loss")).table.rows
        [['layer', 1.5, 1.4, 1.6, '']]
    """
    styles = styles or assign_styles(row.name for row in rows)
    told = list(rows)
    rows = [_raised(row, x.floor) for row in rows]
    log = x.is_log(value for row in rows for value in (row.value, row.low, row.high))
    traces, values = [], []
    for position, row in enumerate(rows):
        if _plotly.drawable(row.beside, log):
            ring = {"color": LIGHT["muted"], "symbol": "diamond-open", "size": 15, "line": {"width": 2}}
            traces.append({"type": "scatter", "mode": "markers", "marker": ring} | _row_data(row, position, x))
            traces[-1] |= {"x": [row.beside]}
            values.append(row.beside)
        if not _plotly.drawable(row.value, log):
            continue
        style = styles[row.name]
        mark = {"color": style.colour, "symbol": style.marker, "size": 12}
        dot = {"type": "scatter", "mode": "markers", "marker": mark} | _row_data(row, position, x)
        if row.low is not None and row.high is not None:
            dot["error_x"] = _whisker(row, style.colour)
        ring = {"color": style.colour, "symbol": "circle-open", "size": 7}
        points = [point for point in row.points if _plotly.drawable(point, log)]
        rings = {"type": "scatter", "mode": "markers", "marker": ring, "hoverinfo": "skip"}
        traces += [rings | {"x": points, "y": [-position] * len(points)}, dot]
        values += [value for value in (row.value, row.low, row.high, *points) if value is not None]
    return _rows_panel(told, traces, x, _plotly.padded(values, log=log), heading, unit, digits=4, log=log)


def _raised(row: Row, floor: float) -> Row:
    """Return a row with smaller values raised to a floor."""
    ends = {name: getattr(row, name) for name in ("value", "low", "high", "beside")}
    raised: dict[str, Any] = {name: None if value is None else max(value, floor) for name, value in ends.items()}
    return dataclasses.replace(row, **raised, points=[max(value, floor) for value in row.points])


def _row_data(row: Row, position: int, x: Axis) -> dict[str, Any]:
    return {
        "name": _plotly.escape_label(row.name),
        "x": [row.value],
        "y": [-position],
        "hovertemplate": _plotly.hover(x),
    }


def _whisker(row: Row, colour: str) -> dict[str, Any]:
    value, low, high = (number or 0.0 for number in (row.value, row.low, row.high))
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - value)],
        "arrayminus": [max(0.0, value - low)],
        "color": colour,
        "thickness": 2,
        "width": 6,
    }


def _rows_panel(
    rows: Sequence[Row],
    traces: list[dict[str, Any]],
    x: Axis,
    span: tuple[float, float],
    heading: str,
    unit: str,
    *,
    digits: int,
    log: bool = False,
) -> Panel:
    names, cells = ["name", x.label, "lowest", "highest", "remark"], [[r.name, r.value, r.low, r.high] for r in rows]
    if any(row.beside is not None for row in rows):
        names.insert(4, "beside")
        cells = [[*cell, row.beside] for cell, row in zip(cells, rows, strict=True)]
    table = Table(names, [[*cell, row.note] for cell, row in zip(cells, rows, strict=True)])
    layout = _plotly.layout(
        x, None, span, (-len(rows) + 0.5, 0.8), logs=(log, False), height=ROW_HEIGHT * len(rows) + 70
    )
    layout["annotations"] = [
        {
            "text": _row_text(row, unit, digits),
            "xref": "paper",
            "x": 0,
            "xanchor": "left",
            "y": -position,
            "yanchor": "bottom",
            "yshift": 8,
            "showarrow": False,
            "align": "left",
            "bgcolor": LIGHT["surface"],
            "borderpad": 0,
        }
        for position, row in enumerate(rows)
    ]
    return _plotly.panel(traces, layout, table, heading)


def _row_text(row: Row, unit: str, digits: int) -> str:
    name = f"<b>{_plotly.escape_label(_plotly.shorten(row.name))}</b>"
    number = f"{row.value:,}" if isinstance(row.value, int) else format_number(row.value, digits=digits)
    value = _plotly.escape_label(number + unit) if row.value is not None else ""
    return f"{name}  {' · '.join(part for part in (value, _plotly.escape_label(row.note)) if part)}"
