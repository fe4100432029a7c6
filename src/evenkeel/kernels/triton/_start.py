"""How a kernel is started: its compiled code is found by a short key.

Triton binds and classifies every argument of every start anew, which takes longer than many of these kernels run. Here
what the code depends on is the key of a table: dtypes, alignments, and whether an integer has 64 bits.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.runtime import driver

from evenkeel.kernels.triton._launch import ALIGNMENT, warps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

FIRST_WIDE = 2**31  # integers from here on have 64 bits
# since then a compiled kernel is called with all arguments in their order, the compile-time ones too
DIRECT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)
HERE: Any = contextlib.nullcontext()


def on_device(x: Tensor) -> Any:
    """A context in which kernels are started where a tensor lies."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return HERE
    return torch.cuda.device(x.device)


def kind_of(t: Tensor) -> Any:
    """What the code for NVIDIA's GPUs depends on of a tensor."""
    return t.dtype if t.data_ptr() % ALIGNMENT == 0 else (t.dtype,)


def kind_of_bounded(t: Tensor) -> Any:
    """The same for AMD's, whose code may have offsets of 32 bits."""
    return t.dtype, t.data_ptr() % ALIGNMENT == 0, t.untyped_storage().nbytes() < FIRST_WIDE


KIND = kind_of_bounded if torch.version.hip else kind_of


@cache
def threads_of_warp() -> int:
    """How many threads a warp has: 32, or 64 on AMD's GPUs for servers."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).warp_size if torch.version.hip else 32


class Program:
    """A kernel with its compile-time arguments.

    Its other arguments are tensors, then integers, none of which is specialized, then floats.
    """

    def __init__(self, kernel: Any, warps: int, **constants: Any) -> None:
        self.kernel, self.warps = kernel, warps
        # what is fused says so: one order of roundings on every GPU
        self.constants = {
            **constants,
            "num_warps": warps_of(warps, threads_of_warp()),
            "enable_fp_fusion": False,
        }
        self.compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}
        self.direct = DIRECT and isinstance(kernel, triton.JITFunction)

    def __call__(
        self,
        grid: tuple[int, ...],
        tensors: Sequence[Tensor | None],
        integers: Sequence[int],
        floats: Sequence[float] = (),
    ) -> None:
        """Start it on the current device and stream."""
        arguments = (*tensors, *integers, *floats)
        if not self.direct:
            self.kernel[grid](*arguments, **self.constants)
            return
        wide = integers and max(integers) >= FIRST_WIDE and tuple(number >= FIRST_WIDE for number in integers)
        key = (driver.active.get_current_device(), wide, *[t if t is None else KIND(t) for t in tensors])
        found = self.compiled.get(key)
        if found is not None:
            kernel, rest = found
            kernel[(*grid, 1, 1)](*arguments, *rest)
            return
        kernel = self.kernel[grid](*arguments, **self.constants)
        if kernel is not None:
            self.compiled[key] = kernel, tuple(self.constants[name] for name in self.kernel.arg_names[len(arguments) :])


PROGRAMS: dict[tuple[str, int, str], Program] = {}


def program(kernel: Any, warps: int = 4, **constants: Any) -> Program:
    """The one program of a kernel with these compile-time arguments."""
    key = kernel.__name__, warps, repr(constants)
    if key not in PROGRAMS:
        PROGRAMS[key] = Program(kernel, warps, **constants)
    return PROGRAMS[key]
