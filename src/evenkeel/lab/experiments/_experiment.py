"""What an experiment is: options, trials, a measurement for each trial, and what the measurements say of the claims."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel._errors import StudyError
from evenkeel._options.names import nearest
from evenkeel._options.numbers import MOST_THREADS
from evenkeel.report import Figure, join_words

Trial = dict[str, Any]  # names the measurement: strings and numbers
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
class Options:
    """The options that every experiment has; an experiment adds its own fields, each with a default.

    A field holds an int, a float, a str, or a tuple of one of these. Numbers must be positive unless the experiment's
    own `check` says otherwise.

    Attributes:
        seed: the first seed.
        seeds: how many seeds, counted up from `seed`.
        threads: of the processor.

    Raises:
        StudyError: a value is impossible.

    Example:
        >>> from evenkeel.lab.experiments import Options
        >>> Options(seeds=2).grid(arm=("pre-rms",))
        [{'arm': 'pre-rms', 'seed': 0}, {'arm': 'pre-rms', 'seed': 1}]
    """

    seed: int = 0
    seeds: int = 3
    threads: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            values = value if isinstance(value, tuple) else (value,)
            if not values:
                raise StudyError(f"{field.name} is empty; give at least one value")
            for item in values:
                if field.name != "seed" and isinstance(item, (int, float)) and not (math.isfinite(item) and item > 0):
                    raise StudyError(f"{field.name} must be positive, but is {item}")
        if self.seed < 0:
            raise StudyError(f"seed must be zero or more, but is {self.seed}")
        if self.threads > MOST_THREADS:
            raise StudyError(f"threads must be from 1 to {MOST_THREADS}, but is {self.threads}")
        self.check()

    def check(self) -> None:
        """Raise StudyError where values do not go together; an experiment's own rules."""

    def seed_range(self) -> range:
        """Return the seeds."""
        return range(self.seed, self.seed + self.seeds)

    def grid(self, **axes: Iterable[Any]) -> list[Trial]:
        """Return a trial for every combination of the axes' values with every seed; the last axis changes first."""
        axes["seed"] = self.seed_range()
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def as_dict(self) -> dict[str, Any]:
        """Return the options as JSON can hold them."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }


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
        fields = {field.name: field.default for field in dataclasses.fields(self.options)}
        if unknown := [name for name in typed if name not in fields]:
            near = nearest(unknown[0], fields)
            raise StudyError(f"experiment {self.name} has no option {join_words(unknown)}; did you mean {near}?")
        return self.options(**{name: as_type_of(fields[name], value, name) for name, value in typed.items()})


def as_type_of(default: Any, value: Any, name: str) -> Any:
    """Return a value in the form of an option's default: a number, a text, or a tuple of them."""
    if isinstance(default, tuple):
        items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
        items = items if isinstance(items, (list, tuple)) else [items]
        return tuple(as_type_of(default[0], item, name) for item in items)
    kind = type(default)
    try:
        converted = kind(value)
        whole = kind is not int or float(value) == converted
    except (OverflowError, TypeError, ValueError):
        whole = False
    if not whole:
        form = {"int": "a whole number", "float": "a number"}.get(kind.__name__, "text")
        raise StudyError(f"{name} must be {form}, but is {value!r}")
    return converted


def require_known(name: str, values: Iterable[str], known: Collection[str]) -> None:
    """Raise StudyError where one of an option's values is not among those known."""
    if unknown := [value for value in values if value not in known]:
        raise StudyError(f"{name} must be of {join_words(list(known))}, but one is {unknown[0]!r}")


def require_ascending(name: str, values: Sequence[float], example: str) -> None:
    """Raise StudyError where an option's values do not ascend."""
    if list(values) != sorted(set(values)):
        raise StudyError(f"{name} must ascend without repetition, for example {example}")


def select(records: Sequence[Record], **entries: Any) -> list[Record]:
    """Return the records that have these entries."""
    return [record for record in records if all(record[name] == value for name, value in entries.items())]


def grouped(records: Sequence[Record], entry: str, values: Iterable[Any]) -> dict[Any, list[Record]]:
    """Return the records by the value of an entry, for these values."""
    return {value: select(records, **{entry: value}) for value in values}
