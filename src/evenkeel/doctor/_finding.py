"""A verdict with what it stands on, and the quantities it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from evenkeel.doctor.probes import Threshold

__all__ = ["SEVERITIES", "Finding", "Reading", "Severity", "Trace", "pattern_of"]

Severity = Literal["critical", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # worst first


def pattern_of(site: str) -> str:
    """A site's name with a star for every part that is a number: like blocks have one pattern."""
    return ".".join("*" if part.isdecimal() else part for part in site.split("."))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a rule reads at one place: compared with the rule's threshold, it is a verdict or none.

    Attributes:
        site: the place in the model's tree.
        value: the quantity of the rule.
        evidence: further numbers and words, by which the rule's message is filled.

    Example:
        >>> import evenkeel as ek
        >>> ek.doctor.Reading(site="norm", value=0.5).evidence
        {}
    """

    site: str
    value: float
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trace(Threshold):
    """The quantity of a rule at every place where the rule applied, and the rule's threshold.

    Attributes:
        quantity: what is drawn.
        sites: the places, in order.
        values: the quantity at each.
        threshold: from where on it is a verdict.
        above: whether larger values are worse.

    Example:
        >>> import evenkeel as ek
        >>> ek.doctor.Trace(quantity="share", sites=("norm",), values=(0.5,), threshold=0.9, above=True).threshold
        0.9
    """

    quantity: str
    sites: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict: what is wrong, where, how that is known, and what to do.

    Attributes:
        rule: its id, a heading of docs/doctor.md.
        severity: ``critical``, ``warning`` or ``note``.
        site: the place in the model's tree; places whose names differ in numbers alone are one, with their count.
        message: what is wrong, with the numbers.
        evidence: the numbers, by name; at several places those of the worst.
        applies_because: why the rule has a say here.
        remedy: code.
        source: where the threshold comes from.
        trace: the quantity wherever the rule applied.

    Example:
        >>> import torch, evenkeel as ek
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
        >>> finding = ek.doctor.examine(model, torch.randn(64, 4)).findings[0]
        >>> finding.rule, finding.severity, finding.site
        ('redundant-bias', 'note', '0')
    """

    rule: str
    severity: Severity
    site: str
    message: str
    evidence: dict[str, Any]
    applies_because: str
    remedy: str
    source: str
    trace: Trace = field(repr=False)
