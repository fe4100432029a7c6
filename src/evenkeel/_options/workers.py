"""Who does the jobs of a study or an experiment: how many at a time, in processes or on a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from evenkeel._errors import StudyError
from evenkeel._options.names import EngineName, nearest
from evenkeel._options.numbers import COUNT, is_count


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many trainings or trials run side by side, and where; what is recorded is the same for any choice.

    Attributes:
        count: how many at a time; None means as many as the processors, or the cluster's, have room for.
        engine: ``local``, processes of this machine, or ``ray``, tasks of a Ray cluster.
        address: of the cluster, host:port or ``auto``; None means the one that RAY_ADDRESS names, or else one that is
            started in this machine for as long as it is needed.

    Raises:
        StudyError: a value is impossible.

    Example:
        >>> from evenkeel.lab import Workers
        >>> Workers(engine="ray", address="10.0.0.1:6379").count is None
        True
    """

    count: int | None = None
    engine: EngineName = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        if self.count is not None and not is_count(self.count):
            raise StudyError(f"workers must be {COUNT}, but is {self.count!r}")
        if self.engine not in get_args(EngineName):
            raise StudyError(
                f"there is no engine {self.engine!r}; did you mean {nearest(self.engine, ['local', 'ray'])}?"
            )
        if self.address is not None and self.engine != "ray":
            raise StudyError("an address is that of a Ray cluster; give the engine ray with it")
