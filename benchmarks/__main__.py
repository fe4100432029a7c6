"""Time the last-axis norms against a plain memory copy and torch.

Usage: python -m benchmarks [--rows N] [--features N] [--dtype float32] [--threads N] [--repeats N]

Times are medians, in multiples of the time `torch.Tensor.copy_` takes for the same tensor on the same threads: the
copy is the least that a norm has to move, forward. Forward and backward together move at least 2.5 copies.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import evenkeel as ek

NORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "layer_norm": (ek.functional.layer_norm, torch.nn.functional.layer_norm),
    "rms_norm": (ek.functional.rms_norm, torch.nn.functional.rms_norm),
}


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call, its first two runs left out."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def both_passes(norm: Callable[..., Tensor], x: Tensor, weight: Tensor, gradient: Tensor) -> Callable[[], object]:
    """Return a call that runs a norm forward and backward."""
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return lambda: torch.autograd.grad(norm(leaves[0], weight.shape, leaves[1]), leaves, gradient)


def main() -> None:
    """Print one line for each norm, implementation and pass."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64", "bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    x = torch.randn(options.rows, options.features).to(getattr(torch, options.dtype))
    weight = torch.ones(options.features, dtype=x.dtype)
    gradient, target = torch.randn_like(x), torch.empty_like(x)
    copy = median_seconds(lambda: target.copy_(x), options.repeats)
    print(f"{tuple(x.shape)} {options.dtype}, {options.threads} threads; one copy takes {copy * 1e3:.3f} ms")
    print(f"{'norm':12}{'by':10}{'forward':>10}{'forward + backward':>20}")
    for name, implementations in NORMS.items():
        for owner, norm in zip(("evenkeel", "torch"), implementations, strict=True):
            with torch.no_grad():
                forward = median_seconds(partial(norm, x, weight.shape, weight), options.repeats)
            both = median_seconds(both_passes(norm, x, weight, gradient), options.repeats)
            print(f"{name:12}{owner:10}{forward / copy:10.2f}{both / copy:20.2f}")


if __name__ == "__main__":
    main()
