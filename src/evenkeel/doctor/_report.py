"""What was found, and what was looked at."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evenkeel._display import Displayed
from evenkeel.doctor._finding import Finding
from evenkeel.doctor.probes import Measurements
from evenkeel.doctor.rules import RULES, judge

__all__ = ["Report"]


@dataclass(frozen=True, kw_only=True)
class Report(Displayed):
    """Verdicts, worst first, with what they stand on.

    Attributes:
        subject: what was looked at, in words.
        findings: the verdicts.
        applied: the ids of the rules that had something to read.
        notes: what could not be looked at, and why.
        measured: everything that was measured.

    Example:
        >>> import torch, evenkeel as ek
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
        >>> report = ek.doctor.examine(model, torch.randn(8, 4))
        >>> report.ok, report.findings
        (True, ())
        >>> print(report)
        Sequential, one forward: nothing found by 4 rules, of 39; 1 norm.
    """

    views = "evenkeel.doctor._views"

    subject: str
    findings: tuple[Finding, ...]
    applied: tuple[str, ...]
    notes: tuple[str, ...] = ()
    measured: Measurements = field(repr=False)

    @classmethod
    def of(cls, subject: str, measured: Measurements, notes: tuple[str, ...] = ()) -> Report:
        """Judge measurements."""
        findings, applied = judge(measured)
        return cls(subject=subject, findings=findings, applied=applied, notes=notes, measured=measured)

    def __repr__(self) -> str:
        return f"Report({self.subject!r}, {len(self.findings)} findings, ok={self.ok})"

    @property
    def ok(self) -> bool:
        """Whether nothing critical stands."""
        return not any(finding.severity == "critical" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the verdicts and the rules that were applied; NaN and infinities as words."""
        skipped = [rule.id for rule in RULES if rule.id not in self.applied]
        found = [{k: v for k, v in asdict(finding).items() if k != "trace"} for finding in self.findings]
        data = {
            "subject": self.subject,
            "ok": self.ok,
            "findings": found,
            "norms": len(self.measured.norms),
            "applied": list(self.applied),
            "not_applicable": skipped,
            "notes": list(self.notes),
        }
        plain: dict[str, Any] = as_plain(data)
        return plain

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as a page of its own: whole, or not at all.

        Raises:
            EvenkeelError: the file cannot be written, or plotly or jinja2 is not installed.
        """
        from evenkeel.doctor._page import report_page
        from evenkeel.report import write_page

        return write_page(report_page(self), path)


def as_plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value
