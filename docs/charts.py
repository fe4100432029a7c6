"""Dot charts as SVG text, without any library: a row or a place for each case, on logarithmic axes."""

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from evenkeel.report import write_text_atomically
from evenkeel.report._style import DARK, FONT_FAMILY, LIGHT

# ours first; the colours of every figure of the project, told apart by shape too
DRAWN = (
    ("#d55e00", "circle"),
    ("#0072b2", "square"),
    ("#009e73", "diamond"),
    ("#cc79a7", "triangle"),
    ("#56b4e9", "circle"),
)
LEFT, RIGHT, ROW, TOP, WIDTH = 330, 70, 22, 74, 920
LETTER = 7.2  # the usual width of one in the labels, which the reader's font may exceed
BEYOND = 1.04  # where what is infinite or not a number stands, as a share of the axis


def mark(shape: str, x: float, y: float, colour: str, title: str) -> str:
    """One dot; its exact value shows under the pointer."""
    said = f"<title>{html.escape(title)}</title>"
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{colour}">{said}</circle>'
    outlines: dict[str, list[tuple[float, float]]] = {
        "square": [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)],
        "diamond": [(0, -6), (6, 0), (0, 6), (-6, 0)],
        "triangle": [(0, -6), (5.5, 4.5), (-5.5, 4.5)],
    }
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in outlines[shape])
    return f'<polygon points="{path}" fill="{colour}">{said}</polygon>'


def text(x: float, y: float, content: str, *, anchor: str = "start", size: int = 12, colour: str = LIGHT["ink"]) -> str:
    """A line of text."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f"<text {place}>{html.escape(content)}</text>"


def ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the axis, with 2 and 5 or more between them where there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps: tuple[float, ...] = (1, 2, 5) if high / low <= 300 else (1,)
    if high / low <= 4:
        steps = (1, 1.1, 1.2, 1.5, 2, 3, 5, 7, 8, 9)
    every = max(1, len(decades) // 8)
    return [round(f * 10.0**d, 12 - d) for d in decades for f in steps if d % every == 0 and low <= f * 10.0**d <= high]


def extent(values: Sequence[float], line: float) -> tuple[float, float]:
    """The ends of the axis: all finite positive values and the line, with some room."""
    drawn = [v for v in (*values, line) if math.isfinite(v) and v > 0]
    room = min(1.3, max(1.05, (max(drawn) / min(drawn)) ** 0.15))
    return min(drawn) / room, max(drawn) * room


def dot_chart(
    title: str,
    unit: str,
    rows: Mapping[str, Mapping[str, float]],
    *,
    line: float,
    said: str,
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] = MappingProxyType({}),
    size: tuple[int, int] = (LEFT, WIDTH),
) -> str:
    """A chart: ``rows`` maps a case to the value of each contender; ``line`` is drawn and explained by ``said``.

    Zeros stand at the left end; what is infinite or not a number stands beyond the right end. ``intervals``, by case
    and contender, are drawn as lines through the dots. ``size`` is the least room for labels and the width with it.
    """
    owners = list(dict.fromkeys(owner for values in rows.values() for owner in values))
    ends = [end for case in intervals.values() for interval in case.values() for end in interval]
    low, high = extent([*(v for values in rows.values() for v in values.values()), *ends], line)
    left = max(size[0], 20 + LETTER * max(map(len, rows), default=0))
    width = size[1] + left - size[0]
    span, bottom = width - left - RIGHT, TOP + ROW * len(rows)

    def place(value: float) -> float:
        if not math.isfinite(value):
            return left + span * BEYOND
        share = math.log(max(value, low) / low) / math.log(high / low)
        return left + span * share

    parts = [text(12, 24, title, size=16), text(12, 42, unit, colour=LIGHT["muted"])]
    for index, owner in enumerate(owners):
        colour, shape = DRAWN[index]
        x = left + min(150, (width - left) / len(owners)) * index
        parts += [mark(shape, x, 58, colour, owner), text(x + 10, 62, owner)]
    for tick in ticks(low, high):
        x = place(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="{LIGHT["grid"]}"/>')
        parts.append(text(x, bottom + 16, f"{tick:g}", anchor="middle", colour=LIGHT["muted"]))
    parts.append(f'<path d="M{place(line):.1f} {TOP - 4}V{bottom}" stroke="{LIGHT["ink"]}" stroke-dasharray="4 3"/>')
    parts.append(text(place(line), bottom + 32, said, anchor="middle"))
    for index, (case, values) in enumerate(rows.items()):
        y = TOP + ROW * (index + 0.5)
        parts.append(text(left - 14, y + 4, case, anchor="end"))
        for (colour, shape), owner in zip(DRAWN, owners, strict=False):
            if owner in values:
                if owner in intervals.get(case, {}):
                    begin, end = map(place, intervals[case][owner])
                    parts.append(f'<path d="M{begin:.1f} {y}H{end:.1f}" stroke="{colour}"/>')
                parts.append(mark(shape, place(values[owner]), y, colour, f"{owner}: {values[owner]:.3g}"))
    return drawing(title, width, bottom + 44, parts)


def scatter_chart(
    title: str, axes: tuple[str, str], groups: Mapping[str, Sequence[tuple[float, float, str]]], *, line: float
) -> str:
    """A chart of points (x, y, what it is) by group, both axes logarithmic; ``line`` is a level of y."""
    points = [point for group in groups.values() for point in group]
    (left, right), (low, high) = extent([p[0] for p in points], points[0][0]), extent([p[1] for p in points], line)
    width, begin, end, bottom = WIDTH, 70, WIDTH - 30, 480

    def across(x: float) -> float:
        return begin + (end - begin) * math.log(x / left) / math.log(right / left)

    def down(y: float) -> float:
        return bottom - (bottom - TOP) * math.log(y / low) / math.log(high / low)

    parts = [text(12, 24, title, size=16), text(12, 42, axes[1], colour=LIGHT["muted"])]
    for tick in ticks(left, right):
        x = across(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="{LIGHT["grid"]}"/>')
        parts.append(text(x, bottom + 16, f"{tick:g}", anchor="middle", colour=LIGHT["muted"]))
    for tick in ticks(low, high):
        y = down(tick)
        parts.append(f'<path d="M{begin} {y:.1f}H{end}" stroke="{LIGHT["grid"]}"/>')
        parts.append(text(begin - 8, y + 4, f"{tick:g}", anchor="end", colour=LIGHT["muted"]))
    parts.append(f'<path d="M{begin} {down(line):.1f}H{end}" stroke="{LIGHT["ink"]}" stroke-dasharray="4 3"/>')
    parts.append(text((begin + end) / 2, bottom + 34, axes[0], anchor="middle", colour=LIGHT["muted"]))
    for index, (name, group) in enumerate(groups.items()):
        colour, shape = DRAWN[index]
        parts += [mark(shape, begin + 130 * index, 58, colour, name), text(begin + 130 * index + 10, 62, name)]
        parts += [mark(shape, across(x), down(y), colour, said) for x, y, said in group]
    return drawing(title, width, bottom + 48, parts)


def drawing(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """The SVG of a chart's parts, on white or, where the reader's system is dark, on the dark surface."""
    dark = "".join(
        f'[{where}="{LIGHT[role]}"]{{{where}:{DARK[role]}}}'
        for where, roles in (("fill", ("surface", "ink", "muted")), ("stroke", ("ink", "grid")))
        for role in roles
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="{html.escape(FONT_FAMILY)}" role="img">'
        f"<title>{html.escape(title)}</title><style>@media (prefers-color-scheme: dark){{{dark}}}</style>"
        f'<rect width="100%" height="100%" fill="{LIGHT["surface"]}"/>' + "\n".join(parts) + "</svg>\n"
    )


def write_chart(path: Path, chart: str) -> str:
    """Write a chart and return the Markdown that shows it."""
    path.parent.mkdir(exist_ok=True)
    write_text_atomically(path, chart)
    title = html.unescape(chart.split("<title>")[1].split("</title>")[0])
    return f"![{title}](images/{path.name})"
