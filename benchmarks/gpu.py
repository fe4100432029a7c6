"""Check the GPU kernels of row norms, and time them against a copy and their peers, on a machine with a GPU.

Usage: python -m benchmarks.gpu --check          values in ulps against float64, bits across batches and reruns
       python -m benchmarks.gpu --bench          times as shares of the bandwidth of a copy
       python -m benchmarks.gpu --check --bench --out docs/measurements/gpu.json

Without a GPU it says so in one line and ends with status 2. Times are medians between CUDA events, with the
second-level cache overwritten before each; the eager latency is measured apart. Under compute-sanitizer:
`compute-sanitizer --tool memcheck python -m benchmarks.gpu --check --quick`.
"""

import argparse
import importlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import evenkeel
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
Norm = Callable[..., Tensor]
NORMS: dict[str, Norm] = {
    "layer_norm": lambda x, w, b, **o: F.layer_norm(x, x.shape[-1:], w, b, **o),
    "rms_norm": lambda x, w, b, **o: F.rms_norm(x, x.shape[-1:], w, eps=1e-6, **o),
}
LARGEST = 2**31  # elements of a timed tensor


def results(norm: Norm, x: Tensor, w: Tensor, b: Tensor, dy: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """y, dx, dweight and, where there is one, dbias."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    y = norm(*leaves, **options)
    gradients = torch.autograd.grad(y, leaves, dy.to(y.dtype), allow_unused=True)
    return (y.detach(), *(g for g in gradients if g is not None))


def poison(shape: tuple[int, ...], **to: Any) -> None:
    """Fill the memory that the next results will get with NaN."""
    for _ in range(4):
        torch.full(shape, float("nan"), **to)


def problems(
    name: str, shape: tuple[int, int], dtype: torch.dtype, sample: str, device: str, backend: str
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
    mine = results(norm, x, w, b, dy, backend=backend)
    exact = results(norm, x.double(), w.double(), b.double(), dy, backend="reference")
    errors = [ulp_error(a, e) for a, e in zip(mine, exact, strict=True)]
    found = [f"{case}: R = {error:.2f}" for error in errors if not error <= LIMITS[dtype]]
    again = results(norm, x, w, b, dy, backend=backend)
    if not all(torch.equal(first, second) for first, second in zip(mine, again, strict=True)):
        found.append(f"{case}: another run has other bits")
    for row in {0, shape[0] // 2, shape[0] - 1}:
        one = slice(row, row + 1)
        y, dx, *_ = results(norm, x[one], w, b, dy[one], backend=backend)
        if not (torch.equal(y[0], mine[0][row]) and torch.equal(dx[0], mine[1][row])):
            found.append(f"{case}: row {row} alone has other bits")
    return found


def check(device: str = "cuda", backend: str = "triton", quick: bool = False) -> list[str]:
    """Everything that is wrong, on fresh random inputs."""
    shapes = (
        ((37, 256), (5, 1000), (3, 20000))
        if quick
        else ((700, 256), (300, 1000), (130, 4096), (37, 40000), (2, 262144))
    )
    cases = itertools.product(NORMS, shapes, LIMITS, SAMPLES)
    return [problem for n, s, d, sample in cases for problem in problems(n, s, d, sample, device, backend)]


def peers(dtype: torch.dtype, w: Tensor, b: Tensor) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """The contenders of LayerNorm: evenkeel, torch eager and compiled, and what else can be imported."""
    eager: Callable[[Tensor], Tensor] = lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)  # noqa: E731
    yield "evenkeel", lambda x: F.layer_norm(x, x.shape[-1:], w, b, backend="triton")
    yield "torch", eager
    yield "torch.compile", torch.compile(eager, dynamic=False)
    for module, name in (("liger_kernel.ops.layer_norm", "LigerLayerNormFunction"), ("quack", "layernorm")):
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        if module == "quack":
            yield "quack", partial(lambda f, x: f(x, w.float(), b.float(), eps=1e-5), function)
        else:
            yield "Liger", partial(lambda f, x: f.apply(x, w, b, 1e-5), function)


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


def bench_shape(rows: int, features: int, dtype: torch.dtype) -> dict[str, Any]:
    """Forward, backward and both of every contender, in seconds and as shares of a copy's bandwidth."""
    x = torch.randn(rows, features, device="cuda", dtype=dtype)
    w, b = (torch.randn(features, device="cuda", dtype=dtype).requires_grad_() for _ in range(2))
    dy, target = torch.randn_like(x), torch.empty_like(x)
    copy = on_device_seconds(lambda: target.copy_(x))  # two elements moved; the forward moves two, the backward three
    record: dict[str, Any] = {"rows": rows, "features": features, "dtype": str(dtype), "copy": copy}
    for name, function in peers(dtype, w, b):
        leaf = x.clone().requires_grad_()

        def both(function: Callable[[Tensor], Tensor] = function, leaf: Tensor = leaf) -> object:
            return torch.autograd.grad(function(leaf), (leaf, w, b), dy)

        try:
            with torch.no_grad():
                forward = on_device_seconds(partial(function, x))
                latency = eager_seconds(partial(function, x))
            y = function(leaf)
            backward = on_device_seconds(partial(torch.autograd.grad, y, (leaf, w, b), dy, retain_graph=True))
            together = on_device_seconds(both)
        except Exception as error:  # a peer that cannot run a shape is a result too
            record[name] = {"error": str(error).splitlines()[0][:200]}
            continue
        record[name] = {"forward": forward, "backward": backward, "both": together, "eager": latency}
        record[name] |= {"forward share": copy / forward, "backward share": 1.5 * copy / backward}
    return record


def line_of(record: dict[str, Any]) -> str:
    """A shape's line: shares of the copy's bandwidth, forward and backward, of each contender."""
    cells = [f"{record['rows']}x{record['features']} {record['dtype']}: copy {record['copy'] * 1e6:.1f} us"]
    for name, found in record.items():
        if isinstance(found, dict):
            told = (
                f"{found['forward share']:.2f} / {found['backward share']:.2f}" if "both" in found else found["error"]
            )
            cells.append(f"{name} {told}")
    return "; ".join(cells)


def bench() -> list[dict[str, Any]]:
    """A record for each shape, told as it comes."""
    records = []
    for dtype, rows, features in itertools.product(DTYPES, ROWS, FEATURES):
        if rows * features <= LARGEST:
            records.append(bench_shape(rows, features, dtype))
            print(line_of(records[-1]), flush=True)
            torch.cuda.empty_cache()
    return records


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
