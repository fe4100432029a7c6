"""What `evenkeel._display.Summarised` shows of plans and certificates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from evenkeel.recognition import spec_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenkeel.convert._verify import Check
    from evenkeel.report import Table

__all__ = ["counted", "lead", "table"]


def lead(item: Any) -> str:
    """Return what is to know in one line."""
    entries = item.sites if hasattr(item, "sites") else item.entries
    line = f"{counted(entries, done=is_done(item), sentence=True)} (mode {item.mode})."
    if not hasattr(item, "sites"):
        whole = [
            f"{check.what} {check.ours:.2g} ulps from {item.reference} (original {check.theirs:.2g})"
            for check in item.model
        ]
        line += f" Verified: {'; '.join(whole)}." if item.verified else " Not verified: no batch was given."
    return line


def counted(entries: Sequence[Any], *, done: bool, sentence: bool = False) -> str:
    """How many sites are changed, by what is done: ``2 of 3 norms swapped``."""
    from evenkeel.convert._actions import ACTIONS

    sought = [name for name in ACTIONS if any(entry.sought == name for entry in entries)] or ["swap"]
    parts = []
    for name in sought:
        all_of = [entry for entry in entries if entry.sought == name]
        count = sum(entry.action == name for entry in all_of)
        verb = ("is " if count == 1 else "are ") if done else "will be "
        verb = verb if sentence else "" if done else "to be "
        how = ACTIONS[name].done if len(sought) == 1 and name == "swap" else f"{ACTIONS[name].done} ({name})"
        parts.append(f"{count} of {len(all_of)} {ACTIONS[name].what} {verb}{how}")
    return ", ".join(parts)


def table(item: Any) -> Table:
    """Return what is known of each norm."""
    if hasattr(item, "sites"):
        told = [(s.name, s.kind, spec_line(s.recognition), action_of(s, item), ()) for s in item.sites]
    else:
        told = [(e.site, "", e.spec, action_of(e, item), e.checks) for e in item.entries]
    rows = [
        [name if count == 1 else f"{name} ({count})", kind, spec, action, worst(checks, 0), worst(checks, 1)]
        for (name, kind, spec, action), (count, checks) in grouped(told).items()
    ]
    return without_empty(["site", "class", "spec", "action", "result, ulps", "gradients, ulps"], rows)


def is_done(item: Any) -> bool:
    """Whether a certificate, or a plan that was applied, is shown."""
    return not hasattr(item, "sites") or item.certificate is not None


def action_of(entry: Any, item: Any) -> str:
    """What is done with a norm, or why nothing is."""
    from evenkeel.convert._actions import ACTIONS

    if entry.reason:
        return f"left: {entry.reason}" if entry.sought == "swap" else f"no {entry.sought}: {entry.reason}"
    told = entry.action if entry.action != "swap" or not is_done(item) else ACTIONS[entry.action].done
    return f"{told}: {entry.note}" if entry.note else told


def grouped(told: Sequence[tuple[str, str, str, str, Sequence[Check]]]) -> dict[Any, tuple[int, list[Any]]]:
    """Norms that differ in the numbers of their names alone, as one: how many, and their checks."""
    groups: dict[Any, tuple[int, list[Any]]] = {}
    for name, *rest, checks in told:
        key = (re.sub(r"\d+", "*", name), *rest)
        count, before = groups.get(key, (0, []))
        groups[key] = (count + 1, [*before, checks])
    names = {(re.sub(r"\d+", "*", name), *rest): name for name, *rest, _ in told}
    return {(names[key] if groups[key][0] == 1 else key[0], *key[1:]): group for key, group in groups.items()}


def without_empty(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without the columns that hold nothing."""
    from evenkeel.report import Table

    kept = [k for k in range(len(columns)) if any(row[k] for row in rows)] or [0]
    return Table([columns[k] for k in kept], [[row[k] for k in kept] for row in rows])


def worst(groups: Sequence[Sequence[Check]], part: int) -> str:
    """Our largest error and the original's: of the results, the first check of each norm, or of the gradients."""
    checks = [check for group in groups for check in (group[1:] if part else group[:1])]
    if not checks:
        return ""
    return f"{max(c.ours for c in checks):.2g} (was {max(c.theirs for c in checks):.2g})"
