"""Training steps under the doctor's watch against the same steps without, in turn.

Of fifty steps under ``every=50`` 48 are ordinary, one sets the hooks for the next, and one is measured. What a step has
beside it is timed by itself, and the measured step, whose forward takes longer too, against the step alone before it:
whole loops of fifty differ by more than the watch costs. Times are the processor's, which load stretches less.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.networks import OWNERS, Transformer, resnet
from benchmarks.timing import OURS, Result
from evenkeel.doctor import Watch

EVERY = 50
CYCLE = 5  # of the watch that is timed: ordinary steps, the one that prepares, the one that measures
MOST = 1.02  # of the time of the same steps alone
ALONE = "alone"


@dataclass(frozen=True, kw_only=True)
class WatchingCase:
    """A model and its input."""

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[], Tensor]

    def measure(self, suite: str, threads: int, repeats: int) -> Iterator[Result]:
        """Yield the time of fifty steps, alone and under watch."""
        x = self.draw()
        alone, watched = (training(self.build, x, watched=choice) for choice in (False, True))
        times: dict[str, list[float]] = {ALONE: [], "ordinary": [], "prepares": [], "measures": []}
        for step in range(1, CYCLE * (repeats + 2) + 1):
            place = step % CYCLE
            kind = "measures" if place == 0 else "prepares" if place == CYCLE - 1 else "ordinary"
            (plain, _), (whole, beside) = alone(), watched()
            if step > 2 * CYCLE:  # the first cycles warm up
                times[ALONE].append(plain)
                times[kind].append(whole - plain if kind == "measures" else beside)
        cost = {name: statistics.median(values) for name, values in times.items()}
        extra = (EVERY - 2) * cost["ordinary"] + cost["prepares"] + cost["measures"]
        seconds = {ALONE: EVERY * cost[ALONE], OURS: EVERY * cost[ALONE] + extra}
        yield Result(suite=suite, name=self.name, threads=threads, seconds=seconds, limits={ALONE: MOST})


def training(build: Callable[[], nn.Module], x: Tensor, *, watched: bool) -> Callable[[], tuple[float, float]]:
    """Return a call that makes a step, and returns its seconds and those of them in the watch beside it."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    watch = Watch(model, optimizer, every=CYCLE).__enter__() if watched else None

    def step() -> tuple[float, float]:
        start = time.process_time()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        between = time.process_time()
        if watch is not None:
            watch.step(loss)
        end = time.process_time()
        optimizer.zero_grad()
        return end - start, end - between

    return step


def cases() -> Iterator[WatchingCase]:
    """Yield a transformer and a convolutional network."""
    yield WatchingCase(
        name=f"{EVERY} steps, Llama, 4 blocks of 256, 512 tokens",
        build=lambda: Transformer(OWNERS["torch"], llama=True, width=256, depth=4),
        draw=lambda: torch.randint(0, 1000, (4, 128)),
    )
    yield WatchingCase(
        name=f"{EVERY} steps, ResNet, 8 images of 64x64",
        build=lambda: resnet(OWNERS["torch"]),
        draw=lambda: torch.randn(8, 3, 64, 64),
    )
