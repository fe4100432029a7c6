"""The one palette of every page and figure: Okabe-Ito colours on a light and on a dark surface.

Source of the eight colours: Okabe & Ito, Color Universal Design (2008). Their yellow is left out: on white it has
a contrast of 1.3. Black is the one colour that needs a partner on the dark surface.
"""

from collections.abc import Iterable
from dataclasses import dataclass

FONT_FAMILY = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Keys are roles. Figures are built with the light values and the page swaps whole values for the dark ones, so the
# light values must differ from each other.
LIGHT = {
    "surface": "#ffffff",
    "raised": "#f5f6f7",
    "ink": "#1b1e22",
    "muted": "#5a6068",
    "grid": "#dfe2e5",
    "link": "#005b8f",
    "series0": "#000000",
    "series1": "#e69f00",
    "series2": "#56b4e9",
    "series3": "#009e73",
    "series4": "#0072b2",
    "series5": "#d55e00",
    "series6": "#cc79a7",
}
DARK = LIGHT | {
    "surface": "#14171a",
    "raised": "#1e2226",
    "ink": "#eceef0",
    "muted": "#a9b0b8",
    "grid": "#363c42",
    "link": "#7cc4f2",
    "series0": "#fafafa",
}

# Seven colours, six dashes and nine markers: a series that reuses a colour has another dash and another marker, and
# no combination repeats within 126 series. The glyph draws the marker in running text.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
COLOURS = tuple(LIGHT[f"series{index}"] for index in range(7))
MARKERS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "star",
    "cross",
    "triangle-left",
    "triangle-right",
)
GLYPHS = ("●", "■", "◆", "▲", "▼", "★", "✚", "◄", "►")


@dataclass(frozen=True)
class Style:
    """How one series is drawn wherever it appears on a page: colour, dash, marker and the marker as a character.

    Example:
        >>> Style(colour="#0072b2", dash="solid", marker="circle", glyph="●").marker
        'circle'
    """

    colour: str
    dash: str
    marker: str
    glyph: str


def assign_styles(names: Iterable[str]) -> dict[str, Style]:
    """Give every name its own style, in order of first appearance.

    Args:
        names: series names; repeated names count once.

    Returns:
        A style per name; colours repeat after 7 names, but then with another dash and marker.

    Example:
        >>> styles = assign_styles(["none", "layer", "none"])
        >>> list(styles), styles["layer"].dash
        (['none', 'layer'], 'dash')
    """
    return {name: _style(index) for index, name in enumerate(dict.fromkeys(names))}


def _style(index: int) -> Style:
    slot = index % len(MARKERS)
    return Style(
        colour=COLOURS[index % len(COLOURS)],
        dash=DASHES[index % len(DASHES)],
        marker=MARKERS[slot],
        glyph=GLYPHS[slot],
    )


def css_colour(colour: str) -> str:
    """Return a light colour of the palette as the CSS variable that has its partner on the dark surface."""
    return next((f"var(--{name})" for name, value in LIGHT.items() if value == colour), colour)


# For what only serves as a comparison.
MUTED = Style(colour=LIGHT["muted"], dash="dot", marker="circle", glyph=GLYPHS[0])
