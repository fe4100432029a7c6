"""Time norms against torch's on shapes drawn at random, in one process, as ratios: `make bench-sweep`.

Usage: python -m benchmarks.sweep [--cases 300] [--minutes 10] [--threads 2] [--seed N] [--only TEXT] [--out sweep.json]

Shapes, dtypes, layouts and passes come from the distributions that models have; the seed is new in each run and is
printed. Each case alternates evenkeel and torch eager, and is measured again where the ratio is near 1 or unsteady.
What seems slower than torch is measured twice more at the end, on new tensors, and the middle of the three counts:
beside another process one reading may be three times what it should be.
"""

from benchmarks.beginning import begin, carry_out

if __name__ == "__main__":
    begin()

import argparse
import dataclasses
import datetime
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import evenkeel as ek
from benchmarks.channels import Norm, both_passes, forward
from benchmarks.timing import Call, repeated
from evenkeel.cli.info import collect_info
from evenkeel.report import write_text_atomically

# with how often they are drawn; "add": the sum of a residual connection first
NORMS = {"layer": 5, "rms": 3, "add layer": 1, "add rms": 2, "batch": 5, "group": 4, "instance": 3}
ROW_NORMS = ("layer", "rms", "add layer", "add rms")
WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192)
RARE_WIDTHS = (65, 77, 100, 127, 257, 333, 500, 777, 1000, 1023, 1025, 3001, 4097, 11008, 16384, 32768, 65535, 65536)
CHANNELS = (3, 16, 24, 32, 40, 48, 64, 80, 96, 128, 144, 192, 256, 320, 384, 512, 768, 960, 1024, 2048)
SIDES = (1, 2, 3, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112)
SHORT_SIDES = (1, 2, 4, 7, 8, 16, 28)  # of volumes
LONGEST = 4096  # of sequences
GROUPS = (1, 2, 4, 8, 16, 32)
LARGEST = 2**24  # elements: 64 MB in float32
DTYPES = {"float32": 10, "bfloat16": 6, "float16": 4, "float64": 1}
WIDE = "float32"  # what parameters may be beside an input of 16 bits
ROW_LAYOUTS = {"contiguous": 4, "sliced": 1, "transposed": 1}
CHANNEL_LAYOUTS = {"contiguous": 5, "channels-last": 5, "sliced": 1}
CRASHES = ("group", "channels-last")  # torch 2.13 ends the process where their parameters alone have a gradient
FROZEN = "frozen forward + backward"  # gradients with the statistics of inference
SHORT, SLACK, SLACK_WITH_GRADIENTS = 100e-6, 10e-6, 25e-6  # seconds: what counts as a short call, and what it may cost
SLOWER = 1.02  # of torch's time: what seems to take longer is measured again
MOST_DRAWS = 1000  # for each case that is asked for: what may be sought among rare ones
AIM = {"slower than 1.10": 0.0, "slower than 1.02": 0.03, "mean": 0.60, "inference": 1.0}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One case: a norm, its input and what is asked of it."""

    norm: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    mode: str  # "inference", "forward" (statistics of the input), "forward + backward" or FROZEN
    affine: bool = True
    parameters: str = ""  # their dtype, where it is not the input's
    trains: str = ""  # what alone has a gradient: "input" or "parameters"
    groups: int = 0
    activation: str | None = None

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        extras = [
            f"{self.groups} groups" if self.groups else "",
            self.activation or "",
            "" if self.affine else "plain",
            f"{self.parameters} parameters" if self.parameters else "",
            f"gradient of {self.trains}" if self.trains else "",
        ]
        return ", ".join(filter(None, [f"{self.norm} {self.mode}", f"{self.dtype} {size} {self.layout}", *extras]))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A case's median times in seconds and the median of the ratios of its pairs."""

    case: Drawn
    ours: float
    theirs: float
    ratio: float

    def is_slower(self, limit: float) -> bool:
        """Whether evenkeel takes more than ``limit`` of torch's time; a short call may take a little more."""
        slack = SLACK_WITH_GRADIENTS if "backward" in self.case.mode else SLACK
        allowed = self.theirs < SHORT and self.ours - self.theirs <= slack
        return self.ratio > limit and not allowed


def log_uniform(draw: random.Random, low: int, high: int) -> int:
    """Return a whole number whose logarithm is uniform."""
    return round(math.exp(draw.uniform(math.log(low), math.log(high))))


def draw_rows(draw: random.Random, norm: str) -> Drawn:
    """Draw a row norm's case."""
    features = draw.choice(WIDTHS if draw.random() < 0.7 else RARE_WIDTHS)
    rows = min(log_uniform(draw, 1, 100_000), max(1, LARGEST // features))
    mode = draw.choice(("inference", "forward + backward"))
    return Drawn(norm=norm, shape=(rows, features), mode=mode, **draw_tensors(draw, norm, mode, ROW_LAYOUTS))


def draw_space(draw: random.Random) -> tuple[int, ...]:
    """Return the positions of a channel: of a map, seldom of a sequence or a volume."""
    axes = draw.choices((2, 1, 3), (8, 1, 1))[0]
    if axes == 1:
        return (log_uniform(draw, 1, LONGEST),)
    side = draw.choice(SIDES if axes == 2 else SHORT_SIDES)
    return (side if draw.random() < 0.8 else draw.choice(SHORT_SIDES), *[side] * (axes - 1))


def draw_channels(draw: random.Random, norm: str) -> Drawn:
    """Draw a channel norm's case, in which every statistic has two values at least."""
    while True:
        batch, channels, space = log_uniform(draw, 1, 64), draw.choice(CHANNELS), draw_space(draw)
        positions = math.prod(space)
        groups = draw.choice([g for g in GROUPS if channels % g == 0]) if norm == "group" else 0
        shared = {"batch": batch * positions, "instance": positions}.get(norm, channels // max(groups, 1) * positions)
        if shared > 1 and batch * channels * positions <= LARGEST:
            break
    modes = ["inference", "forward + backward"]
    if norm == "batch":
        modes += ["forward", FROZEN]
    mode = draw.choice(modes)
    return Drawn(
        norm=norm,
        shape=(batch, channels, *space),
        mode=mode,
        groups=groups,
        activation=None if norm == "instance" else draw.choices((None, "relu", "silu"), (3, 1, 1))[0],
        **draw_tensors(draw, norm, mode, CHANNEL_LAYOUTS),
    )


def draw_tensors(draw: random.Random, norm: str, mode: str, layouts: dict[str, int]) -> dict[str, Any]:
    """Draw a case's dtypes and layout, its parameters, and what has a gradient."""
    dtype = draw_of(draw, DTYPES)
    affine = draw.random() < 0.85
    mixed = affine and dtype in ("bfloat16", "float16") and draw.random() < 0.2
    part = affine and "backward" in mode and not norm.startswith("add") and draw.random() < 0.2
    layout = draw_of(draw, layouts)
    parts = ("input",) if (norm, layout) == CRASHES else ("input", "parameters")
    return {
        "dtype": dtype,
        "layout": layout,
        "affine": affine,
        "parameters": WIDE if mixed else "",
        "trains": draw.choice(parts) if part else "",
    }


def draw_of(draw: random.Random, weights: dict[str, int]) -> str:
    """Return one of the names, as often as its weight says."""
    return draw.choices(list(weights), list(weights.values()))[0]


def draw_case(draw: random.Random) -> Drawn:
    """Draw a norm and a case of it."""
    norm = draw_of(draw, NORMS)
    return draw_rows(draw, norm) if norm in ROW_NORMS else draw_channels(draw, norm)


def laid_out(case: Drawn) -> Tensor:
    """Return an input of the case's shape in its layout."""
    shape, dtype = case.shape, getattr(torch, case.dtype)
    if case.layout == "sliced":  # as q and k of a fused projection, or a part of the channels
        return torch.randn(shape[0], shape[1] * 3, *shape[2:], dtype=dtype)[:, shape[1] : 2 * shape[1]]
    if case.layout == "transposed":  # (batch, sequence) of (sequence, batch)
        inner = next(n for n in (4, 3, 2, 1) if shape[0] % n == 0)
        return torch.randn(shape[0] // inner, inner, shape[1], dtype=dtype).transpose(0, 1)
    if case.layout == "channels-last":
        return torch.randn(shape[0], *shape[2:], shape[1], dtype=dtype).movedim(-1, 1)
    return torch.randn(shape, dtype=dtype)


def norm_calls(case: Drawn) -> tuple[Norm, Norm]:
    """Return evenkeel's and torch's function of (x, *parameters)."""
    theirs: Any = torch.nn.functional
    ours: Any = ek.functional
    width = case.shape[-1:] if case.norm in ROW_NORMS else case.shape[1:2]
    activation: Any = case.activation
    squash = (lambda y: y) if activation is None else getattr(theirs, activation)
    if case.norm == "layer":
        return lambda x, *p: ours.layer_norm(x, width, *p), lambda x, *p: theirs.layer_norm(x, width, *p)
    if case.norm == "rms":
        return lambda x, *p: ours.rms_norm(x, width, *p[:1]), lambda x, *p: theirs.rms_norm(x, width, *p[:1])
    if case.norm in ("add layer", "add rms"):
        name, most = ("layer_norm", 2) if case.norm == "add layer" else ("rms_norm", 1)
        fused, plain = getattr(ours, f"add_{name}"), getattr(theirs, name)
        return (
            lambda x, r, *p: fused(x, r, width, *p[:most]),
            lambda x, r, *p: (plain(total := x + r, width, *p[:most]), total),
        )
    if case.norm == "instance":
        return (
            lambda x, *p: ours.instance_norm(x, None, None, *p),
            lambda x, *p: theirs.instance_norm(x, None, None, *p),
        )
    if case.norm == "group":
        return (
            lambda x, *p: ours.group_norm(x, case.groups, *p, activation=activation),
            lambda x, *p: squash(theirs.group_norm(x, case.groups, *p)),
        )
    training = case.mode not in ("inference", FROZEN)
    dtype = getattr(torch, case.parameters or case.dtype)
    mine, running = ([torch.zeros(width, dtype=dtype), torch.ones(width, dtype=dtype)] for _ in range(2))
    return (
        lambda x, *p: ours.batch_norm(x, *mine, *(p or (None, None)), training, activation=activation),
        lambda x, *p: squash(theirs.batch_norm(x, *running, *(p or (None, None)), training)),
    )


def drawn_tensors(case: Drawn) -> tuple[list[Tensor], list[Tensor]]:
    """Return the input, with the residual where one is added, and the parameters."""
    inputs = [laid_out(case) for _ in range(2 if case.norm.startswith("add") else 1)]
    width = case.shape[-1] if case.norm in ROW_NORMS else case.shape[1]
    count = 0 if not case.affine else 1 if case.norm.endswith("rms") else 2
    dtype = getattr(torch, case.parameters or case.dtype)
    return inputs, [torch.rand(width, dtype=dtype) + 0.5 for _ in range(count)]


def calls_of(case: Drawn) -> tuple[Call, Call]:
    """Return evenkeel's and torch's call of a case, on the same tensors."""
    inputs, parameters = drawn_tensors(case)
    dy = [torch.randn_like(x) for x in inputs] if "backward" in case.mode else []  # a gradient of each result

    def call_of(norm: Norm) -> Call:
        if not dy:
            return forward(norm, *inputs, *parameters)
        if case.trains == "input":
            return both_passes(lambda *x: norm(*x, *parameters), dy, *inputs)
        if case.trains == "parameters":
            return both_passes(lambda *p: norm(*inputs, *p), dy, *parameters)
        return both_passes(norm, dy, *inputs, *parameters)

    ours, theirs = norm_calls(case)
    return call_of(ours), call_of(theirs)


def pair_up(calls: tuple[Call, Call], seconds: float) -> list[tuple[float, float]]:
    """Return the times of pairs of calls, in turn, each of which runs often enough for the clock."""
    for call in calls * 2:
        call()
    start = time.perf_counter()
    calls[1]()
    times = max(1, math.ceil(50e-6 / (time.perf_counter() - start)))
    many = [call if times == 1 else repeated(call, times) for call in calls]
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < 5 or (time.perf_counter() < end and len(pairs) < 400):
        stamps = [time.perf_counter()]
        order = (0, 1) if len(pairs) % 2 else (1, 0)
        for index in order:
            many[index]()
            stamps.append(time.perf_counter())
        spent = [(b - a) / times for a, b in itertools.pairwise(stamps)]
        pairs.append((spent[order.index(0)], spent[order.index(1)]))
    return pairs


def ratio_of(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the median ratio."""
    return statistics.median(ours / theirs for ours, theirs in pairs)


def measure(case: Drawn, seconds: float) -> Measured:
    """Time a case, and again where the ratio of the two halves differs or lies near 1."""
    calls = calls_of(case)
    pairs = pair_up(calls, seconds / 2)
    halves = [ratio_of(pairs[start::2]) for start in (0, 1)]
    if abs(halves[0] - halves[1]) > 0.05 or 0.9 < ratio_of(pairs) < 1.3:
        pairs += pair_up(calls, seconds)
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Measured(case=case, ours=ours, theirs=theirs, ratio=ratio_of(pairs))


def measure_all(cases: list[Drawn], seconds: float, console: Console) -> list[Measured]:
    """Measure cases; of what seems slow, the middle of three times."""
    found = [measure(case, seconds) for case in track(cases, description="measuring", console=console)]
    slow = [index for index, m in enumerate(found) if m.is_slower(SLOWER)]
    for index in track(slow, description="once more", console=console):
        several = [found[index], *(measure(cases[index], seconds) for _ in range(2))]
        found[index] = sorted(several, key=lambda m: m.ratio)[1]
    return found


def geometric_mean(found: Iterable[Measured]) -> float:
    """Return the geometric mean of the ratios; NaN of nothing."""
    logs = [math.log(m.ratio) for m in found]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def summary(found: list[Measured]) -> dict[str, Any]:
    """Return the numbers that a run is judged by."""
    kinds = sorted({(m.case.norm, m.case.mode) for m in found})
    return {
        "mean": geometric_mean(found),
        "slower than 1.10": sum(m.is_slower(1.10) for m in found) / len(found),
        "slower than 1.02": sum(m.is_slower(SLOWER) for m in found) / len(found),
        "ratio above 1": sum(m.ratio > 1 for m in found) / len(found),
        "inference": geometric_mean(m for m in found if m.case.mode == "inference"),
        "kinds": {
            f"{norm} {mode}": geometric_mean(m for m in found if (m.case.norm, m.case.mode) == (norm, mode))
            for norm, mode in kinds
        },
    }


def show(found: list[Measured], console: Console) -> None:
    """Print the summary and the fifteen worst cases."""
    numbers = summary(found)
    for name, aim in AIM.items():
        verdict = "within" if numbers[name] <= aim else "MISSES"
        console.print(f"{name}: {numbers[name]:.3f} ({verdict} {aim:g})", highlight=False)
    kinds = Table("norm", "mean ratio", "cases", "slower", title="evenkeel's share of torch's time")
    for kind, mean in numbers["kinds"].items():
        own = [m for m in found if f"{m.case.norm} {m.case.mode}" == kind]
        kinds.add_row(kind, f"{mean:.2f}", str(len(own)), str(sum(m.is_slower(1.10) for m in own)))
    console.print(kinds)
    worst = Table("ratio", "µs", "torch's µs", "case", title="the worst")
    ranked = sorted(found, key=lambda m: (m.is_slower(1.10), m.ratio), reverse=True)
    for m in ranked[:15]:
        worst.add_row(f"{m.ratio:.2f}", f"{m.ours * 1e6:.0f}", f"{m.theirs * 1e6:.0f}", str(m.case))
    console.print(worst)


def main() -> None:
    """Draw, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="only cases whose description contains this")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    facts = collect_info()
    torch.set_num_threads(options.threads)
    torch.manual_seed(seed)
    draw = random.Random(seed)
    drawn = (draw_case(draw) for _ in range(MOST_DRAWS * options.cases))
    cases = list(itertools.islice((case for case in drawn if options.only in str(case)), options.cases))
    if not cases:
        parser.error(f"none of {MOST_DRAWS * options.cases} cases drawn with seed {seed} contains {options.only!r}")
    console = Console(width=130)
    console.print(f"{len(cases)} cases, seed {seed}, {options.threads} threads", highlight=False)
    seconds = 60 * options.minutes / len(cases) / 2
    found = measure_all(cases, seconds, console)
    show(found, console)
    if options.out:
        results = [dataclasses.asdict(m) | {"name": str(m.case)} for m in found]
        run = {
            "date": str(datetime.datetime.now(tz=datetime.UTC).date()),
            "processor": facts["machine"]["processor"],
            "simd": facts["compiled"].get("simd level", "none"),
            "torch's simd": torch.backends.cpu.get_cpu_capability().lower(),
            "threads": options.threads,
            "seed": seed,
            "summary": summary(found),
            "cases": results,
        }
        write_text_atomically(options.out, json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    carry_out(main)
