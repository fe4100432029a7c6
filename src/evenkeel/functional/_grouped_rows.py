"""Row norms with more around their kernel: a statistic for each of several equal parts of a row, and a gate."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING

import torch

from evenkeel._errors import BackendError, InvalidArgumentError, InvalidInputError
from evenkeel.functional._common import apply_affine, check_floating, compute_dtype
from evenkeel.functional._out import deliver, prepare_out
from evenkeel.functional._rows import as_shape, check_rows, result_dtype, rows
from evenkeel.functional._rows_reference import rows_reference
from evenkeel.functional._specs import row_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from evenkeel._spec import NormSpec
    from evenkeel.functional._specs import CallSpec

SQUASHES: dict[str, Callable[[Tensor], Tensor]] = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid}


def grouped_rows(
    name: str,
    spec: CallSpec,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    backend: str,
    gate: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Check and run: the statistics by the kernel over parts without parameters, the rest in plain PyTorch."""
    shape = as_shape(name, normalized_shape)
    check_rows(name, input, shape, weight, bias)
    check_floating(name, "input", input)  # no nested one, whose parts have no common shape
    check_groups(name, spec.groups, shape)
    if gate is not None:
        check_floating(name, "gate", gate)
        if gate.shape != input.shape:
            raise InvalidInputError(
                f"{name}: expected a gate of the input's shape {tuple(input.shape)}, but got {tuple(gate.shape)}"
            )
    inner = inner_spec(name, spec)

    def by_kernel(x: Tensor) -> Tensor:
        return rows(name, inner, x, x.shape[-1:], None, None, backend)

    if out is None:
        return composed(by_kernel, input, gate, weight, bias, len(shape), spec)
    dtype = input.dtype if gate is not None else result_dtype(spec, input, weight, bias)
    prepare_out(name, out, dtype, input, weight, bias, gate)
    with torch.no_grad():
        return deliver(composed(by_kernel, input, gate, weight, bias, len(shape), spec), out)


def grouped_rows_reference(
    input: Tensor, gate: Tensor | None, weight: Tensor | None, bias: Tensor | None, axes: int, spec: CallSpec
) -> Tensor:
    """The same in plain PyTorch alone: the definition."""
    inner = inner_spec("norm", spec)
    return composed(lambda x: rows_reference(x, None, None, 1, inner), input, gate, weight, bias, axes, spec)


def refuse_memory_efficient(memory_efficient: bool) -> None:
    """Raise where the output alone would have to give back what was normalized in parts."""
    if memory_efficient:
        raise BackendError("memory_efficient=True has no kernel for groups; pass memory_efficient=False")


def inner_spec(name: str, spec: NormSpec) -> CallSpec:
    """The norm of one part, which is not rounded."""
    assert spec.eps is not None
    return row_spec(name, spec.statistic, spec.eps, spec.eps_mode)


def whole_groups(name: str, groups: int | None) -> int | None:
    """The number of groups, which has to be whole: 2.0 would find the spec of 2."""
    if groups is None:
        return None
    if isinstance(groups, bool) or not isinstance(groups, numbers.Integral) or groups < 1:
        raise InvalidArgumentError(f"{name}: groups must be None or a positive whole number, but got {groups!r}")
    return int(groups)


def check_groups(name: str, groups: int | None, shape: Sequence[int]) -> None:
    """Raise unless the trailing axes divide into that many parts."""
    if groups is not None and math.prod(shape) % groups:
        raise InvalidInputError(
            f"{name}: {math.prod(shape)} elements of normalized_shape = {tuple(shape)} do not divide into {groups} "
            "groups; choose a divisor"
        )


def composed(
    normalize: Callable[[Tensor], Tensor],
    input: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    spec: NormSpec,
) -> Tensor:
    """Gate, normalize, scale and gate, in the compute dtype but for the roundings of the cast."""
    wide = compute_dtype(input)
    factor, before = None, False
    if gate is not None and spec.gating is not None:
        squash, _, place = spec.gating.partition("_")
        factor, before = SQUASHES[squash](gate.to(wide)), place == "before"
    x = input.to(wide)
    if factor is not None and before:
        x = x * factor
    parts = x.flatten(-axes) if axes > 1 else x  # (..., features)
    normalized = normalize(parts.unflatten(-1, (spec.groups or 1, -1)))  # (..., groups, features of one)
    normalized = normalized.flatten(-2)
    if axes > 1:
        normalized = normalized.unflatten(-1, input.shape[-axes:])
    if factor is None or before:
        return apply_affine(normalized, weight, bias, spec, input.dtype)
    y = apply_affine(normalized, weight, bias, spec, wide if spec.cast == "late" else input.dtype)
    return (y * factor).to(input.dtype)
