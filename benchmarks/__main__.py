"""Time the last-axis norms against a plain memory copy, torch eager and torch.compile.

Usage: python -m benchmarks [--rows N] [--features N] [--dtype float32] [--threads N] [--repeats N] [--no-compile]

Every repeat runs each call once, in turn, so that other load on the machine disturbs all of them alike; times are
medians, printed in multiples of the time of `torch.Tensor.copy_` for the same tensor in the same run. The copy moves
each element twice; forward and backward together move at least five, 2.5 copies. Outputs are allocated anew in each
call, by every contender; the copy writes where it wrote before.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import evenkeel as ek

Call = Callable[[], object]
NORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "layer_norm": (ek.functional.layer_norm, torch.nn.functional.layer_norm),
    "rms_norm": (ek.functional.rms_norm, torch.nn.functional.rms_norm),
}


def median_seconds(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """Return the median time of each call, interleaved; the first two rounds warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def contenders(x: Tensor, *, compiled: bool) -> dict[str, Call]:
    """Return the calls to time: "norm | owner | pass" and the copy."""
    features, gradient, target = x.shape[-1:], torch.randn_like(x), torch.empty_like(x)
    weight, bias = torch.ones(features, dtype=x.dtype), torch.zeros(features, dtype=x.dtype)
    calls: dict[str, Call] = {"copy": lambda: target.copy_(x)}
    for name, (ours, theirs) in NORMS.items():
        affine = (weight, bias) if name == "layer_norm" else (weight,)
        owners = {"evenkeel": ours, "torch": theirs}
        if compiled:
            owners["torch.compile"] = torch.compile(theirs, dynamic=False)
        for owner, norm in owners.items():
            calls[f"{name} | {owner} | forward"] = forward(norm, x, affine)
            calls[f"{name} | {owner} | both"] = both_passes(norm, x, affine, gradient)
    return calls


def forward(norm: Callable[..., Tensor], x: Tensor, affine: tuple[Tensor, ...]) -> Call:
    """Return a call that runs a norm without gradients."""

    def call() -> None:
        with torch.no_grad():
            norm(x, x.shape[-1:], *affine)

    return call


def both_passes(norm: Callable[..., Tensor], x: Tensor, affine: tuple[Tensor, ...], gradient: Tensor) -> Call:
    """Return a call that runs a norm forward and backward."""
    leaves = tuple(t.clone().requires_grad_() for t in (x, *affine))
    return lambda: torch.autograd.grad(norm(leaves[0], x.shape[-1:], *leaves[1:]), leaves, gradient)


def main() -> None:
    """Print one line for each norm and owner."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64", "bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    x = torch.randn(options.rows, options.features).to(getattr(torch, options.dtype))
    seconds = median_seconds(contenders(x, compiled=not options.no_compile), options.repeats)
    copy = seconds.pop("copy")
    print(f"{tuple(x.shape)} {options.dtype}, {options.threads} threads; one copy takes {copy * 1e3:.3f} ms")
    print(f"{'norm':12}{'by':16}{'forward':>10}{'of torch':>10}{'forward + backward':>20}{'of torch':>10}")
    for name in NORMS:
        for owner in dict.fromkeys(key.split(" | ")[1] for key in seconds):
            one, both = (seconds[f"{name} | {owner} | {part}"] for part in ("forward", "both"))
            torch_one, torch_both = (seconds[f"{name} | torch | {part}"] for part in ("forward", "both"))
            ratios = f"{one / copy:10.2f}{one / torch_one:10.2f}{both / copy:20.2f}{both / torch_both:10.3f}"
            print(f"{name:12}{owner:16}{ratios}")


if __name__ == "__main__":
    main()
