"""The page of a report: verdicts first, each with its picture and remedy, then what was looked at, in order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from evenkeel.doctor._words import lead, plural
from evenkeel.doctor.rules import RULES
from evenkeel.report import COLOURS, MUTED, Axis, Figure, Page, Panel, Row, Section, Series, Style, Table, bars, lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenkeel.doctor._finding import Finding, Trace
    from evenkeel.doctor.probes import Curve

__all__ = ["report_page"]

MOST_BARS = 8  # places that are drawn by name; more are numbered
NAME = 40
SOUND, ILL = 4, 5  # of the palette


def report_page(report: Any) -> Page:
    """Lay a report out."""
    drawn: set[str] = set()
    curves = {curve.rule: curve for curve in report.measured.curves}
    sections = [verdict(finding, drawn, curves) for finding in report.findings]
    sections += [norms_section(report), rules_section(report), *steps_section(report)]
    return Page("What the doctor found", [lead(report), *report.notes], [], sections)


def verdict(finding: Finding, drawn: set[str], curves: Mapping[str, Curve]) -> Section:
    """A verdict: what is wrong, where, why that is known, what to do; a rule's pictures show all its places, once."""
    said = finding.message[:1].upper() + finding.message[1:]
    figures = [] if finding.rule in drawn else [picture(finding)]
    if figures and finding.rule in curves:
        figures.append(by_step(curves[finding.rule]))
    drawn.add(finding.rule)
    return Section(
        f"{finding.severity.capitalize()}: {finding.rule} at {finding.site}",
        [f"{said}.", f"Applies because {finding.applies_because}. Source: {finding.source}."],
        figures=figures,
        code=[finding.remedy],
    )


def picture(finding: Finding) -> Figure:
    """The quantity of a rule wherever it applied, and the threshold."""
    trace = finding.trace
    side = "From the threshold up" if trace.above else "From the threshold down"
    panel = by_name(trace) if len(trace.sites) <= MOST_BARS else by_number(trace)
    count = plural(len(trace.sites), "place")
    title = f"{trace.quantity[:1].upper()}{trace.quantity[1:]}"
    return Figure(finding.rule, title, f"{side} it is a verdict; the rule applied at {count}.", [panel])


def by_step(curve: Curve) -> Figure:
    """The worst reading at every measured step, and the threshold."""
    fired = [step for step, value in zip(curve.steps, curve.values, strict=True) if curve.fires(value)]
    said = f"first past its threshold at step {fired[0]}" if fired else "past its threshold at no measured step"
    series = Series("worst place", curve.steps, curve.values)
    y = Axis(curve.quantity, level=("threshold", curve.threshold))
    panel = lines([series], x=Axis("step", integer=True), y=y)
    title = f"{curve.rule} by step: {said}"
    return Figure(f"{curve.rule}-by-step", title, f"{plural(len(curve.steps), 'step')} were measured.", [panel])


def finite(value: float) -> float | None:
    """A value that can be drawn."""
    return value if math.isfinite(value) else None


def by_name(trace: Trace) -> Panel:
    """Bars with the places' names, and one for the threshold."""
    names = [site[-NAME:] for site in trace.sites]
    rows = [Row(name, finite(value)) for name, value in zip(names, trace.values, strict=True)]
    sound, ill = (Style(COLOURS[k], "solid", "circle", "●") for k in (SOUND, ILL))
    styles = {name: ill if trace.fires(value) else sound for name, value in zip(names, trace.values, strict=True)}
    threshold = Row("threshold", trace.threshold)
    return bars([*rows, threshold], x=Axis(trace.quantity), styles=styles | {"threshold": MUTED})


def by_number(trace: Trace) -> Panel:
    """A curve over the places in their order, and the threshold as a line."""
    positions = list(range(1, len(trace.sites) + 1))
    series = Series("measured", positions, [finite(value) for value in trace.values])
    x = Axis(f"place, 1 is {trace.sites[0][:NAME]}", integer=True)
    return lines([series], x=x, y=Axis(trace.quantity, level=("threshold", trace.threshold)))


def norms_section(report: Any) -> Section:
    """The norms, in the order of the model."""
    sizes = {signal.site: signal.values["rms"] for signal in report.measured.signals}
    rows = [
        [
            n.site,
            n.shares,
            n.dtype,
            n.size or None,
            None if not n.size else n.at_start,
            n.updates,
            sizes.get(n.site),
        ]
        for n in report.measured.norms
    ]
    columns = ["norm", "shares", "dtype", "weights", "at start", "updates", "input RMS"]
    return Section(f"{plural(len(rows), 'norm')} looked at, in the order of the model", tables=[Table(columns, rows)])


def rules_section(report: Any) -> Section:
    """Every rule: whether it had something to read, and what came of it."""
    fired = {finding.rule for finding in report.findings}
    rows = [
        [
            rule.id,
            rule.severity,
            "found" if rule.id in fired else "nothing found" if rule.id in report.applied else "nothing to read",
        ]
        for rule in RULES
    ]
    title = f"{len(report.applied)} of {len(RULES)} rules had something to read"
    return Section(title, tables=[Table(["rule", "severity", "result"], rows)], folded=True)


def steps_section(report: Any) -> list[Section]:
    """The loss over the steps of a training, and what else was watched by step."""
    steps = [step for step in report.measured.steps if math.isfinite(step.loss)]
    found = []
    if len(steps) > 1:
        series = Series("loss", [step.step for step in steps], [step.loss for step in steps])
        panel = lines([series], x=Axis("step", integer=True), y=Axis("loss"))
        figure = Figure("loss", "The loss at the measured steps", f"{len(steps)} steps were measured.", [panel])
        found.append(Section("The training", figures=[figure]))
    fired = {finding.rule for finding in report.findings}
    quiet = [by_step(curve) for curve in report.measured.curves if curve.rule not in fired and any(curve.values)]
    if quiet:
        found.append(
            Section(f"What else was watched by step: {len(quiet)} quantities of rules", figures=quiet, folded=True)
        )
    return found
