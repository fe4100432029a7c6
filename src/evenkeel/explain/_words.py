"""The words and formulas of an explanation: templates in `assets/explain.json`, and how numbers are filled in.

Python and the page's JavaScript (`assets/words.js`) read the same file. A template is a text, or a list of pairs
[condition, text] that ends in a text without condition; the first whose condition holds is told. Conditions join
``name``, ``not name``, ``name = value``, ``name > value`` and ``name >= value`` with ``&``; the value may be ``nan``
or ``finite``. A text holds placeholders: ``<name>`` (a phrase, a word or a whole number) or ``<format name ...>``.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from evenkeel._options.explain import TABLES
from evenkeel.explain._format import FORMATS

__all__ = ["BACKWARD", "CHECKS", "FORWARD", "NORM_ROWS", "NOTES", "PHRASES", "STEPS", "read_asset", "tell"]

Template = str | list[list[str] | str]
Facts = Callable[[str], Any]  # a name to its number, array or word; None for a step that this norm lacks


@dataclass(frozen=True, kw_only=True)
class StepWords:
    """How one step is told: its title, and templates of the formula, the formula with numbers, and its meaning.

    Attributes:
        shape: elements, groups, parameters, scalar or differences.
    """

    shape: str
    title: str
    formula: Template
    numbers: Template
    meaning: Template


@dataclass(frozen=True, kw_only=True)
class CheckWords:
    """How one check is told."""

    title: str
    note: Template


def read_asset(name: str) -> str:
    """Read a text file of `assets`."""
    return resources.files("evenkeel.explain").joinpath("assets", name).read_text(encoding="utf-8")


def sections(
    *,
    norms: dict[str, Any],
    choices: dict[str, dict[str, str]],
    forward: dict[str, Any],
    backward: dict[str, Any],
    checks: dict[str, Any],
    notes: dict[str, Template],
    phrases: dict[str, Template],
) -> tuple[dict[str, Any], ...]:
    """Convert the sections of the file to tables, but for `choices`; an unknown key is a `TypeError`."""
    steps = ({name: StepWords(**entry) for name, entry in section.items()} for section in (forward, backward))
    return norms, *steps, {name: CheckWords(**entry) for name, entry in checks.items()}, notes, phrases


NORM_ROWS, FORWARD, BACKWARD, CHECKS, NOTES, PHRASES = sections(**TABLES)
STEPS: dict[str, StepWords] = FORWARD | BACKWARD  # in the order of an explanation

CLAUSE = re.compile(r"(not )?(\w+)(?: (=|>=|>) (\S+))?")
COMPARE: dict[str, Callable[[float, float], bool]] = {"=": operator.eq, ">": operator.gt, ">=": operator.ge}
PLACEHOLDER = re.compile(r"<([^<>]+)>")


def tell(template: Template, facts: Facts) -> str:
    """Fill in the first text of a template whose condition holds."""
    return PLACEHOLDER.sub(lambda match: fill(match[1].split(" "), facts), choose(template, facts))


def choose(template: Template, facts: Facts) -> str:
    """Return the first text of a template whose condition holds."""
    if isinstance(template, str):
        return template
    for part in template:
        if isinstance(part, str):
            return part
        if holds(part[0], facts):
            return part[1]
    raise ValueError(f"no text of {template} is without condition")


def holds(condition: str, facts: Facts) -> bool:
    """Whether all clauses of a condition hold."""
    return all(clause_holds(clause, facts) for clause in condition.split(" & "))


def clause_holds(clause: str, facts: Facts) -> bool:
    """Whether one clause holds; nothing compares with a step that is not there."""
    match = CLAUSE.fullmatch(clause)
    if match is None:
        raise ValueError(f"{clause!r} is no condition")
    negated, name, compare, literal = match.groups()
    value = facts(name)
    if compare is None:
        return bool(negated) != (value is not None and not (isinstance(value, int | float) and value == 0))
    if value is None or isinstance(value, str):
        return value == literal
    if literal in ("nan", "finite"):
        return math.isnan(value) if literal == "nan" else math.isfinite(value)
    return COMPARE[compare](value, float(literal))


def fill(words: list[str], facts: Facts) -> str:
    """Return the text of one placeholder."""
    if len(words) == 1 and words[0] in PHRASES:
        return tell(PHRASES[words[0]], facts)
    values = [facts(name) for name in words[len(words) > 1 :]]
    if any(value is None for value in values):
        raise KeyError(f"there is nothing to fill in for <{' '.join(words)}>")
    return str(values[0]) if len(words) == 1 else FORMATS[words[0]](*values)
