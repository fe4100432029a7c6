"""A figure as Plotly's own object, for notebooks."""

import itertools
import math
import textwrap
from collections.abc import Iterator
from typing import Any

from evenkeel._packages import require_package
from evenkeel.report._panels import Figure, Panel
from evenkeel.report._plotly import escape_label

GAP = 0.09  # between panels, as a share of the width
TITLE_WIDTH = 90
ABOVE, LINE = 90, 22  # pixels for a title of one line, and for each line more
MOST_TICKS = 8
Layout = dict[str, Any]


def plotly_figure(figure: Figure) -> Any:
    """Turn a figure into a Plotly figure: its panels side by side, its message as the title, a legend of the curves.

    Args:
        figure: what to draw.

    Returns:
        A `plotly.graph_objects.Figure`, which a notebook shows and which can be changed, shown or written.

    Raises:
        EvenkeelError: plotly is not installed.

    Example:
        >>> from evenkeel.report import Axis, Figure, Series, lines
        >>> panel = lines([Series("a", [0, 1], [2.0, 1.0])], x=Axis("step"), y=Axis("loss"))
        >>> plotly_figure(Figure("loss", "Loss falls", "See the end.", [panel])).layout.title.text
        'Loss falls'
    """
    told = [escape_label(line) for line in textwrap.wrap(figure.title, TITLE_WIDTH)]
    title, above = "<br>".join(told), ABOVE + LINE * (len(told) - 1)
    layout: Layout = {"title": {"text": title, "x": 0.0, "xref": "paper", "font": {"size": 16}}, "annotations": []}
    traces: list[dict[str, Any]] = []
    shown: set[str] = set()
    for number, panel in enumerate(figure.panels):
        place_panel(panel, number, len(figure.panels), layout)
        traces += placed_traces(panel, number, shown)
    common = figure.panels[0].spec["layout"] if figure.panels else {}
    layout |= {name: common[name] for name in ("font", "hoverlabel", "hovermode") if name in common}
    heights = [panel.spec["layout"].get("height", 0) for panel in figure.panels]
    layout |= {"height": max(heights, default=0) + above, "margin": {"t": above}, "plot_bgcolor": "white"}
    return require_package("plotly.graph_objects").Figure(
        {"data": traces, "layout": layout | {"showlegend": bool(shown)}}
    )


def suffix(number: int) -> str:
    """Return how Plotly numbers the axes of a panel."""
    return str(number + 1) if number else ""


def place_panel(panel: Panel, number: int, count: int, layout: Layout) -> None:
    """Give a panel its axes, heading and annotations within the whole."""
    width, end = (1 - GAP * (count - 1)) / count, suffix(number)
    left = number * (width + GAP)
    spec = panel.spec["layout"]
    x, y = (axis | {"fixedrange": False} | log_ticks(axis) for axis in (spec.get("xaxis", {}), spec.get("yaxis", {})))
    if panel.hints.get("integer_x"):
        low, high = x["range"]
        x |= {"tickformat": "d", "dtick": nice_step(high - low, MOST_TICKS)}
    layout[f"xaxis{end}"] = x | {"domain": [left, min(1.0, left + width)], "anchor": f"y{end}"}
    layout[f"yaxis{end}"] = y | {"anchor": f"x{end}"}
    for annotation in spec.get("annotations", ()):
        relative = {"xref": f"x{end} domain"} if annotation.get("xref") == "paper" else {"xref": f"x{end}"}
        relative |= {"yref": f"y{end} domain"} if annotation.get("yref") == "paper" else {"yref": f"y{end}"}
        layout["annotations"].append(annotation | relative)
    for shape in spec.get("shapes", ()):
        layout.setdefault("shapes", []).append(shape | {"xref": f"x{end} domain", "yref": f"y{end}"})
    if panel.heading:
        corner = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "showarrow": False}
        text = {"text": f"<b>{escape_label(panel.heading)}</b>", "xref": f"x{end} domain", "yref": f"y{end} domain"}
        layout["annotations"].append(corner | text)


def nice_step(span: float, most: int) -> int:
    """Return the least distance of ticks among 1, 2, 5, 10, … that needs no more of them."""
    steps = (step * 10**power for power in itertools.count() for step in (1, 2, 5))
    return next(step for step in steps if span / step <= most)


def log_ticks(axis: Layout) -> Layout:
    """Return ticks as on the page: whole powers over many decades, 1, 2 and 5 over few; none for other axes.

    Plotly's own come in several sizes of type.
    """
    low, high = axis.get("range", (0, 0))
    if axis.get("type") != "log" or high - low <= 0.5 or "tickvals" in axis:
        return {}
    many = high - low > 2
    step = nice_step(high - low, MOST_TICKS) if many else 1
    powers = range(math.floor(low / step) * step, math.ceil(high) + 1, step)
    ticks = [(digit, power) for power in powers for digit in ((1,) if many else (1, 2, 5))]
    inside = [(digit, power) for digit, power in ticks if low <= power + math.log10(digit) <= high]
    text = [
        f"{digit * 10.0**power:g}" if abs(power) <= 4 else f"{f'{digit}×' if digit > 1 else ''}10<sup>{power}</sup>"
        for digit, power in inside
    ]
    return {"tickmode": "array", "tickvals": [digit * 10.0**power for digit, power in inside], "ticktext": text}


def placed_traces(panel: Panel, number: int, shown: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a panel's traces on its axes; of each curve with a label, one in the whole figure is in the legend."""
    end = suffix(number)
    for trace in panel.spec["data"]:
        name = trace.get("name", "")
        listed = bool(panel.labels) and name not in shown and "fill" not in trace
        shown |= {name} if listed else set()
        yield trace | {"xaxis": f"x{end}", "yaxis": f"y{end}", "legendgroup": name, "showlegend": listed}
