"""The doors to the row operators: small tensors, and those on a GPU, go past torch's dispatcher.

It takes longer than the work on the ones and the start of a kernel for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel.kernels._operators import MISSING
from evenkeel.kernels._small import differentiate, normalize
from evenkeel.kernels._state import unobserved
from evenkeel.kernels._triton import is_direct, kernels

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import RowOptions

    Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# what the overload's own Python method calls: 0.9 of 4.4 µs less for a decoding step's one row
_inference: Any = None if MISSING else torch.ops.evenkeel.rows_inference.default._op


def normalize_small(
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    options: RowOptions,
    with_statistics: bool,
) -> Any:
    """Normalize small, dense CPU tensors over the trailing shape: y, or y and the statistics.

    None for any other tensors, and for those that do not fit: they are checked as they are read, in a third of the
    time that Python's checks take.
    """
    return normalize(x, shape, weight, bias, options, with_statistics) if unobserved() else None


def rows_inference(x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, options: RowOptions) -> Tensor:
    """Normalize the trailing axes where no gradient will be asked for."""
    operator = torch.ops.evenkeel.rows_inference.default if torch.compiler.is_compiling() else _inference
    if is_direct(x):
        operator = kernels().rows_inference
    y: Tensor = operator(x, weight, bias, axes, *options)
    return y


def rows_forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    options: RowOptions,
    recomputable: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the sum with a residual, and the statistics; ``recomputable`` asks for a y to go back from."""
    operator = kernels().rows_forward if is_direct(x) else torch.ops.evenkeel.rows_forward.default
    results: tuple[Tensor, Tensor, Tensor] = operator(x, residual, weight, bias, axes, *options, recomputable)
    return results


def rows_backward(
    dy: Tensor,
    dsum: Tensor | None,
    saved: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor],
    axes: int,
    options: RowOptions,
    needed: tuple[bool, bool, bool, bool],
    from_output: bool,
) -> Gradients:
    """dx, dresidual, dweight and dbias; one that is not needed is empty or None.

    ``saved`` are x (or the rounded sum, or the output where ``from_output``), what has to be added to it again,
    weight, bias and the statistics. dx has dy's dtype, unless the norm rounds early; dresidual is empty where it would
    have the same dtype, for it has the same values.
    """
    x, residual, weight, bias, statistics = saved
    alone = dsum is None and residual is None and not needed[1] and (options.early or dy.dtype == x.dtype)
    if alone and x.is_cpu and unobserved():
        small = differentiate(
            dy, x, weight, bias, statistics, axes, options, needed[0], needed[2], needed[3], from_output
        )
        if small is not None:
            return small[0], None, small[1], small[2]
    operator = kernels().rows_backward if is_direct(x) else torch.ops.evenkeel.rows_backward.default
    gradients: Gradients = operator(dy, dsum, *saved, axes, *options, *needed, from_output)
    return gradients
