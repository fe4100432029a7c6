"""Time what Python does for a call of a GPU kernel, up to the driver; no GPU is needed.

Usage: python -m benchmarks.gpu_launch

Tensors are small and lie on the CPU, kernels are compiled for sm_90, and a driver stands in that starts nothing.
torch's own calls do their work on such tensors too, which takes less than a microsecond.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from evenkeel import functional as F
from evenkeel.kernels import _backends, _channels, _rows
from evenkeel.kernels.triton import _start

SHARED = 232_448  # bytes that a program may have


class Launcher:
    """Takes what the driver's launcher takes, and starts nothing."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        pass


class Driver(DriverBase):
    """A driver of one GPU that is not there."""

    launcher_cls = Launcher

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=lambda *arguments: (None, 0, 32, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": SHARED},
        )
        self.get_current_device, self.get_current_stream = (lambda: 0), (lambda device: 0)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError


def microseconds(call: Callable[[], object], repeats: int = 2000) -> float:
    """The median of the times of a call."""
    for _ in range(50):
        call()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - start)
    return median(taken) / 1e3


def calls() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Ours and torch's calls: inference, training forward, forward and backward."""
    t = torch.nn.functional
    x, w, b = torch.randn(4, 64), torch.ones(64), torch.zeros(64)
    maps, v, c = torch.randn(2, 8, 4, 4), torch.ones(8), torch.zeros(8)
    leaf, dy, map_leaf, map_dy = x.clone().requires_grad_(), x.clone(), maps.clone().requires_grad_(), maps.clone()
    ours, theirs = partial(F.layer_norm, backend="triton"), t.layer_norm
    mean, variance = torch.zeros(8), torch.ones(8)
    batch = partial(F.batch_norm, backend="triton")
    grad = torch.autograd.grad
    return {
        "layer_norm": (lambda: ours(x, (64,), w, b), lambda: theirs(x, (64,), w, b)),
        "layer_norm, forward and backward": (
            lambda: grad(ours(leaf, (64,), w, b), leaf, dy),
            lambda: grad(theirs(leaf, (64,), w, b), leaf, dy),
        ),
        "batch_norm in training": (
            lambda: batch(maps, mean, variance, v, c, True),
            lambda: t.batch_norm(maps, mean, variance, v, c, True),
        ),
        "batch_norm, forward and backward": (
            lambda: grad(batch(map_leaf, mean, variance, v, c, True), map_leaf, map_dy),
            lambda: grad(t.batch_norm(map_leaf, mean, variance, v, c, True), map_leaf, map_dy),
        ),
    }


def main() -> None:
    """Print the times: ours, ours by Triton's own start, torch's."""
    triton.runtime.driver.set_active(Driver())
    _backends.BACKENDS["triton"] = _backends.BACKENDS["triton"]._replace(supports=lambda *call: "")
    for doors in (_rows, _channels):
        doors.is_direct = lambda x: True
    for name, (ours, theirs) in calls().items():
        cached = microseconds(ours)
        for program in _start.PROGRAMS.values():
            program.direct = False
        plain = microseconds(ours)
        for program in _start.PROGRAMS.values():
            program.direct = True
        print(f"{name}: {cached:.1f} us, by Triton's own start {plain:.1f} us; torch {microseconds(theirs):.1f} us")


if __name__ == "__main__":
    main()
