"""What a benchmark is, and how its calls are timed: interleaved, medians, ratios."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

Call = Callable[[], object]
OURS = "evenkeel"
WITHOUT_NORMS = "no norms"  # the same model with identities in their place


@dataclass(frozen=True, kw_only=True)
class Case:
    """One piece of work and who does it.

    Attributes:
        name: what is done, on what: "LayerNorm forward, float32, 4096x768".
        calls: who does it, by name; "evenkeel" is one of them. "copy", where it is there, is the yardstick: a plain
            memory copy of the same tensor, or a plain read of the same data.
        limits: the largest share of a contender's time that evenkeel may take, by contender.
    """

    name: str
    calls: Mapping[str, Call]
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The median seconds of each contender of a case, with its limits."""

    suite: str
    name: str
    threads: int
    seconds: dict[str, float]
    limits: dict[str, float]

    def shares(self) -> Iterator[tuple[str, float, float | None]]:
        """Yield each contender but ourselves, our share of its time, and the limit."""
        for contender, seconds in self.seconds.items():
            if contender != OURS:
                yield contender, self.seconds[OURS] / seconds, self.limits.get(contender)


def median_seconds(calls: Mapping[str, Call], repeats: int) -> dict[str, float]:
    """Return the median time of each call, interleaved; the first two rounds warm up.

    Every repeat runs each call once, in turn, so that other load on the machine disturbs all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def repeated(call: Call, times: int) -> Call:
    """Return a call that runs another many times: for work too short for the clock."""

    def many() -> None:
        for _ in range(times):
            call()

    return many
