"""Check the GPU kernels, and time them against a copy and their peers, where there is a GPU.

Usage: python -m benchmarks.gpu --check          values in ulps against float64, bits across batches and reruns
       python -m benchmarks.gpu --bench          times as shares of the bandwidth of a copy
       python -m benchmarks.gpu --check --bench --out docs/measurements/gpu.json

Without a GPU it says so in one line and ends with status 2. Times are medians between CUDA events, with the
second-level cache overwritten before each; the eager latency is measured apart. Where compute-sanitizer is installed,
`--check` runs `--check --quick` under it too. `docs/build_performance.py` draws what `--out` has written.
"""

import argparse
import importlib
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

import evenkeel
from benchmarks import gpu_calls, gpu_tables
from evenkeel import functional as F
from evenkeel.cli.info import collect_info
from evenkeel.report import write_text_atomically
from evenkeel.testing import ulp_error

ROWS = (1, 512, 4096, 32768)
FEATURES = (256, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
DTYPES = (torch.bfloat16, torch.float32)
LIMITS = {torch.float32: 3.0, torch.bfloat16: 0.51, torch.float16: 0.51}
SAMPLES: dict[str, Callable[..., Tensor]] = {
    "N(0,1)": lambda shape, **to: torch.randn(shape, **to),
    "mean 1e4 spread 1": lambda shape, **to: 1e4 + torch.randn(shape, **to),
    "1e18": lambda shape, **to: 1e18 * torch.randn(shape, **to),
    "1e-20": lambda shape, **to: 1e-20 * torch.randn(shape, **to),
}
TENSORS = 7  # of x's size, that are held at once when a norm is timed
# (batch, channels, height, width) of a ResNet 50 and of a U-Net that draws pictures
RESNET = ((64, 64, 112, 112), (64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14), (64, 2048, 7, 7))
UNET = ((8, 320, 64, 64), (8, 640, 32, 32), (8, 1280, 16, 16), (8, 2560, 8, 8))


class Norm(NamedTuple):
    """A norm under one signature.

    Attributes:
        call: (x, w, b, **options) -> y.
        rows: a view of y in which the last axis shares a statistic.
        alone: whether a sample's result does not depend on the others.
        limit: of R, as a multiple of that of the dtype.
    """

    call: Callable[..., Tensor]
    rows: Callable[[Tensor], Tensor] = lambda t: t
    alone: bool = True
    limit: float = 1.0


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
    mean = torch.linspace(-1, 1, x.shape[1], device=x.device)
    return F.batch_norm(x, mean, 1 + mean, w, b, eps=0.1, **options)


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
    "inference relu": Norm(lambda x, w, b, **o: inference(x, w, b, activation="relu", **o), by_channel),
    "instance_norm": Norm(lambda x, w, b, **o: F.instance_norm(x, weight=w, bias=b, **o), lambda t: t.flatten(2)),
    "group_norm silu": Norm(
        lambda x, w, b, **o: F.group_norm(x, 2, w, b, activation="silu", **o),
        lambda t: t.unflatten(1, (2, -1)).flatten(2),
    ),
    "group_norm last": Norm(
        lambda x, w, b, **o: F.group_norm(channels_last(x), 2, w, b, **o),
        lambda t: t.unflatten(1, (2, -1)).flatten(2),
    ),
}
# what is checked beside them
ROW_MODES = {
    "layer_norm outside, offset": Norm(
        lambda x, w, b, **o: F.layer_norm(x, x.shape[-1:], w, b, eps_mode="outside", weight_offset=1.0, **o)
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
    exact = results(norm.call, x.double(), w.double(), b.double(), dy, backend="reference")
    views = (norm.rows, norm.rows, *(lambda t: t,) * (len(mine) - 2))  # y, dx; the others are vectors
    errors = [ulp_error(view(a), view(e)) for view, a, e in zip(views, mine, exact, strict=True)]
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


def check(device: str = "cuda", backend: str = "triton", quick: bool = False) -> list[str]:
    """Everything that is wrong, on fresh random inputs."""
    rows: tuple[tuple[int, ...], ...] = ((700, 256), (300, 1000), (130, 4096), (37, 40000), (2, 262144))
    maps: tuple[tuple[int, ...], ...] = ((16, 64, 56, 56), (5, 96, 31, 31), (40, 512, 7, 7), (2, 320, 128, 128))
    if quick:
        rows, maps = ((37, 256), (5, 1000), (3, 20000)), ((4, 64, 8, 8), (3, 6, 31, 31), (40, 66, 7, 7))
    cases = [*itertools.product(ROW_NORMS | ROW_MODES, rows), *itertools.product(CHANNEL_NORMS | CHANNEL_MODES, maps)]
    samples = itertools.product(cases, LIMITS, SAMPLES)
    found = [problem for (n, s), d, sample in samples for problem in problems(n, s, d, sample, device, backend)]
    rows_calls, maps_calls = ({name: n.call for name, n in norms.items()} for norms in (ROW_NORMS, CHANNEL_NORMS))
    found += gpu_tables.problems(device, backend, quick)
    return found + gpu_calls.problems(rows_calls, maps_calls, device, backend, quick)


Contenders = Iterator[tuple[str, Callable[[Tensor], Tensor]]]


# where the peers' functions are, if they are installed, and how they are called
ELSEWHERE: dict[str, tuple[tuple[str, str, str, Callable[..., Tensor]], ...]] = {
    "layer_norm": (
        ("Liger", "liger_kernel.ops.layer_norm", "LigerLayerNormFunction", lambda f, x, w, b: f.apply(x, w, b, 1e-5)),
        ("quack", "quack.layernorm", "layernorm", lambda f, x, w, b: f(x, w.float(), eps=1e-5)),  # it knows no bias
    ),
    "rms_norm": (
        ("Liger", "liger_kernel.ops.rms_norm", "LigerRMSNormFunction", lambda f, x, w, b: f.apply(x, w, 1e-6)),
        ("quack", "quack", "rmsnorm", lambda f, x, w, b: f(x, w, eps=1e-6)),
    ),
}


def peers(name: str, w: Tensor, b: Tensor) -> Contenders:
    """The contenders of a row norm: evenkeel, torch eager and compiled, and what else can be imported."""
    f = torch.nn.functional

    def eager(x: Tensor) -> Tensor:
        return f.rms_norm(x, x.shape[-1:], w, 1e-6) if name == "rms_norm" else f.layer_norm(x, x.shape[-1:], w, b)

    yield from torch_peers(lambda x: ROW_NORMS[name].call(x, w, b, backend="triton"), eager)
    for peer, module, function, call in ELSEWHERE[name]:
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError):
            continue
        yield peer, partial(lambda call, found, x: call(found, x, w, b), call, found)


def torch_peers(mine: Callable[[Tensor], Tensor], eager: Callable[[Tensor], Tensor]) -> Contenders:
    """evenkeel, torch eager and torch compiled."""
    yield "evenkeel", mine
    yield "torch", eager
    yield "torch.compile", torch.compile(eager, dynamic=False)


def channel_peers(name: str, w: Tensor, b: Tensor) -> Contenders:
    """The contenders of BatchNorm with ReLU in training, or of GroupNorm with SiLU."""
    f = torch.nn.functional
    if name == "batch_norm":
        mean, variance = torch.zeros_like(w).detach(), torch.ones_like(w).detach()
        return torch_peers(
            lambda x: F.batch_norm(x, mean, variance, w, b, True, activation="relu", backend="triton"),
            lambda x: f.relu(f.batch_norm(x, mean, variance, w, b, True)),
        )
    return torch_peers(
        lambda x: F.group_norm(x, 32, w, b, activation="silu", backend="triton"),
        lambda x: f.silu(f.group_norm(x, 32, w, b)),
    )


def on_device_seconds(call: Callable[[], object], repeats: int = 30) -> float:
    """The median time of a call between two CUDA events, the second-level cache overwritten before each."""
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        call()
    pairs = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in pairs) / 1e3


def eager_seconds(call: Callable[[], object], repeats: int = 200) -> float:
    """The time of a call as Python sees it, without waiting for the GPU."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    taken = (time.perf_counter() - start) / repeats
    torch.cuda.synchronize()
    return taken


def bench_shape(shape: tuple[int, ...], dtype: torch.dtype, norm: str = "layer_norm") -> dict[str, Any]:
    """Forward, backward and both of every contender, in seconds and as shares of a copy's bandwidth."""
    x = torch.randn(shape, device="cuda", dtype=dtype)
    name, _, layout = norm.partition(" ")
    x = channels_last(x) if layout else x
    w, b = (torch.randn(shape[1], device="cuda", dtype=dtype).requires_grad_() for _ in range(2))
    dy, target = torch.randn_like(x), torch.empty_like(x)
    copy = on_device_seconds(lambda: target.copy_(x))  # two elements moved; the forward moves two, the backward three
    record: dict[str, Any] = {"norm": norm, "shape": shape, "dtype": str(dtype), "copy": copy}
    torch._dynamo.reset()  # or it would give up compiling after a few shapes, and time eager code
    for contender, function in peers(name, w, b) if name in ROW_NORMS else channel_peers(name, w, b):
        leaf = x.clone().requires_grad_()
        leaves = (leaf, w) if name == "rms_norm" else (leaf, w, b)

        def both(function: Callable[[Tensor], Tensor] = function, leaves: tuple[Tensor, ...] = leaves) -> object:
            return torch.autograd.grad(function(leaves[0]), leaves, dy)

        found: dict[str, Any] = {}
        record[contender] = found
        try:
            with torch.no_grad():
                found["forward"] = on_device_seconds(partial(function, x))
                found["forward share"] = copy / found["forward"]
                found["eager"] = eager_seconds(partial(function, x))
            y = function(leaf)
            found["backward"] = on_device_seconds(partial(torch.autograd.grad, y, leaves, dy, retain_graph=True))
            found["backward share"] = 1.5 * copy / found["backward"]
            found["both"] = on_device_seconds(both)
        except Exception as error:  # a peer that cannot run a shape, or not backward, is a result too
            found["error"] = str(error).splitlines()[0][:200]
    return record


def bench_table(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> dict[str, Any]:
    """The times of every contender on a table or pictures, beside that of a copy of as many bytes."""
    x = gpu_tables.sample(shape, dtype, "cuda")
    half = torch.empty(gpu_tables.moved(kind, x) // 2, dtype=torch.uint8, device="cuda")
    copy = on_device_seconds(partial(torch.empty_like(half).copy_, half))
    record: dict[str, Any] = {"norm": kind, "shape": shape, "dtype": str(dtype), "copy": copy}
    for contender, call in gpu_tables.contenders(kind, x):
        taken = on_device_seconds(call)
        record[contender] = {"forward": taken, "eager": eager_seconds(call), "forward share": copy / taken}
    return record


def line_of(record: dict[str, Any]) -> str:
    """A shape's line: shares of the copy's bandwidth, forward and backward, of each contender."""
    shape = "x".join(map(str, record["shape"]))
    cells = [f"{record['norm']} {shape} {record['dtype']}: copy {record['copy'] * 1e6:.1f} us"]
    for name, found in record.items():
        if isinstance(found, dict):
            shares = [f"{value:.2f}" for key, value in found.items() if key.endswith("share")]
            cells.append(f"{name} {' / '.join(shares)} {found.get('error', '')}".rstrip())
    return "; ".join(cells)


def bench() -> list[dict[str, Any]]:
    """A record for each shape, told as it comes."""
    cases: list[tuple[str, tuple[int, ...]]] = list(itertools.product(ROW_NORMS, itertools.product(ROWS, FEATURES)))
    for layout in ("", " last"):
        cases += [("batch_norm" + layout, shape) for shape in RESNET]
        cases += [("group_norm" + layout, shape) for shape in UNET]
    records = []
    for dtype, (norm, shape) in itertools.product(DTYPES, cases):
        needed = TENSORS * math.prod(shape) * dtype.itemsize
        if needed > torch.cuda.mem_get_info()[0]:
            print(f"{norm} {shape} {dtype}: left out, it takes {needed / 2**30:.0f} GiB", flush=True)
            continue
        records.append(bench_shape(shape, dtype, norm))
        print(line_of(records[-1]), flush=True)
        torch.cuda.empty_cache()
    for shape, kind in gpu_tables.TIMED:
        for dtype in (torch.uint8,) if kind == "pictures" else DTYPES:
            records.append(bench_table(shape, dtype, kind))
            print(line_of(records[-1]), flush=True)
            torch.cuda.empty_cache()
    return [*records, bench_training()]


def bench_training() -> dict[str, Any]:
    """The time of a training step with each owner's norms, one after the other."""
    record: dict[str, Any] = {"norm": "training step"}
    for owner, step in gpu_calls.training_steps():
        record[owner] = {"step": on_device_seconds(step)}
        print(f"training step, {owner}: {record[owner]['step'] * 1e3:.2f} ms", flush=True)
    return record


def main() -> int:
    """Check and time as asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="check values and bits")
    parser.add_argument("--bench", action="store_true", help="measure times")
    parser.add_argument("--quick", action="store_true", help="check few shapes, for compute-sanitizer")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    state = evenkeel.kernels_available()["triton"]
    if not state.startswith("available"):
        print(f"the GPU kernels cannot run here: {state}")
        return 2
    found: dict[str, Any] = {"info": collect_info()}
    if arguments.check:
        found["problems"] = check(quick=arguments.quick)
        print("\n".join(found["problems"]) or "check: green")
    if arguments.bench:
        found["results"] = bench()
    if arguments.out:
        write_text_atomically(arguments.out, json.dumps(found, indent=1) + "\n")
    return int(bool(found.get("problems")))


if __name__ == "__main__":
    sys.exit(main())
