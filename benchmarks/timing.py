"""What a benchmark is, and how its calls are timed: interleaved, medians, ratios."""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Call = Callable[[], object]
OURS = "evenkeel"
MODEL_OWNERS = ("Hugging Face", "evenkeel", "fused", "lean", "no norms")  # of a whole model's norms, beside torch


class Measurable(Protocol):
    """What a suite consists of: calls, models, conversions."""

    @property
    def name(self) -> str:
        """What is measured."""
        ...

    def measure(self, suite: str, threads: int, repeats: int) -> "Iterator[Result]":
        """Yield what was measured."""
        ...


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

    def measure(self, suite: str, threads: int, repeats: int) -> "Iterator[Result]":
        """Yield the medians of the calls."""
        seconds = {name: statistics.median(values) for name, values in times(self.calls, repeats).items()}
        yield Result(suite=suite, name=self.name, threads=threads, seconds=seconds, limits=dict(self.limits))


@dataclass(frozen=True, kw_only=True)
class Result:
    """The median seconds of each contender of a case, with its limits.

    Attributes:
        ratios: of whole models, by contender: the median ratio to torch in the same round and its 90 % interval.
        saved: of a training step, by contender: the bytes kept for the backward.
    """

    suite: str
    name: str
    threads: int
    seconds: dict[str, float]
    limits: dict[str, float]
    ratios: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)

    def shares(self) -> Iterator[tuple[str, float, float | None]]:
        """Yield each contender but ourselves, our share of its time, and the limit."""
        for contender, seconds in self.seconds.items():
            if contender != OURS:
                yield contender, self.seconds[OURS] / seconds, self.limits.get(contender)


def times(calls: Mapping[str, Call], repeats: int, before: Call | None = None) -> dict[str, list[float]]:
    """Return the times of each call by round; the first two rounds warm up and are left out.

    Every round runs each call once, so that other load on the machine disturbs all of them alike, in an order of its
    own, so that none always runs after the same one. What is to be done before a round is not timed.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    order, draw = list(calls), random.Random(0)
    for _ in range(repeats + 2):
        draw.shuffle(order)
        if before:
            before()
        for name in order:
            start = time.perf_counter()
            calls[name]()
            found[name].append(time.perf_counter() - start)
    return {name: values[2:] for name, values in found.items()}


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the ends of its 90 % interval: order statistics, whatever the distribution.

    The k-th smallest and the k-th largest of n values miss the median with probability 2 P(Binomial(n, 1/2) < k); k is
    the largest that keeps this below 0.1, and 1 for less than five values, of which none does.
    """
    n, k, missed = len(values), 1, 2 * 0.5 ** len(values)
    while (missed := missed + 2 * math.comb(n, k) * 0.5**n) <= 0.1:
        k += 1
    ordered = sorted(values)
    return statistics.median(ordered), ordered[k - 1], ordered[n - k]


def repeated(call: Call, times: int) -> Call:
    """Return a call that runs another many times: for work too short for the clock."""

    def many() -> None:
        for _ in range(times):
            call()

    return many


def model_rows(result: Result) -> Iterator[list[str]]:
    """Yield the cells of a whole model's time and, of a training step, of its bytes: case, torch's, owners' ratios.

    A time that cannot be told apart from torch's, its interval holding 1, is no figure but "≈1" with the interval.
    """
    cells = {
        owner: f"{'≈1' if low <= 1 <= high else f'{ratio:.2f}'} {low:.2f}–{high:.2f}"
        for owner, (ratio, low, high) in result.ratios.items()
    }
    yield [result.name, f"{result.seconds['torch'] * 1e3:.0f} ms", *(cells.get(owner, "") for owner in MODEL_OWNERS)]
    if saved := result.saved:
        shares = (f"{saved[owner] / saved['torch']:.2f}" if owner in saved else "" for owner in MODEL_OWNERS)
        yield [f"{result.name.rpartition(', ')[0]}, saved", f"{saved['torch'] / 2**20:.0f} MiB", *shares]
