"""What an optimizer does with the parameters of norms."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch

from evenkeel.doctor.probes._records import OptimizerState
from evenkeel.doctor.probes._tensors import local

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from evenkeel.doctor.probes._norms import Site

__all__ = ["held_by", "optimizer_state", "requested_steps"]

NAN = float("nan")


def held_by(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """The group of every parameter that an optimizer holds, by the parameter's id."""
    return {id(p): group for group in optimizer.param_groups for p in group["params"]}


def optimizer_state(
    model: nn.Module,
    sites: Sequence[Site],
    optimizer: torch.optim.Optimizer,
    gradients: Mapping[int, Tensor | None] | None,
    called: set[str] | None = None,
) -> tuple[OptimizerState, ...]:
    """Measure what an optimizer holds of each norm that has trainable parameters.

    Args:
        model: the model.
        sites: its norms.
        optimizer: of the training.
        gradients: of the parameters, by their ids; None where there was no backward.
        called: the sites that the forward reached; None for all.
    """
    held = held_by(optimizer)
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    share = sum(id(p) in held for p in matrices) / len(matrices) if matrices else 0.0
    records = []
    for site in sites:
        own = [p for p in site.module.parameters() if p.requires_grad]
        weight = site.tensor("weight")
        if not own or (called is not None and site.name not in called):
            continue
        group = held.get(id(weight)) if weight is not None else None
        gradient = None if gradients is None or weight is None else gradients.get(id(weight))
        records.append(
            OptimizerState(
                site=site.name,
                held=all(id(p) in held for p in own),
                others_held=share,
                decay=float((group or {}).get("weight_decay", 0.0) or 0.0),
                rate=float((group or {}).get("lr", 0.0) or 0.0),
                lost=NAN
                if group is None or weight is None or gradient is None
                else lost_share(optimizer, group, weight, gradient),
                has_gradient=None if gradients is None else any(gradients.get(id(p)) is not None for p in own),
            )
        )
    return tuple(records)


def lost_share(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], weight: Tensor, gradient: Tensor) -> float:
    """The share of a weight's elements that a step in float32 moves and a step in the weight's dtype does not.

    Copies of the weight take one step by an optimizer of the same class; NaN where that cannot be built.
    """
    if weight.dtype.itemsize > 2:
        return 0.0
    try:
        narrow, wide = (step_of(optimizer, group, weight, gradient, dtype) for dtype in (weight.dtype, torch.float32))
    except Exception:  # the optimizer is anybody's class
        return NAN
    own = local(weight.detach())
    moves = wide != own.float()
    return float((moves & (narrow == own)).sum() / moves.sum()) if bool(moves.any()) else NAN


def requested_steps(optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The largest step that an optimizer asks for, by the gradient at hand, of each weight of 16 bits.

    In parts of half an ulp of the weight there: a step below 1 is rounded away. NaN where no copy takes a step.
    """
    narrow = {name: w for name, w in weights.items() if w.dtype.itemsize == 2 and w.grad is not None}
    held = held_by(optimizer) if narrow else {}
    known = {name: w for name, w in narrow.items() if id(w) in held and local(w).numel()}
    return {name: requested_step(optimizer, held[id(w)], w) for name, w in known.items()}


def requested_step(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], weight: Tensor) -> Tensor:
    """The largest step that is asked for of a weight with a gradient."""
    own = local(weight.detach())
    try:
        step = step_of(optimizer, group, weight, weight.grad, torch.float32) - own.float()
    except Exception:  # the optimizer is anybody's class
        return torch.full((), NAN, device=own.device)
    return (step.abs() / half_ulp(own, step)).amax()


def half_ulp(weight: Tensor, step: Tensor) -> Tensor:
    """Half the distance to the next number of the weight's dtype, on the side to which the step goes."""
    kind = torch.finfo(weight.dtype)
    mantissa, exponent = torch.frexp(weight.float())
    ulp = torch.ldexp(torch.full_like(step, kind.eps / 2), exponent)
    # below a power of 2 numbers lie twice as close
    ulp = torch.where((mantissa.abs() == 0.5) & (step * mantissa < 0), ulp / 2, ulp)
    least = kind.smallest_normal * kind.eps
    return torch.where(mantissa == 0, least, ulp.clamp(min=least)) / 2


def step_of(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], weight: Tensor, gradient: Any, dtype: torch.dtype
) -> Tensor:
    """A copy of a weight in a dtype after one more step, with what the optimizer remembers of it."""
    own = local(weight.detach())
    moved = torch.nn.Parameter(own.to(dtype, copy=True))
    moved.grad = local(gradient.detach()).to(dtype)
    taken = inspect.signature(type(optimizer)).parameters
    options = {name: value for name, value in group.items() if name in taken and name != "params"}
    other = type(optimizer)([moved], **options)
    other.state[moved] = {name: copied(value, own, dtype) for name, value in optimizer.state.get(weight, {}).items()}
    other.step()
    return moved.detach()


def copied(value: Any, weight: Tensor, dtype: torch.dtype) -> Any:
    """What an optimizer remembers of a weight: moments in the dtype of the step, the rest as it is."""
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    part = local(value.detach())
    return part.to(dtype, copy=True) if part.shape == weight.shape and part.is_floating_point() else part.clone()
