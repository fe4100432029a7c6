"""Small pictures in the cells of a table: histograms, and values with their intervals."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel.report._style import DARK, FONT_FAMILY, LIGHT
from evenkeel.report._text import format_number

BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Sparkline:
    """A histogram in a cell: drawn on a page, a block for each bin elsewhere.

    Args:
        counts: values per bin.
        before: the counts of an earlier distribution over the same bins, drawn as an outline; none by default.
        name: of what is counted, for readers who cannot see it.

    Example:
        >>> print(Sparkline([1, 4, 8, 2]))
        ▁▄█▂
    """

    counts: Sequence[float]
    before: Sequence[float] = ()
    name: str = ""

    def __str__(self) -> str:
        heights = self.heights(self.counts)
        return "".join(BLOCKS[max(0, math.ceil(height * len(BLOCKS)) - 1)] if height else " " for height in heights)

    def heights(self, counts: Sequence[float]) -> list[float]:
        """Return counts as shares of the largest."""
        largest = max(counts, default=0) or 1
        return [count / largest for count in counts]

    def outline(self) -> str:
        """Return the steps of the earlier distribution as points of an SVG polyline, one unit wide and high."""
        heights = self.heights(self.before)
        steps = [(x, 1 - height) for place, height in enumerate(heights) for x in (place, place + 1)]
        return " ".join(f"{x / len(heights):.3f},{y:.3f}" for x, y in steps)

    def bars(self) -> str:
        """Return the bars as an SVG path, one unit wide and high."""
        heights, width = self.heights(self.counts), 1 / max(len(self.counts), 1)
        shown = [(place * width, height) for place, height in enumerate(heights) if height]
        return "".join(f"M{x:.3f} 1V{1 - height:.3f}h{0.85 * width:.3f}V1z" for x, height in shown)


# Of a picture of intervals, in pixels; letters are about as wide as those of 11 pixels.
WIDTH, ROW, NAMES, LETTER, FOOT = 300, 20, 116, 7.0, 30
LONGEST = 18  # letters of a name
LOG_RATIO = 8
Interval = tuple[str, float | None, float | None, float | None]


@dataclass(frozen=True)
class Intervals:
    """Values with their intervals in a cell: dots with whiskers on a page, numbers elsewhere.

    Args:
        rows: for each value a name, the value, and the ends of its interval; None where one is not known or not finite.
        quantity: what the axis shows, with its unit.
        allowed: the range that a claim allows, shaded; None for an open end.

    Example:
        >>> print(Intervals([("raw", 0.9, 0.4, 1.4), ("scaled", 0.1, None, None)], "loss"))
        loss: raw 0.900 (0.400 to 1.40), scaled 0.100
    """

    rows: Sequence[Interval]
    quantity: str
    allowed: tuple[float | None, float | None] | None = None

    def __str__(self) -> str:
        texts = [
            " ".join(filter(None, [name, format_number(value)]))
            + (
                ""
                if low is None or high is None or low == high
                else f" ({format_number(low)} to {format_number(high)})"
            )
            for name, value, low, high in self.rows
        ]
        return f"{self.quantity}: {', '.join(texts)}"

    def svg(self, *, alone: bool = False) -> str:
        """Return the picture as an SVG element, or as a file of its own with its own colours."""
        scale = _Scale(self)
        height = ROW * len(self.rows) + FOOT
        ink, muted = (LIGHT["ink"], LIGHT["muted"]) if alone else ("var(--ink)", "var(--muted)")
        parts = [*scale.band(height - FOOT, LIGHT["series3"]), *scale.feet(height - FOOT, muted, self.quantity)]
        for index, (name, value, low, high) in enumerate(self.rows):
            y = ROW * (index + 0.5)
            parts.append(_text(0, y + 4, name[:LONGEST], ink))
            if value is None:
                continue
            ends = (scale.place(low, -1), scale.place(high, 1)) if low != high else ()
            parts += (
                [f'<path d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}" stroke="{ink}" stroke-width="1.5"/>'] if ends else []
            )
            parts += [f'<path d="M{end:.1f} {y - 4:.1f}v8" stroke="{ink}" stroke-width="1.5"/>' for end in ends]
            parts.append(f'<circle cx="{scale.place(value, 0):.1f}" cy="{y:.1f}" r="4.5" fill="{LIGHT["series4"]}"/>')
        frame = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img"'
        named = f"<title>{html.escape(str(self))}</title>"
        if not alone:
            return f'<svg class="intervals" {frame}>{named}{"".join(parts)}</svg>'
        return standalone_svg(frame, named + "".join(parts))


class _Scale:
    """Where values stand between the names and the right end."""

    def __init__(self, item: Intervals) -> None:
        limits = [end for end in item.allowed or () if end is not None]
        numbers = [number for _, *row in item.rows for number in row if number is not None] + limits
        self.limits, self.allowed = limits, item.allowed
        low, high = min(numbers, default=0.0), max(numbers, default=1.0)
        self.log = low > 0 and high / low >= LOG_RATIO
        low, high = (math.log10(low), math.log10(high)) if self.log else (low, high)
        pad = 0.06 * (high - low) or abs(high) * 0.1 or 0.5
        self.low, self.high = low - pad, high + pad
        self.ends = [min(numbers, default=0.0), max(numbers, default=1.0)]

    def place(self, value: float | None, side: int) -> float:
        if value is None:  # an end that is not finite
            return NAMES if side < 0 else float(WIDTH)
        at = (math.log10(value) if value > 0 else self.low) if self.log else value
        return NAMES + (WIDTH - 8 - NAMES) * (at - self.low) / (self.high - self.low)

    def band(self, bottom: float, colour: str) -> list[str]:
        """Shade what is allowed."""
        if self.allowed is None:
            return []
        left, right = (self.place(end, side) for end, side in zip(self.allowed, (-1, 1), strict=True))
        shade = (
            f'<rect x="{left:.1f}" y="0" width="{right - left:.1f}" height="{bottom}" fill="{colour}" opacity="0.2"/>'
        )
        edges = [
            f'<path d="M{self.place(end, 0):.1f} 0V{bottom}" stroke="{colour}" stroke-dasharray="4 3"/>'
            for end in self.limits
        ]
        return [shade, *edges]

    def feet(self, bottom: float, colour: str, quantity: str) -> list[str]:
        """Draw the axis: the smallest and the largest number, the limits between them, and what is measured."""
        parts = [f'<path d="M{NAMES} {bottom}H{WIDTH}" stroke="{colour}"/>']
        taken: list[tuple[float, float]] = []
        for number in dict.fromkeys([*self.limits, *self.ends]):
            text, x = format_number(number), self.place(number, 0)
            half = LETTER * len(text) / 2
            x = min(max(x, NAMES + half), WIDTH - half)
            if all(x + half + 4 < begin or x - half - 4 > end for begin, end in taken):
                taken.append((x - half, x + half))
                parts.append(_text(x, bottom + 12, text, colour, "middle"))
        return [*parts, _text(WIDTH, bottom + 25, quantity[:48], colour, "end")]


def _text(x: float, y: float, content: str, colour: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" fill="{colour}"'
    return f"<text {place}>{html.escape(content)}</text>"


def standalone_svg(frame: str, parts: str) -> str:
    """Return a picture as a file: on the light surface, or on the dark one where the reader's system is dark."""
    dark = "".join(
        f'[{where}="{LIGHT[role]}"]{{{where}:{DARK[role]}}}'
        for where in ("fill", "stroke")
        for role in ("surface", "ink", "muted", "grid")
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} font-family="{html.escape(FONT_FAMILY)}">'
        f"<style>@media (prefers-color-scheme: dark){{{dark}}}</style>"
        f'<rect width="100%" height="100%" fill="{LIGHT["surface"]}"/>{parts}</svg>\n'
    )
