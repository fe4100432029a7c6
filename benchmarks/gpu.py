"""Check the GPU kernels, and time them against a copy and their peers, where there is a GPU.

Usage: python -m benchmarks.gpu --check          values in ulps against float64, bits across batches and reruns
       python -m benchmarks.gpu --bench          times as shares of the bandwidth of a copy, and the goals
       python -m benchmarks.gpu --check --bench --seconds 500 --out docs/measurements/gpu.json

Both take longer than many a GPU is lent for: with `--seconds` nothing is begun after that time, with `--out` every
result is written as it comes, and the same command goes on where the last one ended; `--only TEXT` chooses. A part that
raises is a finding, and the others go on; if it leaves the GPU unusable, as an illegal access does, the run ends there,
and the next one does what is left first and that part last. `--check --quick` keeps its results apart from the whole
check's. The status is 0 where all is well, 1 where something was found, 2 where nothing could be done (no GPU, a wrong
option, the record of another machine), 3 where something is left to be done, 130 after Ctrl-C.

Times are medians between CUDA events, with other data in the caches before each; the eager latency is measured apart.
Where compute-sanitizer is installed, `--check` runs `--check --quick` under it too. `docs/build_performance.py` draws
what `--out` has written. The first check that is green on a GPU switches `backend="auto"` on there: a test compares
`MEASURED` in `evenkeel.kernels._triton` with docs/measurements/gpu.json. Green is a check whose parts all are; without
compute-sanitizer, and on a GPU of less than 16 GB without more than 2^31 elements, which the record says.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # `python benchmarks/gpu.py` looks in this folder alone, `-m` in the repository
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.beginning import begin, carry_out

    begin()

import argparse
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import evenkeel
from benchmarks import gpu_calls, gpu_goals, gpu_tables, gpu_times
from benchmarks.beginning import INTERRUPTED
from benchmarks.gpu_record import BrokenError, Job, Record, RefusedError, named, problems_of
from evenkeel import functional as F
from evenkeel.cli.info import collect_info
from evenkeel.testing import ulp_error

# for lack of 14 GiB, or of a program; all kernels are checked by other parts, with places of 32 bits
MAY_BE_LEFT_OUT = ("more than 2^31", "sanitizer")
LIMITS = {torch.float32: 3.0, torch.bfloat16: 0.51, torch.float16: 0.51}
SAMPLES: dict[str, Callable[..., Tensor]] = {
    "N(0,1)": lambda shape, **to: torch.randn(shape, **to),
    "mean 1e4 spread 1": lambda shape, **to: 1e4 + torch.randn(shape, **to),
    "1e18": lambda shape, **to: 1e18 * torch.randn(shape, **to),
    "1e-20": lambda shape, **to: 1e-20 * torch.randn(shape, **to),
}


class Norm(NamedTuple):
    """A norm under one signature.

    Attributes:
        plain: (x, w, b, **options) -> y.
        rows: a view of y in which the last axis shares a statistic.
        alone: whether a sample's result does not depend on the others.
        limit: of R, as a multiple of that of the dtype.
        activation: what follows in the same pass.
    """

    plain: Callable[..., Tensor]
    rows: Callable[[Tensor], Tensor] = lambda t: t
    alone: bool = True
    limit: float = 1.0
    activation: str | None = None

    @property
    def call(self) -> Callable[..., Tensor]:
        """The norm with its activation."""
        return partial(self.plain, activation=self.activation) if self.activation else self.plain


def channels_last(x: Tensor) -> Tensor:
    """x with its channels innermost."""
    return x.contiguous(memory_format=torch.channels_last)


def by_channel(t: Tensor) -> Tensor:
    """Channels as rows."""
    return t.transpose(0, 1).flatten(1)


def batch_norm(x: Tensor, w: Tensor, b: Tensor, **options: Any) -> Tensor:
    """BatchNorm in training."""
    return F.batch_norm(x, None, None, w, b, True, **options)


def inference(x: Tensor, w: Tensor, b: Tensor, **options: Any) -> Tensor:
    """BatchNorm with remembered statistics."""
    size = (torch.arange(x.shape[1], device=x.device) % 17) / 8  # exact, whoever compiles it
    mean = size * -(w * b).detach().sign()  # the other sign may cancel b, and leave next to nothing where x is small
    return F.batch_norm(x, mean, size, w, b, eps=0.1, **options)


def masked_group_norm(x: Tensor, w: Tensor, b: Tensor, **options: Any) -> Tensor:
    """GroupNorm of the positions at which the first channel is not below its median there."""
    first = x.detach()[:, 0]
    return F.group_norm(x, 2, w, b, mask=first >= first.flatten(1).median(1).values[:, None, None], **options)


def in_float32(parameter: Tensor) -> Tensor:
    """A parameter as it stays under autocast; one in float64 as it is."""
    return parameter if parameter.dtype == torch.float64 else parameter.float()


ROW_NORMS = {
    "layer_norm": Norm(lambda x, w, b, **o: F.layer_norm(x, x.shape[-1:], w, b, **o)),
    "rms_norm": Norm(lambda x, w, b, **o: F.rms_norm(x, x.shape[-1:], w, eps=1e-6, **o)),
}
CHANNEL_NORMS = {
    "batch_norm": Norm(batch_norm, by_channel, alone=False),
    "batch_norm last": Norm(lambda x, w, b, **o: batch_norm(channels_last(x), w, b, **o), by_channel, alone=False),
    "inference relu": Norm(inference, by_channel, activation="relu"),
    "instance_norm": Norm(lambda x, w, b, **o: F.instance_norm(x, weight=w, bias=b, **o), lambda t: t.flatten(2)),
    "group_norm silu": Norm(
        lambda x, w, b, **o: F.group_norm(x, 2, w, b, **o),
        lambda t: t.unflatten(1, (2, -1)).flatten(2),
        limit=1.2,  # of many elements through SiLU, single ones reach 3.5 on the CPU
        activation="silu",
    ),
    "group_norm last": Norm(
        lambda x, w, b, **o: F.group_norm(channels_last(x), 2, w, b, **o),
        lambda t: t.unflatten(1, (2, -1)).flatten(2),
    ),
}
# what is checked beside them
ROW_MODES = {
    "layer_norm outside, offset": Norm(
        lambda x, w, b, **o: F.layer_norm(x, x.shape[-1:], w, b, eps_mode="outside", weight_offset=1.0, **o),
        limit=1.2,  # the offset is one rounding more: 3.2 on the CPU
    ),
    "layer_norm of float32 parameters": Norm(
        lambda x, w, b, **o: F.layer_norm(x, x.shape[-1:], in_float32(w), in_float32(b), **o)
    ),
    "rms_norm clamp": Norm(lambda x, w, b, **o: F.rms_norm(x, x.shape[-1:], w, eps=1e-6, eps_mode="clamp", **o)),
    # rounded twice
    "rms_norm early": Norm(lambda x, w, b, **o: F.rms_norm(x, x.shape[-1:], w, eps=1e-6, cast="early", **o), limit=3),
    "normalize": Norm(lambda x, w, b, **o: F.normalize(x, dim=-1, **o)),
}
CHANNEL_MODES = {
    "group_norm masked": Norm(masked_group_norm, lambda t: t.unflatten(1, (2, -1)).flatten(2)),
    "batch_norm outside, offset": Norm(
        lambda x, w, b, **o: batch_norm(x, w, b, eps_mode="outside", weight_offset=1.0, **o), by_channel, alone=False
    ),
}
NORMS = ROW_NORMS | ROW_MODES | CHANNEL_NORMS | CHANNEL_MODES


def results(
    norm: Callable[..., Tensor], x: Tensor, w: Tensor, b: Tensor, dy: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    """y, dx, dweight and, where there is one, dbias."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    y = norm(*leaves, **options)
    gradients = torch.autograd.grad(y, leaves, dy.to(y.dtype), allow_unused=True)
    return (y.detach(), *(g for g in gradients if g is not None))


def poison(shape: tuple[int, ...], **to: Any) -> None:
    """Fill the memory that the next results will get with NaN: that of x's copy, y, dx and what lies between."""
    held = [torch.full(shape, float("nan"), **to) for _ in range(8)]  # all at once, lest each get the same memory
    held.clear()


def problems(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, sample: str, device: str, backend: str
) -> list[str]:
    """What is wrong with one norm on one sample; nothing if all is well."""
    to: dict[str, Any] = {"device": device}
    x = SAMPLES[sample](shape, **to).to(dtype)
    w, b = torch.randn(shape[1], **to).to(dtype), torch.randn(shape[1], **to).to(dtype)
    dy = torch.randn(shape, **to).to(dtype)
    case, norm = f"{name} {sample} {dtype} {shape}", NORMS[name]
    if not bool(x.isfinite().all()):
        return []  # float16 cannot hold the sample
    poison(shape, dtype=dtype, **to)
    mine = results(norm.call, x, w, b, dy, backend=backend)
    wide = (x.double(), w.double(), b.double())
    exact = results(norm.call, *wide, dy, backend="reference")
    if not all(bool((e.abs() <= torch.finfo(dtype).max).all()) for e in exact):
        return []  # nor its gradients
    rows = [(norm.rows(a), norm.rows(e)) for a, e in zip(mine[:2], exact[:2], strict=True)]  # of y and dx
    if norm.activation:  # it may leave a row only its smallest values, whose error is that of the others
        usual = [norm.rows(t).to(dtype) for t in results(norm.plain, *wide, dy, backend="reference")[:2]]
        rows = [(torch.cat([a, u], -1), torch.cat([e, u.double()], -1)) for (a, e), u in zip(rows, usual, strict=True)]
    errors = [ulp_error(a, e) for a, e in (*rows, *zip(mine[2:], exact[2:], strict=True))]
    found = [f"{case}: R = {error:.2f}" for error in errors if not error <= norm.limit * LIMITS[dtype]]
    again = results(norm.call, x, w, b, dy, backend=backend)
    if not all(torch.equal(first, second) for first, second in zip(mine, again, strict=True)):
        found.append(f"{case}: another run has other bits")
    for row in {0, shape[0] // 2, shape[0] - 1} if norm.alone else ():
        one = slice(row, row + 1)
        y, dx, *_ = results(norm.call, x[one], w, b, dy[one], backend=backend)
        if not (torch.equal(y[0], mine[0][row]) and torch.equal(dx[0], mine[1][row])):
            found.append(f"{case}: row {row} alone has other bits")
    return found


def value_problems(name: str, shapes: Iterable[tuple[int, ...]], device: str, backend: str, quick: bool) -> list[str]:
    """What is wrong with one norm, on random inputs."""
    dtypes, samples = (tuple(LIMITS)[:2], ("N(0,1)",)) if quick else (LIMITS, SAMPLES)
    cases = itertools.product(shapes, dtypes, samples)
    return [problem for s, d, sample in cases for problem in problems(name, s, d, sample, device, backend)]


def parts(
    device: str = "cuda", backend: str = "triton", quick: bool = False, sanitized: float = gpu_calls.SANITIZED
) -> dict[str, Callable[[], list[str]]]:
    """What is checked one after the other: name -> a function that returns what is wrong."""
    rows: tuple[tuple[int, ...], ...] = ((700, 256), (300, 1000), (130, 4096), (37, 40000), (2, 262144))
    maps: tuple[tuple[int, ...], ...] = ((16, 64, 56, 56), (5, 96, 31, 31), (40, 512, 7, 7), (2, 320, 128, 128))
    if quick:
        rows, maps = ((37, 256), (5, 1000), (3, 20000)), ((4, 64, 8, 8), (3, 6, 31, 31), (40, 66, 7, 7))
    found: dict[str, Callable[[], list[str]]] = {
        name: partial(value_problems, name, rows if name in ROW_NORMS | ROW_MODES else maps, device, backend, quick)
        for name in NORMS
    }
    calls, maps_calls = ({name: n.call for name, n in norms.items()} for norms in (ROW_NORMS, CHANNEL_NORMS))
    found["tables"] = partial(gpu_tables.problems, device, backend, quick)
    return found | gpu_calls.parts(calls, maps_calls, device, backend, quick, sanitized)


def check_jobs(quick: bool, seconds: float) -> list[Job]:
    """The parts of the check; the sanitizer gets at most half of the seconds, and is not begun in less."""
    kind, most = ("checked quick" if quick else "checked"), min(gpu_calls.SANITIZED, seconds / 2)
    found = parts(quick=quick, sanitized=most)
    return [
        Job(kind, name, part, partial(line_of_check, name), seconds=most if name == "sanitizer" else 0.0)
        for name, part in found.items()
    ]


def line_of_check(name: str, outcome: Any) -> str:
    """Problems, or that there are none, or why it was left out."""
    if isinstance(outcome, dict) and "left out" in outcome:
        return f"{name}: left out: {outcome['left out']}"
    return "\n".join(named(name, problem) for problem in problems_of(outcome)) or f"{name}: green"


def bench_jobs() -> list[Job]:
    """The cases that are timed."""
    return [
        Job("results", str(case), partial(gpu_times.time_case, case), partial(gpu_times.line_of, case), case.fields())
        for case in gpu_times.cases()
    ]


def is_green(checked: dict[str, Any], names: Iterable[str]) -> bool:
    """Whether the parts of these names are green, or were left out where that may be."""
    outcomes = {name: checked.get(name) for name in names}
    return all(o == [] or (o and "left out" in o and name in MAY_BE_LEFT_OUT) for name, o in outcomes.items())


def arguments() -> argparse.Namespace:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="check values and bits")
    parser.add_argument("--bench", action="store_true", help="measure times")
    parser.add_argument("--quick", action="store_true", help="check few shapes, for compute-sanitizer")
    parser.add_argument("--only", default="", metavar="TEXT", help="parts and cases whose name has this in it")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after so many seconds")
    parser.add_argument("--out", type=Path, help="write the results as JSON, and go on from those that are there")
    return parser.parse_args()


def jobs_of(asked: argparse.Namespace) -> list[Job]:
    """What is asked for.

    Raises:
        RefusedError: that is nothing.
    """
    if not (asked.check or asked.bench):
        raise RefusedError("nothing to do: neither --check nor --bench was given; give one of them, or both")
    if asked.quick and not asked.check:
        raise RefusedError("--quick is of the check, and --check was not given; add it, or leave --quick out")
    jobs = check_jobs(asked.quick, asked.seconds) if asked.check else []
    jobs += bench_jobs() if asked.bench else []
    if found := [job for job in jobs if asked.only in job.name]:
        return found
    names = ", ".join(dict.fromkeys(job.fields.get("norm", job.name) for job in jobs))
    raise RefusedError(
        f"no name has {asked.only!r} in it, as --only asks; there are (some with a shape and a dtype) {names}"
    )


def run(asked: argparse.Namespace) -> int:
    """Check and time as asked; the status.

    Raises:
        RefusedError: it cannot be done.
    """
    started, jobs = time.monotonic(), jobs_of(asked)
    state = evenkeel.kernels_available()["triton"]
    if not state.startswith("available"):
        raise RefusedError(f"the GPU kernels cannot run here: {state}")
    record, again = Record(asked.out, collect_info() | {"kernels": digest()}), goes_on(asked)
    try:
        waiting = record.carry_out(jobs, lambda: asked.seconds - (time.monotonic() - started))
    except BrokenError as part:
        print_failures(record, jobs)
        print(f"{part} broke the GPU for this process, so nothing else can run in it: {again}, {part} last")
        return 1
    if asked.check and not asked.quick:
        print("\n".join(verdict(record.found["checked"])))
    if asked.bench:
        print("\n".join(gpu_goals.table(record.found["results"])))
    failures = print_failures(record, jobs)
    if left := [job for job in jobs if job in waiting or lacks(job, record.outcome(job))]:
        print(f"{len(left)} parts are left: {again}")
    return 1 if failures else gpu_calls.UNFINISHED if left else 0


def print_failures(record: Record, jobs: list[Job]) -> int:
    """Print a line for each job in which something is wrong, and return their number."""
    if wrong := list(record.problems(jobs)):
        print(f"{len(wrong)} of {len(jobs)} failed:", *wrong, sep="\n  ")
    return len(wrong)


def digest() -> str:
    """Which kernels are checked and timed: a change of them is another record."""
    files = sorted((Path(evenkeel.__file__).parent / "kernels" / "triton").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def lacks(job: Job, outcome: Any) -> bool:
    """Whether a part of the check was left out that must not be."""
    return job.kind != "results" and job.name not in MAY_BE_LEFT_OUT and bool(outcome) and "left out" in outcome


def goes_on(asked: argparse.Namespace) -> str:
    """How to go on after an end too early."""
    return "the same command goes on with what is left" if asked.out else "with --out, the same command would go on"


def verdict(checked: dict[str, Any]) -> Iterator[str]:
    """Whether the whole check is green, and without which parts."""
    names = parts().keys()
    missing = [name for name in names if name not in checked]
    if is_green(checked, names):
        yield "the check is green: `MEASURED` in evenkeel.kernels._triton may be True with this record"
    else:
        yield f"the check is not green{f', {len(missing)} parts are missing' if missing else ''}"
    yield from (f"  without {line_of_check(name, o)}" for name, o in checked.items() if o and "left out" in o)


def main() -> int:
    """Do what the command line asks for, and return the status."""
    asked = arguments()
    try:
        return run(asked)
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; {goes_on(asked)}", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    carry_out(main)
