"""What an experiment is: options, trials, a measurement for each trial, and what the measurements say of the claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel._errors import StudyError
from evenkeel._options.experiments import Trial, read_options
from evenkeel.report import Figure

Interval = tuple[str, float | None, float | None, float | None]  # None for what is not known or not finite
Record = dict[str, Any]  # the trial's own entries and what was measured, as JSON can hold them

# What a measurement can say of a claim, and how a page writes it.
VERDICTS = {
    "agrees": "agrees",
    "partly": "agrees in part",
    "disagrees": "disagrees",
    "undecided": "undecided",
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the literature beside what was measured.

    Attributes:
        claim: what the source says.
        source: who says it: authors, year, and where.
        measured: what this run measured, with numbers and their uncertainty.
        verdict: a key of `VERDICTS`: agrees, partly, disagrees, undecided (the uncertainty covers both).
        intervals: the numbers behind it, to be drawn: a name, the value and the ends of its interval each.
        quantity: what these numbers are, with their unit.
        allowed: the range that the verdict compares them with, where it does; None for an open end.

    Raises:
        StudyError: the verdict is none of these.

    Example:
        >>> from evenkeel.lab.experiments import Claim
        >>> Claim(claim="a < b", source="A. 2020", measured="1 < 2", verdict="agrees").verdict
        'agrees'
    """

    claim: str
    source: str
    measured: str
    verdict: str
    intervals: Sequence[Interval] = ()
    quantity: str = ""
    allowed: tuple[float | None, float | None] | None = None

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise StudyError(f"verdict must be one of {', '.join(VERDICTS)}, but is {self.verdict!r}")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One question, how it is measured, and what the answer says of the claims.

    Attributes:
        name: what the command line calls it.
        title: a heading.
        question: what is asked, in one sentence.
        method: how it is measured, in a few sentences; sizes are read from the options and not repeated here.
        options: the class of its options, all with defaults.
        trials: the measurements to make, from the options; each is a unit of work that is kept when it is done.
        measure: makes one measurement; seeded by the trial and the options alone.
        judge: compares the records with the claims, and leaves out a claim whose measurements are missing.
        draw: the figures; titles state what was measured.
        timed: whether it times anything, so that a busy machine would disturb it.

    Example:
        >>> from evenkeel.lab.experiments import EXPERIMENTS
        >>> EXPERIMENTS["padding"].options().seeds
        3
    """

    name: str
    title: str
    question: str
    method: str
    options: type[Any]
    trials: Callable[[Any], Sequence[Trial]]
    measure: Callable[[Any, Trial], dict[str, Any]]
    judge: Callable[[Any, Sequence[Record]], Sequence[Claim]]
    draw: Callable[[Any, Sequence[Record]], Sequence[Figure]]
    timed: bool = False

    def read_options(self, typed: Mapping[str, Any]) -> Any:
        """Return the options, with values as text or as what the options hold; those left out take their default.

        Args:
            typed: values by name; a list may be text with commas.

        Raises:
            StudyError: a name or value that the experiment does not take.
        """
        return read_options(self.name, self.options, typed)


def select(records: Sequence[Record], **entries: Any) -> list[Record]:
    """Return the records that have these entries."""
    return [record for record in records if all(record[name] == value for name, value in entries.items())]


def grouped(records: Sequence[Record], entry: str, values: Iterable[Any]) -> dict[Any, list[Record]]:
    """Return the records by the value of an entry, for these values."""
    return {value: select(records, **{entry: value}) for value in values}
