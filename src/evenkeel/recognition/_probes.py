"""Inputs that tell norms apart, and how far two results lie from each other."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

__all__ = ["RefusedError", "attempt", "distance", "gate_for", "isolated", "largest", "probes", "random_values", "ulps"]

SCALES = (1e4, 1.0, 1e-4, 1e-2, 1e2, 1e-15, 1e-8, 1e6)
SHIFT = 8.0  # in standard deviations: enough to tell what is centred, and few bits of float32


class RefusedError(Exception):
    """The module is no norm that a spec describes; the message says why."""


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run modules without marks on the surroundings: random numbers, warnings, modes."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=devices),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        # the mode of a default device takes part in every call
        contextlib.nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"),
    ):
        warnings.simplefilter("ignore")
        yield


def attempt(module: nn.Module, *inputs: Tensor) -> Tensor:
    """Call a copy on copies of inputs.

    Raises:
        RefusedError: it fails, or returns something else than a floating tensor.
    """
    try:
        y = module(*(x.clone() for x in inputs))
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RefusedError(f"it raises {type(error).__name__}: {line[:120]}") from error
    if not isinstance(y, torch.Tensor):
        raise RefusedError(f"it returns a {type(y).__name__}, not a tensor")
    if not y.dtype.is_floating_point:
        raise RefusedError(f"it returns a tensor of {y.dtype}")
    return y.detach()


def random_values(shape: Sequence[int], seed: int) -> Tensor:
    """Normal numbers in float64, the same in every process."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gate_for(x: Tensor) -> Tensor:
    """The gate that goes with an input: the same for inputs of one shape."""
    return random_values(x.shape, 77).to(x.dtype)


def probes(shape: Sequence[int], dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs by what they tell: the place and size of eps, centring, magnitudes, the largest result there is."""
    base = random_values(shape, 1).float().double()
    found = {f"scale {scale:g}": base * scale for scale in SCALES}
    found["zeros"] = torch.zeros_like(base)
    found["shift"] = base + SHIFT
    found["negative shift"] = base * 0.5 - SHIFT / 2
    found["long tails"] = random_values(shape, 2) ** 5
    found["one large element"] = torch.zeros_like(base)
    found["one large element"].view(-1)[base.numel() // 2] = 3.0
    found["positive"] = random_values(shape, 3).abs() + 0.1
    if dtype == torch.float16:
        found = {name: x for name, x in found.items() if x.abs().max() < 6e4 and x.square().sum() < 6e4}
    return {name: x.to(dtype) for name, x in found.items()}


def largest(y: Tensor) -> Tensor:
    """The largest finite size, 0 if there is none."""
    sizes = y.double().abs()
    return torch.where(sizes.isfinite(), sizes, 0.0).max() if y.numel() else y.new_zeros((), dtype=torch.float64)


def distance(y: Tensor, expected: Tensor) -> float:
    """The largest difference, in parts of the largest expected value; infinite where one alone is finite."""
    if y.shape != expected.shape:
        return float("inf")
    y, expected = y.double(), expected.double()
    strange = ~(y.isfinite() & expected.isfinite())
    if strange.any() and not torch.equal(torch.nan_to_num(y[strange]), torch.nan_to_num(expected[strange])):
        return float("inf")
    error = torch.where(strange, 0.0, (y - expected).abs()).max() if y.numel() else torch.zeros(())
    size = largest(expected)
    return float(error / size) if size > 0 else (0.0 if error == 0 else float("inf"))


def ulps(y: Tensor, expected: Tensor) -> float:
    """`distance` in units of the last place of the result's dtype."""
    return distance(y, expected) / torch.finfo(y.dtype).eps
