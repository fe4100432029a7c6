"""What `evenkeel._display.Displayed` shows of reports."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from evenkeel.doctor._words import lead

if TYPE_CHECKING:
    from evenkeel.doctor._finding import Finding

__all__ = ["html", "markdown", "text"]


def heading(finding: Finding) -> str:
    """Return a verdict's first line."""
    return f"{finding.severity.upper()}  {finding.rule}  {finding.site}"


def text(report: Any) -> str:
    """Return the report for a terminal."""
    parts = [lead(report)]
    for finding in report.findings:
        code = "\n".join(f"      {line}" for line in finding.remedy.splitlines())
        parts.append(
            f"\n{heading(finding)}\n  {finding.message}.\n  Applies because {finding.applies_because}.\n{code}\n"
            f"  Source: {finding.source}."
        )
    return "\n".join([*parts, *(f"\n{note}" for note in report.notes)])


def markdown(report: Any) -> str:
    """Return the report as Markdown."""
    found = [
        f"**{f.severity} · {f.rule} · {f.site}**: {f.message}.\n\n```python\n{f.remedy}\n```" for f in report.findings
    ]
    return "\n\n".join([lead(report), *found, *report.notes])


def html(report: Any) -> str:
    """Return the page in a frame."""
    from evenkeel.doctor._page import report_page
    from evenkeel.report import frame_page, render_page

    return f"<p>{escape(lead(report))}</p>" + frame_page(render_page(report_page(report)))
