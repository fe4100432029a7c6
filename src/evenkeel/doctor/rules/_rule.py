"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from evenkeel.doctor._finding import Reading, Severity
from evenkeel.doctor.probes import Measurements, Threshold

__all__ = ["Rule"]


@dataclass(frozen=True, kw_only=True)
class Rule(Threshold):
    """A quantity read from measurements, and from where on it is a verdict.

    Attributes:
        id: its name.
        group: the group in the table and in docs/doctor.md.
        severity: of its verdicts.
        quantity: what it reads, as an axis of a figure says it.
        threshold: from where on a reading is a verdict.
        above: whether readings from the threshold up are verdicts, rather than those down from it.
        applies: the condition under which it reads anything.
        message: what is wrong: text with the evidence's names in braces.
        remedy: code, with the same names.
        source: where the threshold comes from.
        read: the readings of measurements.

    Example:
        >>> import evenkeel as ek
        >>> {rule.id: rule.threshold for rule in ek.doctor.RULES}["statistics-not-finite"]
        1.0
    """

    id: str
    group: str
    severity: Severity
    quantity: str
    applies: str
    message: str
    remedy: str
    source: str
    read: Callable[[Measurements], Iterable[Reading]]
