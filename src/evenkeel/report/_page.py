"""A page: words first, then figures, in one HTML file that needs nothing else."""

import base64
import functools
import gzip
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenkeel._files import write_text_atomically
from evenkeel._packages import require_package
from evenkeel.report._document import embed_json, read_asset, render_document
from evenkeel.report._panels import Figure, Panel
from evenkeel.report._style import DARK, FONT_FAMILY, LIGHT, Style, css_colour
from evenkeel.report._table import Table
from evenkeel.report._text import slug

# A longer table is cut on the page; its download is complete.
ROWS_SHOWN = 200
# Beside the picture that a page opens with.
MOST_FINDINGS = 3


@dataclass(frozen=True)
class Finding:
    """One finding: a title that states it, and a text that backs it with numbers.

    Example:
        >>> Finding("pre-rms ends lowest", "1.412 nats per byte.").title
        'pre-rms ends lowest'
    """

    title: str
    text: str


@dataclass(frozen=True)
class Key:
    """A line of a legend: what a name stands for.

    Args:
        name: as figures have it.
        text: what it means.
        style: how figures draw it, if they do.
        drawing: an SVG element that shows it, or nothing; taken as it is, so never from a user.

    Example:
        >>> Key("pre-rms", "RMSNorm before each sublayer").glyph
        ''
    """

    name: str
    text: str
    style: Style | None = None
    drawing: str = ""

    @property
    def glyph(self) -> str:
        """The mark as a character."""
        return self.style.glyph if self.style else ""

    @property
    def colour(self) -> str:
        """The colour as CSS that follows light and dark."""
        return css_colour(self.style.colour) if self.style else ""


@dataclass(frozen=True)
class Section:
    """Part of a page under its own heading.

    Args:
        title: the heading.
        paragraphs: text before the tables and figures.
        tables: shown in full.
        figures: shown after the tables.
        folded: whether tables and figures are shown only on demand.
        code: lines to type, each block set apart after the figures.

    Example:
        >>> Section("What was run", ["Six arms."]).figures
        ()
    """

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    folded: bool = False
    code: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A whole page; with a picture it opens with that, its message and three findings, and the rest follows.

    Args:
        title: the heading of the page.
        lead: the opening paragraphs.
        findings: most important first, before every section.
        sections: the rest, in order.
        footer: a last line in small type.
        picture: what the page opens with; its title is the page's message.
        keys: the legend under it.

    Example:
        >>> Page("Study", ["Two arms were trained."], [Finding("a is lower", "By 0.1.")], []).footer
        ''
    """

    title: str
    lead: Sequence[str]
    findings: Sequence[Finding]
    sections: Sequence[Section]
    footer: str = ""
    picture: Figure | None = None
    keys: Sequence[Key] = ()

    def figures(self) -> list[Figure]:
        """Return every figure in the order of the page."""
        opening = [] if self.picture is None else [self.picture]
        return [*opening, *(figure for section in self.sections for figure in section.figures)]


def render_page(page: Page) -> str:
    """Turn a page into one self-contained HTML document.

    The drawing library is embedded compressed and unpacked by the browser; a content security policy in the document
    forbids every connection, so the page can load nothing from outside. Without JavaScript all text and tables remain.

    Args:
        page: what to show; all text is escaped.

    Returns:
        The HTML.

    Raises:
        EvenkeelError: plotly or jinja2 is not installed.

    Example:
        >>> render_page(Page("a < b", [], [], [])).startswith("<!doctype html>")
        True
    """
    jinja2, markupsafe = require_package("jinja2"), require_package("markupsafe")
    # Undefined names must fail here: a page with silent holes would look complete.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(read_asset("page.html"))
    specs = [browser_panel(panel) for figure in page.figures() for panel in figure.panels]
    body: str = template.render(
        page=page,
        payload=markupsafe.Markup(script_json({"light": LIGHT, "dark": DARK, "font": FONT_FAMILY, "panels": specs})),
        plotly=_packed_plotly() if specs else "",
        rows_shown=ROWS_SHOWN,
        most_findings=MOST_FINDINGS,
        figure_file=figure_file,
    )
    return render_document(page.title, body, script=read_asset("page.js"))


def write_page(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write a page to a file, whole or not at all.

    Args:
        page: what to show.
        path: the HTML file; its directory must exist.

    Returns:
        The path written.

    Raises:
        EvenkeelError: the file cannot be written, or plotly or jinja2 is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     write_page(Page("Study", [], [], []), f"{directory}/report.html").name
        'report.html'
    """
    return write_text_atomically(path, render_page(page))


def script_json(value: Any) -> str:
    """Return the drawing script's data as JSON that is safe inside a script element."""
    return embed_json(_drawable(value))


def figure_file(figure: Figure, panel: Panel) -> str:
    """Return the name of a panel's downloads, without its ending."""
    return f"{figure.name}-{slug(panel.heading)}" if panel.heading else figure.name


def _drawable(value: Any) -> Any:
    """Round numbers to seven digits, and replace non-finite ones, which JSON cannot hold, by None.

    No screen has more digits, and they would be most of a large page; downloads keep every digit.
    """
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _drawable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_drawable(item) for item in value]
    return value


def browser_panel(panel: Panel) -> dict[str, Any]:
    """Return what the drawing script needs of a panel."""
    return {"spec": panel.spec, "labels": list(panel.labels), "hints": panel.hints}


@functools.cache
def _packed_plotly() -> str:
    """Return Plotly's script, compressed to about two fifths of its size after base64; the same bytes every time."""
    source = require_package("plotly.offline").get_plotlyjs().encode()
    return base64.b64encode(gzip.compress(source, compresslevel=9, mtime=0)).decode()
