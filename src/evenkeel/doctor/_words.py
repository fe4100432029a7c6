"""A report in a line."""

from __future__ import annotations

from typing import Any

from evenkeel.doctor.rules import RULES

__all__ = ["lead", "plural"]


def plural(count: int, word: str) -> str:
    """A number of things."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def lead(report: Any) -> str:
    """Return the verdict in one line."""
    norms = plural(len(report.measured.norms), "norm")
    judged = f"{plural(len(report.applied), 'rule')}, of {len(RULES)}; {norms}"
    if not report.findings:
        return f"{report.subject}: nothing found by {judged}."
    counts = [(sum(f.severity == s for f in report.findings), s) for s in ("critical", "warning", "note")]
    words = [f"{n} critical" if s == "critical" else plural(n, s) for n, s in counts if n]
    return f"{report.subject}: {', '.join(words)}, by {judged}."
