"""From measurements to findings, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel.doctor._finding import SEVERITIES, Finding, Trace, pattern_of
from evenkeel.doctor.rules._table import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenkeel.doctor._finding import Reading
    from evenkeel.doctor.probes import Measurements
    from evenkeel.doctor.rules._rule import Rule

__all__ = ["judge", "worst_readings"]


def judge(measured: Measurements) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Apply every rule; return the findings, worst first, and the ids of the rules that had something to read."""
    findings: list[Finding] = []
    applied = []
    for rule in RULES:
        readings = list(rule.read(measured))
        if readings:
            applied.append(rule.id)
            findings += verdicts(rule, readings)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return tuple(findings), tuple(applied)


def worst_readings(measured: Measurements) -> dict[str, float]:
    """The worst reading of each rule that has some in the measurements of a single step."""
    found = {}
    for rule in RULES:
        values = [reading.value for reading in rule.read(measured)]
        if values:
            found[rule.id] = max(values) if rule.above else min(values)
    return found


def verdicts(rule: Rule, readings: Sequence[Reading]) -> list[Finding]:
    """The findings of one rule: one for the places whose names differ in numbers alone."""
    trace = Trace(
        quantity=rule.quantity,
        sites=tuple(reading.site for reading in readings),
        values=tuple(reading.value for reading in readings),
        threshold=rule.threshold,
        above=rule.above,
    )
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        if rule.fires(reading.value):
            groups.setdefault(pattern_of(reading.site), []).append(reading)
    found = []
    for pattern, some in groups.items():
        worst = (max if rule.above else min)(some, key=lambda reading: reading.value)
        site = worst.site if len(some) == 1 else f"{pattern} ({len(some)})"
        words = {"site": worst.site, "value": worst.value, **worst.evidence}
        where = f"; the worst of {len(some)}" if len(some) > 1 else ""
        found.append(
            Finding(
                rule=rule.id,
                severity=rule.severity,
                site=site,
                message=rule.message.format_map(words) + where,
                evidence={rule.quantity: worst.value, **worst.evidence},
                applies_because=rule.applies.format_map(words),
                remedy=rule.remedy.format_map(words),
                source=rule.source,
                trace=trace,
            )
        )
    return found
