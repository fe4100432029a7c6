"""The page of a certificate: each norm's error beside the original's own, what was done, what was left and why."""

from __future__ import annotations

import math
import re
from statistics import median
from typing import TYPE_CHECKING, Any

from evenkeel.convert._views import counted
from evenkeel.report import (
    Axis,
    Cell,
    Figure,
    Finding,
    Key,
    Page,
    Panel,
    Row,
    Section,
    Style,
    Table,
    dots,
    format_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evenkeel.convert._verify import Check

__all__ = ["certificate_page"]

MOST_ROWS = 14  # of a picture
FLOOR = 0.01  # ulps: what is nearer is drawn here
OURS = Style(colour="#0072b2", dash="solid", marker="circle", glyph="●")
THEIRS = Style(colour="#5a6068", dash="dot", marker="diamond-open", glyph="◇")
WHOLE = "the whole model"
MOST_LETTERS = 27  # of a name beside a plot
REASONS = 3  # named in a finding


def certificate_page(certificate: Any) -> Page:
    """Build the page of a certificate."""
    title = message(certificate)
    left = [entry for entry in certificate.entries if entry.reason]
    sections = [Section("Every norm", tables=[sites_table(certificate)])] if certificate.entries else []
    results, gradients = error_rows(certificate, first=True), error_rows(certificate, first=False)
    if gradients:
        told = told_of([check for check in every_check(certificate) if "gradient" in check.what], certificate.reference)
        figure = Figure("gradients", f"No gradient is {told}", caption(certificate), [error_panel(gradients)])
        sections.insert(0, Section("Gradients", figures=[figure]))
    if left:
        sections.append(Section("What is left, and why", tables=[refusals_table(left)]))
    versions = ", ".join(f"{name} {version}" for name, version in certificate.versions.items())
    picture = Figure("results", title, caption(certificate), [error_panel(results)]) if results else None
    return Page(
        "Certificate" if picture else title,
        [lead(certificate)],
        findings(certificate, left),
        sections,
        f"Mode {certificate.mode}; {versions}",
        picture,
        keys(certificate) if picture else (),
    )


def message(certificate: Any) -> str:
    """Say what was done in one line."""
    swapped = counted(certificate.entries, done=True, sentence=True)
    if not certificate.verified:
        return f"{swapped}; no batch was compared"
    return f"{swapped}, and nothing is {told_of(every_check(certificate), certificate.reference)}"


def told_of(checks: Sequence[Check], reference: str) -> str:
    """Say how much further than before no result is."""
    most = max((check.ours - check.theirs for check in checks if check.ours > check.theirs), default=0.0)
    more = f"more than {format_number(most, digits=2)} ulps " if most else ""
    return f"{more}further from {reference} than it was"


def lead(certificate: Any) -> str:
    """Say how to read the page."""
    if not certificate.verified:
        return "Give apply() a batch, or the command --verify, to compare results and gradients with the original."
    return (
        f"Distances from a run of the original in {certificate.reference}, in units of the last place, beside the "
        "original's own distance, which is its rounding. Each norm was compared with a residual around it, then the "
        "whole model."
    )


def caption(certificate: Any) -> str:
    """Say what dots, whiskers and diamonds are."""
    return (
        "Names that differ in their numbers alone share a row: dot and diamond are medians, a whisker reaches from "
        f"the smallest to the largest, a ring is one norm. What is nearer than {FLOOR} ulps is drawn there."
    )


def keys(certificate: Any) -> list[Key]:
    """Return the legend."""
    return [
        Key("evenkeel", f"distance from {certificate.reference} now", OURS),
        Key("original", "its own distance before", THEIRS),
    ]


def findings(certificate: Any, left: Sequence[Any]) -> list[Finding]:
    """Return what is to know first: of the model, of the worst norm, of what was left."""
    found = []
    if certificate.model:
        worst = max(certificate.model, key=lambda check: check.ours)
        told = [f"{check.what}: {of_check(check)}" for check in certificate.model]
        found.append(Finding(f"The whole model is {of_check(worst)} from {certificate.reference}", sentence(told)))
    checked = [(entry, check) for entry in certificate.entries for check in entry.checks]
    if checked:
        entry, check = max(checked, key=lambda pair: excess(pair[1]))
        text = f"{check.what[0].upper()}{check.what[1:]} of {entry.site}, which computes {entry.spec or entry.kind}."
        found.append(Finding(f"The norm that moved furthest: {of_check(check)}", text))
    if left:
        reasons = list(dict.fromkeys(entry.reason for entry in left))
        more = [f"and {len(reasons) - REASONS} other reasons"] if len(reasons) > REASONS else []
        verb = "place is" if len(left) == 1 else "places are"
        found.append(Finding(f"{len(left)} {verb} left as before", sentence(reasons[:REASONS] + more)))
    elif certificate.entries:
        found.append(Finding("Nothing is left", "Every module that is a norm, or looks like one, was served."))
    return found


def error_rows(certificate: Any, *, first: bool) -> list[Row]:
    """Return a row for the model and for each group of norms: of the results, or of the worst gradients.

    Of many groups, those that moved furthest.
    """
    groups: dict[str, list[Check]] = {}
    names: dict[str, list[str]] = {}
    for entry in certificate.entries:
        if check := one_of(entry.checks, first):
            key = re.sub(r"\d+", "*", entry.site)
            groups.setdefault(key, []).append(check)
            names.setdefault(key, []).append(entry.site)
    rows = [error_row(title_of(key, names[key]), checks) for key, checks in groups.items()]
    kept = sorted(rows, key=lambda row: (row.value or 0) - (row.beside or 0), reverse=True)[:MOST_ROWS]
    is_gradient = [check.what == "the gradients" for check in certificate.model]
    model = [check for check, other in zip(certificate.model, is_gradient, strict=True) if other != first]
    return [*([error_row(WHOLE, model)] if model else []), *(row for row in rows if row in kept)]


def one_of(checks: Sequence[Check], first: bool) -> Check | None:
    """Return the check of a norm's result, the first, or that of the gradient that moved furthest."""
    chosen = checks[:1] if first else checks[1:]
    return max(chosen, key=excess, default=None)


def title_of(key: str, sites: Sequence[str]) -> str:
    """Return the name of a group; of a long one the last parts, which tell it from others."""
    name = sites[0] if len(sites) == 1 else f"{key} ×{len(sites)}"
    parts = name.split(".")
    while len(".".join(parts)) > MOST_LETTERS and len(parts) > 1:
        parts = parts[1:]
    told = ".".join(parts)
    return told if told == name else f"…{told}"


def error_row(name: str, checks: Sequence[Check]) -> Row:
    """Return a row of a picture."""
    ours, theirs = [check.ours for check in checks], [check.theirs for check in checks]
    note = f"was {format_number(median(theirs))}"
    if len(ours) == 1:
        return Row(name, ours[0], note=note, beside=theirs[0])
    return Row(name, median(ours), low=min(ours), high=max(ours), points=ours, note=note, beside=median(theirs))


def error_panel(rows: Sequence[Row]) -> Panel:
    """Draw rows on a logarithmic axis."""
    axis = Axis("distance (ulps)", log=True, floor=FLOOR)
    return dots(rows, x=axis, styles={row.name: OURS for row in rows})


def sites_table(certificate: Any) -> Table:
    """Return every norm with its errors."""
    columns = ["site", "class", "computes", "action"]
    errors = ["result, ulps", "was", "gradients, ulps", "were"]
    rows: list[list[Cell]] = []
    for entry in certificate.entries:
        row: list[Cell] = [entry.site, entry.kind, entry.spec, action_of(entry)]
        for first in (True, False) if certificate.verified else ():
            check = one_of(entry.checks, first)
            row += [None, None] if check is None else [finite(check.ours), finite(check.theirs)]
        rows.append(row)
    return Table(columns + errors if certificate.verified else columns, rows)


def action_of(entry: Any) -> str:
    """Tell what was done, or sought."""
    if entry.reason:
        return "left" if entry.sought == "swap" else f"no {entry.sought}"
    return f"{entry.action}: {entry.note}" if entry.note else entry.action


def refusals_table(left: Iterable[Any]) -> Table:
    """Return what was left, and why."""
    rows = [[entry.site, entry.kind, entry.sought, entry.reason] for entry in left]
    return Table(["site", "class", "sought", "reason"], rows)


def every_check(certificate: Any) -> list[Check]:
    """Return the checks of the model and of all norms."""
    return [*certificate.model, *(check for entry in certificate.entries for check in entry.checks)]


def excess(check: Check) -> float:
    """How much further than the original's a result is; of two zeros, nothing."""
    return check.ours - check.theirs if math.isfinite(check.theirs) else 0.0


def of_check(check: Check) -> str:
    """Tell a check in a few words."""
    return f"{format_number(check.ours, digits=2)} ulps (was {format_number(check.theirs, digits=2)})"


def finite(value: float) -> Cell:
    """Return a number that a table can show."""
    return value if math.isfinite(value) else str(value)


def sentence(parts: Sequence[str]) -> str:
    """Return parts as one sentence."""
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."
