"""The doors to the row operators: small tensors go past torch's dispatcher, which takes longer than their work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel.kernels._backends import choose
from evenkeel.kernels._operators import MISSING
from evenkeel.kernels._small import differentiate, normalize
from evenkeel.kernels._state import composite_required, unobserved

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import NormSpec, RowOptions

    Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# what the overload's own Python method calls: 0.9 of 4.4 µs less for a decoding step's one row
_inference: Any = None if MISSING else torch.ops.evenkeel.rows_inference.default._op


def fits(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the trailing sizes, the parameters' shapes and the dtypes go together."""
    axes = len(shape)
    sizes = x.shape
    return (
        axes > 0
        and (sizes[-axes:] == shape if axes > 1 else len(sizes) > 0 and sizes[-1] == shape[0])
        and x.dtype.is_floating_point
        and (weight is None or (weight.shape == shape and weight.dtype.is_floating_point))
        and (bias is None or (bias.shape == shape and bias.dtype.is_floating_point))
    )


def rows_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...], spec: NormSpec, backend: str
) -> Tensor | None:
    """Normalize over the trailing shape where no gradient will be asked for.

    None where the arguments do not fit, or where the reference has to run. Small tensors are checked as they are read,
    in a third of the time of these checks.
    """
    options = spec.row_options
    if backend == "auto" and x.is_cpu and unobserved():
        y: Tensor | None = normalize(x, shape, weight, bias, options, False)
        if y is not None:
            return y
    if composite_required() or not fits(x, shape, weight, bias):
        return None
    if choose("rows", backend, spec, x, weight, bias) is None:
        return None
    operator = torch.ops.evenkeel.rows_inference.default if torch.compiler.is_compiling() else _inference
    result: Tensor = operator(x, weight, bias, len(shape), *options)
    return result


def rows_forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    options: RowOptions,
    recomputable: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Normalize x, or its sum with the residual, over the trailing axes: y, that sum, and the statistics.

    ``recomputable`` refuses parameters with which the output does not determine the normalized rows.
    """
    if residual is None and not recomputable and x.is_cpu and unobserved():
        small = normalize(x, axes, weight, bias, options, True)
        if small is not None:
            return small[0], None, small[1]
    return torch.ops.evenkeel.rows_forward.default(x, residual, weight, bias, axes, *options, recomputable)


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
    operator = torch.ops.evenkeel.rows_backward.default
    gradients: Gradients = operator(dy, dsum, *saved, axes, *options, *needed, from_output)
    return gradients
