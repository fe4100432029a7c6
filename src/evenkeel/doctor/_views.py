"""What `evenkeel._display.Displayed` shows of reports."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from evenkeel.doctor.rules import RULES

if TYPE_CHECKING:
    from evenkeel.doctor._finding import Finding
    from evenkeel.doctor._report import Report

__all__ = ["heading", "html", "lead", "markdown", "text"]


def plural(count: int, word: str) -> str:
    """A number of things."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def lead(report: Report) -> str:
    """Return the verdict in one line."""
    norms = plural(len(report.measured.norms), "norm")
    judged = f"{plural(len(report.applied), 'rule')}, of {len(RULES)}; {norms}"
    if not report.findings:
        return f"{report.subject}: nothing found by {judged}."
    counts = [(sum(f.severity == s for f in report.findings), s) for s in ("critical", "warning", "note")]
    words = [f"{n} critical" if s == "critical" else plural(n, s) for n, s in counts if n]
    return f"{report.subject}: {', '.join(words)}, by {judged}."


def heading(finding: Finding) -> str:
    """Return a verdict's first line."""
    return f"{finding.severity.upper()}  {finding.rule}  {finding.site}"


def text(report: Report) -> str:
    """Return the report for a terminal."""
    parts = [lead(report)]
    for finding in report.findings:
        code = "\n".join(f"      {line}" for line in finding.remedy.splitlines())
        parts.append(
            f"\n{heading(finding)}\n  {finding.message}.\n  Applies because {finding.applies_because}.\n{code}\n"
            f"  Source: {finding.source}."
        )
    return "\n".join([*parts, *(f"\n{note}" for note in report.notes)])


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    found = [
        f"**{f.severity} · {f.rule} · {f.site}**: {f.message}.\n\n```python\n{f.remedy}\n```" for f in report.findings
    ]
    return "\n\n".join([lead(report), *found, *report.notes])


def html(report: Report) -> str:
    """Return the page in a frame."""
    from evenkeel.doctor._page import report_page
    from evenkeel.report import frame_page, render_page

    return f"<p>{escape(lead(report))}</p>" + frame_page(render_page(report_page(report)))
