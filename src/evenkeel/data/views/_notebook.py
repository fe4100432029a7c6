"""What `evenkeel._display.Displayed` shows of statistics, scalers and reports of drift."""

from __future__ import annotations

from html import escape
from typing import Any

from evenkeel.data._drift import DriftReport
from evenkeel.data.views._pages import (
    describe,
    drift_findings,
    drift_table,
    drift_verdict,
    show_page,
    statistics_table,
)
from evenkeel.report import Page, Section, Table, frame_page, render_page


def text(item: Any) -> str:
    """Return a line about the object and its table."""
    if not is_filled(item):
        return repr(item)
    lead, table = summary(item)
    return f"{lead}\n{table}"


def markdown(item: Any) -> str:
    """Return the same as Markdown."""
    if not is_filled(item):
        return f"`{item!r}`"
    lead, table = summary(item)
    return f"{lead}\n\n{table.markdown()}"


def html(item: Any) -> str:
    """Return the page in a frame."""
    if not is_filled(item):
        return f"<pre>{escape(repr(item))}</pre>"
    if not isinstance(item, DriftReport):
        return frame_page(render_page(show_page(item, type(item).__name__)))
    lead, table = summary(item)
    return frame_page(render_page(Page(lead, [], drift_findings(item), [Section("Features", tables=[table])])))


def is_filled(item: Any) -> bool:
    """Whether an object has seen data."""
    statistics = getattr(item, "statistics_", item)
    return isinstance(item, DriftReport) or getattr(statistics, "features", None) is not None


def summary(item: Any) -> tuple[str, Table]:
    """Return a line and the table."""
    if isinstance(item, DriftReport):
        return drift_verdict(item), drift_table(item)
    return describe(item), statistics_table(getattr(item, "statistics_", item))
