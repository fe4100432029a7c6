"""What every experiment's options have, how they are read from text, and the checks that several share."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from evenkeel._errors import StudyError
from evenkeel._options.names import nearest
from evenkeel._options.numbers import COUNT, is_count

Trial = dict[str, Any]  # names the measurement: strings and numbers


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

    packages: ClassVar[tuple[str, ...]] = ()  # modules that not every installation has
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
        if not is_count(self.threads):
            raise StudyError(f"threads must be {COUNT}, but is {self.threads}")
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


def read_options(name: str, kind: type[Any], typed: Mapping[str, Any]) -> Any:
    """Return an experiment's options, with values as text or as what they hold; those left out take their default."""
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    if unknown := [option for option in typed if option not in fields]:
        near = nearest(unknown[0], fields)
        raise StudyError(f"experiment {name} has no option {', '.join(unknown)}; did you mean {near}?")
    return kind(**{option: as_type_of(fields[option], value, option) for option, value in typed.items()})


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
        raise StudyError(f"{name} must be of {', '.join(known)}, but one is {unknown[0]!r}")


def require_ascending(name: str, values: Sequence[float], example: str) -> None:
    """Raise StudyError where an option's values do not ascend."""
    if list(values) != sorted(set(values)):
        raise StudyError(f"{name} must ascend without repetition, for example {example}")


def require_multiple(name: str, width: int, heads: int) -> None:
    """Raise StudyError where heads do not divide a width."""
    if width % heads:
        raise StudyError(f"{name} must be a multiple of heads ({heads}), but is {width}")
