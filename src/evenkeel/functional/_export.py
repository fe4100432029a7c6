"""While a program is exported, a norm becomes torch's own operator, so that it runs where evenkeel is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from evenkeel._errors import InvalidArgumentError
from evenkeel.functional._common import apply_affine, compute_dtype, effective_weight

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from evenkeel._spec import NormSpec

    Standard = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def exports_as_standard(spec: NormSpec, valid: Tensor | None = None) -> bool:
    """Whether a program is being exported and torch may have an operator for this: eps inside the root, no mask."""
    return torch.compiler.is_exporting() and spec.eps_mode == "inside" and valid is None


def standard(
    operator: Standard,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    spec: NormSpec,
    affine: Callable[..., Tensor] = apply_affine,
) -> Tensor:
    """torch's operator in our compute dtype, with our offset and our order of rounding around it."""
    wide = input.to(compute_dtype(input))
    if spec.cast != "late":
        return affine(operator(wide, None, None), weight, bias, spec, input.dtype)
    scale = None if weight is None else effective_weight(weight.to(wide.dtype), spec)
    return operator(wide, scale, None if bias is None else bias.to(wide.dtype)).to(input.dtype)


def standard_rows(shape: tuple[int, ...], spec: NormSpec, eps: float) -> Standard | None:
    """torch's layer_norm or rms_norm over the trailing ``shape``, or None where the reference runs as it is.

    Raises:
        InvalidArgumentError: the statistic is none of a row's, so that no operator stands for it.
    """
    if spec.statistic not in ("moments", "rms", "l2"):
        raise InvalidArgumentError(
            f"a row norm needs the statistic moments, rms or l2, but got {spec.statistic!r}; it has no reference here"
        )
    if not exports_as_standard(spec) or spec.statistic == "l2":
        return None
    if spec.statistic == "moments":
        return lambda x, weight, bias: F.layer_norm(x, shape, weight, bias, eps)
    return lambda x, weight, bias: F.rms_norm(x, shape, weight, eps)


def standard_channels(remembered: tuple[Tensor, Tensor] | None, over_batch: bool, eps: float) -> Standard:
    """torch's batch_norm, with remembered statistics if any, or instance_norm."""
    if remembered is not None:
        mean, variance = remembered
        return lambda x, w, b: F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), w, b, eps=eps)
    if over_batch:
        return lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=eps)
    return lambda x, w, b: F.instance_norm(x, None, None, w, b, eps=eps)


def standard_groups(groups: int, eps: float) -> Standard:
    """torch's group_norm."""
    return lambda x, weight, bias: F.group_norm(x, groups, weight, bias, eps)
