"""The Plotly side shared by all panels: layout, axes, labels, validation."""

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from evenkeel._packages import require_package
from evenkeel.report._panels import Axis, Panel
from evenkeel.report._style import FONT_FAMILY, LIGHT, Style
from evenkeel.report._table import Table

NOTE_WIDTH = 14
NAME_WIDTH = 28


def escape_label(text: str) -> str:
    """Escape text for Plotly, which reads a few HTML tags and entities in labels, and %{names} in what hovers."""
    return html.escape(text, quote=False).replace("%{", "%&#123;")


def shorten(name: str) -> str:
    """Cut a name to what fits beside a plot; the tables have it in full."""
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"


def drawable(value: float | None, log: bool) -> TypeGuard[float]:
    """Whether a value has a place on the axis."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def clean(values: Iterable[float | None], log: bool) -> list[float | None]:
    """Replace the values that cannot be drawn by None, a gap."""
    return [value if drawable(value, log) else None for value in values]


def hover(x: Axis, y: Axis | None = None) -> str:
    """Return the template of the text under the pointer: the series, then the coordinates with their units."""
    coordinates = [f"{escape_label(x.label)}: %{{x:.4~g}}"]
    if y is not None:
        coordinates.append(f"{escape_label(y.label)}: %{{y:.4~g}}")
    return "<b>%{fullData.name}</b><br>" + "<br>".join(coordinates) + "<extra></extra>"


def label(name: str, note: str, style: Style, point: tuple[float, float], logs: tuple[bool, bool]) -> dict[str, Any]:
    """Return a direct label and its point in axis coordinates (the logarithm on a logarithmic axis)."""
    x, y = point
    return {
        "name": escape_label(shorten(name)),
        "note": [escape_label(line) for line in textwrap.wrap(note, NOTE_WIDTH)],
        "glyph": style.glyph,
        "color": style.colour,
        "x": math.log10(x) if logs[0] else x,
        "y": math.log10(y) if logs[1] else y,
    }


def level(y: Axis, log: bool) -> dict[str, Any]:
    """Return the part of a layout that draws the axis' level, if it has one: a line with its name below it."""
    if y.level is None or not drawable(y.level[1], log):
        return {}
    name, value = y.level
    across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value, "layer": "below"}
    text = {
        "name": "level",
        "text": escape_label(name),
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "yanchor": "top",
        "showarrow": False,
    }
    place = {"y": math.log10(value) if log else value, "font": {"color": LIGHT["muted"], "size": 12}}
    line = {"color": LIGHT["muted"], "dash": "dot", "width": 1}
    return {"shapes": [across | {"line": line}], "annotations": [text | place]}


def padded(values: Sequence[float], *, log: bool, room: float = 0.06) -> tuple[float, float]:
    """Return the axis range over values, with some room on both sides; in powers of ten if logarithmic."""
    if not values:
        return (0.0, 1.0)
    low, high = min(values), max(values)
    if log:
        low, high = math.log10(low), math.log10(high)
    pad = (high - low) * room or (0.3 if log else abs(high) * 0.1 or 0.5)
    return (low - pad, high + pad)


def layout(
    x: Axis,
    y: Axis | None,
    span_x: tuple[float, float],
    span_y: tuple[float, float],
    *,
    logs: tuple[bool, bool],
    height: float,
) -> dict[str, Any]:
    """Return the layout of a plot: fixed ranges (labels are placed from them), no chrome, light colours."""
    axes: dict[str, Any] = {}
    for name, axis, span, log in (("xaxis", x, span_x, logs[0]), ("yaxis", y, span_y, logs[1])):
        axes[name] = {
            "type": "log" if log else "linear",
            "range": list(span),
            "fixedrange": True,
            "zeroline": False,
            "gridcolor": LIGHT["grid"],
            "color": LIGHT["muted"],
            "exponentformat": "power",
            "minexponent": 4,
            "title": {"text": escape_label(axis.label) if axis else "", "font": {"size": 13}, "standoff": 8},
        }
        if axis is None:
            axes[name] |= {"showticklabels": False, "showgrid": False}
        elif axis.at:
            axes[name] |= {"tickvals": list(axis.at), "ticktext": [f"{value:g}" for value in axis.at]}
        elif axis.ticks:
            axes[name] |= {"tickvals": list(range(len(axis.ticks))), "ticktext": [escape_label(t) for t in axis.ticks]}
    return axes | {
        "height": height,
        "font": {"family": FONT_FAMILY, "size": 13, "color": LIGHT["ink"]},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": LIGHT["surface"], "font": {"color": LIGHT["ink"]}, "bordercolor": LIGHT["muted"]},
        "dragmode": False,
    }


def panel(
    traces: list[dict[str, Any]],
    layout: dict[str, Any],
    table: Table,
    heading: str,
    labels: Sequence[dict[str, Any]] = (),
    **hints: Any,
) -> Panel:
    """Return a panel whose figure has passed Plotly's own schema check."""
    if not traces and "annotations" not in layout:
        middle = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
        layout["annotations"] = [middle | {"text": "no values to draw"}]
    spec = {"data": traces, "layout": layout}
    # Plotly's Python objects know the schema: a misspelt attribute fails here and not silently in a browser.
    require_package("plotly.graph_objects").Figure(spec)
    return Panel(spec=spec, table=table, heading=heading, labels=labels, hints=hints)
