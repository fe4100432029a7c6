"""Plain data to figures, self-contained HTML pages and terminal tables."""

from evenkeel._files import write_text_atomically
from evenkeel.report._cells import Intervals, Sparkline
from evenkeel.report._curves import histograms, lines
from evenkeel.report._document import embed_json, render_document
from evenkeel.report._figure import plotly_figure
from evenkeel.report._frame import frame_page
from evenkeel.report._page import Finding, Key, Page, Section, render_page, write_page
from evenkeel.report._panels import Axis, Figure, Histogram, Panel, Row, Series
from evenkeel.report._rows import bars, dots
from evenkeel.report._style import COLOURS, MUTED, Style, assign_styles
from evenkeel.report._table import Cell, Table, print_table
from evenkeel.report._text import format_number, join_words

__all__ = [
    "COLOURS",
    "MUTED",
    "Axis",
    "Cell",
    "Figure",
    "Finding",
    "Histogram",
    "Intervals",
    "Key",
    "Page",
    "Panel",
    "Row",
    "Section",
    "Series",
    "Sparkline",
    "Style",
    "Table",
    "assign_styles",
    "bars",
    "dots",
    "embed_json",
    "format_number",
    "frame_page",
    "histograms",
    "join_words",
    "lines",
    "plotly_figure",
    "print_table",
    "render_document",
    "render_page",
    "write_page",
    "write_text_atomically",
]
