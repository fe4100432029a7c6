"""The one table of how norms and placements are drawn: a norm has its colour and dash, a placement its mark.

Every figure of studies, experiments and lessons takes its styles from here, so that a reader learns them once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from evenkeel._errors import StudyError
from evenkeel._options.arms import find_arm
from evenkeel.report import COLOURS, Style, assign_styles

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PINK = COLOURS

# A norm on its own: colour, dash, mark.
NORM_STYLES: dict[str, Style] = {
    "none": Style(BLACK, "solid", "circle", "●"),
    "layer": Style(BLUE, "solid", "square", "■"),
    "rms": Style(VERMILION, "dash", "triangle-up", "▲"),
    "batch": Style(GREEN, "dot", "diamond", "◆"),
    "group": Style(PINK, "dashdot", "triangle-down", "▼"),
    "instance": Style(SKY, "longdash", "star", "★"),
    "dyt": Style(ORANGE, "longdashdot", "cross", "✚"),
}
# An arm of the transformer: its norm's colour and dash with its placement's mark.
PLACEMENT_MARKS: dict[str, tuple[str, str]] = {
    "none": ("circle", "●"),
    "pre": ("triangle-up", "▲"),
    "post": ("square", "■"),
    "peri": ("diamond", "◆"),
    "output-only": ("triangle-down", "▼"),
    "damped": ("star", "★"),
    "deepnorm": ("cross", "✚"),
}
# A model family has its norm's colour with a mark of its own.
PRESET_MARKS: dict[str, tuple[str, str]] = {
    "gpt2": ("triangle-left", "◄"),
    "bert": ("triangle-right", "►"),
    "llama": ("pentagon", "⬟"),
    "gemma2": ("hexagon", "⬢"),
    "olmo2": ("star-diamond", "✦"),
}
OPEN = {"●": "○", "■": "□", "▲": "△", "◆": "◇", "▼": "▽", "★": "☆", "✚": "✛"}
NORM = re.compile(r"\b(?:(layer|rms|batch|group|instance|dyt)(?:[ _-]?norm)?|(no|without) norm)\b", re.IGNORECASE)


def norm_styles(names: Iterable[str]) -> dict[str, Style]:
    """Return how each arm or norm is drawn, whatever else is drawn beside it.

    A name that is neither takes what `assign_styles` has left; of names with one style the others have other marks.

    Args:
        names: arms such as ``pre-rms``, or norms by any of their names: ``RMSNorm``, ``rms``.
    """
    listed = list(dict.fromkeys(names))
    styles = {name: style for name in listed if (style := known_style(name)) is not None}
    used = {style.colour for style in styles.values()}
    spare = [style for style in assign_styles(map(str, range(7 + len(listed)))).values() if style.colour not in used]
    spare = spare or list(assign_styles(map(str, range(len(listed)))).values())
    others = (name for name in listed if name not in styles)
    styles |= {name: spare[index % len(spare)] for index, name in enumerate(others)}
    seen: set[Style] = set()
    for name in listed:
        styles[name] = next(style for style in with_other_marks(styles[name]) if style not in seen)
        seen.add(styles[name])
    return {name: styles[name] for name in listed}


def with_other_marks(style: Style) -> Iterator[Style]:
    """Yield the style, then the same with its mark's outline, then with other marks and other dashes."""
    yield from (style, open_mark(style))
    for other in (*NORM_STYLES.values(), *assign_styles(map(str, range(126))).values()):
        marked = dataclasses.replace(style, marker=other.marker, glyph=other.glyph)
        yield from (marked, open_mark(marked), dataclasses.replace(marked, dash=other.dash))


def known_style(name: str) -> Style | None:
    """Return the style of an arm or a norm, or None for another name."""
    try:
        arm = find_arm(name)
    except StudyError:
        match = NORM.search(name)
        return NORM_STYLES[(match.group(1) or "none").lower()] if match else None
    marker, glyph = PRESET_MARKS.get(name.partition("+")[0]) or PLACEMENT_MARKS[arm.placement]
    style = dataclasses.replace(NORM_STYLES[arm.norm], marker=marker, glyph=glyph)
    return open_mark(style) if arm.long_warmup else style


def open_mark(style: Style) -> Style:
    """Return the style with the outline of its mark."""
    if style.marker.endswith("-open"):
        return style
    return dataclasses.replace(style, marker=f"{style.marker}-open", glyph=OPEN.get(style.glyph, "○"))
