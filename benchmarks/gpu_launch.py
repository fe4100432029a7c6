"""Time what Python does for a call of a GPU kernel, up to the driver; no GPU is needed.

Usage: python -m benchmarks.gpu_launch

Tensors are small and lie on the CPU, kernels are compiled for sm_90, and a driver stands in that starts nothing.
torch's own calls do their work on such tensors too, which takes less than a microsecond.
"""

from benchmarks.beginning import begin, carry_out

if __name__ == "__main__":
    begin()

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
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
            load_binary=lambda *arguments: ("module", 0, 32, 0, 1024),
            unload_module=lambda module: None,
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


def calls(layer_norm: Any, batch_norm: Any) -> dict[str, Callable[[], object]]:
    """Inference, training forward, forward and backward of two norms."""
    x, dy, w, b = (torch.ones(shape) for shape in ((4, 64), (4, 64), 64, 64))
    maps, gradient, v, c, mean, variance = (torch.ones(shape) for shape in ((2, 8, 4, 4), (2, 8, 4, 4), 8, 8, 8, 8))
    rows = [t.clone().requires_grad_() for t in (x, w, b)]
    channels = [t.clone().requires_grad_() for t in (maps, v, c)]
    grad = torch.autograd.grad

    def batch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return batch_norm(x, mean, variance, w, b, True)

    return {
        "layer_norm": lambda: layer_norm(x, (64,), w, b),
        "layer_norm, forward and backward": lambda: grad(layer_norm(rows[0], (64,), *rows[1:]), rows, dy),
        "batch_norm in training": lambda: batch(maps, v, c),
        "batch_norm, forward and backward": lambda: grad(batch(*channels), channels, gradient),
    }


def main() -> None:
    """Print the times: ours, ours by Triton's own start, torch's."""
    triton.runtime.driver.set_active(Driver())
    _backends.BACKENDS["triton"] = _backends.BACKENDS["triton"]._replace(supports=lambda *call: "")
    for doors in (_rows, _channels):
        doors.is_direct = lambda x: True  # type: ignore[attr-defined]
    _rows.differentiate = _channels.differentiate_channels = lambda *arguments: None  # of small tensors of the CPU
    f = torch.nn.functional
    theirs = calls(f.layer_norm, f.batch_norm)
    mine = calls(partial(F.layer_norm, backend="triton"), partial(F.batch_norm, backend="triton"))
    for name, ours in mine.items():
        cached = microseconds(ours)
        for program in _start.PROGRAMS.values():
            program.direct = False
        plain = microseconds(ours)
        for program in _start.PROGRAMS.values():
            program.direct = True
        print(
            f"{name}: {cached:.1f} us, by Triton's own start {plain:.1f} us; torch {microseconds(theirs[name]):.1f} us"
        )


if __name__ == "__main__":
    carry_out(main)
