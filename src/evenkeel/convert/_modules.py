"""The classes that swapped modules get: evenkeel's, and those of any layout, over the class that a module had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from evenkeel import nn as ours
from evenkeel._spec import NormSpec
from evenkeel.recognition import Tensors, apply_norm

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel.recognition import Layout, Roles

__all__ = ["AnyLayout", "Passing", "class_for", "replacement"]

# torch.nn's classes whose state and constructor ours share
TRACKING: tuple[tuple[type[nn.Module], type[nn.Module]], ...] = (
    (nn.SyncBatchNorm, ours.SyncBatchNorm),
    (nn.BatchNorm1d, ours.BatchNorm1d),
    (nn.BatchNorm2d, ours.BatchNorm2d),
    (nn.BatchNorm3d, ours.BatchNorm3d),
    (nn.InstanceNorm1d, ours.InstanceNorm1d),
    (nn.InstanceNorm2d, ours.InstanceNorm2d),
    (nn.InstanceNorm3d, ours.InstanceNorm3d),
)
_classes: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}
STANDARD = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}


class AnyLayout(nn.Module):
    """Mixin before the class that a module had: its norm by evenkeel's functions, whatever axes and names it has."""

    norm_spec: NormSpec
    norm_layout: Layout
    norm_roles: Roles

    @property
    def spec(self) -> NormSpec:
        """What this module does."""
        return self.norm_spec

    def forward(self, input: Tensor, gate: Tensor | None = None) -> Tensor:
        """Normalize."""
        roles = self.norm_roles
        names = (roles.weight, roles.bias, roles.mean, roles.variance)
        tensors = Tensors(*(None if name is None else getattr(self, name) for name in names))
        return apply_norm(self.norm_spec, self.norm_layout, input, tensors, gate=gate, backend="auto")


def replacement(
    module: nn.Module, spec: NormSpec, layout: Layout, roles: Roles
) -> tuple[type[nn.Module], dict[str, Any]]:
    """Return the class of ours that serves a module, and the attributes that it needs."""
    options: dict[str, Any] = {
        "eps": spec.eps,
        "eps_mode": spec.eps_mode,
        "weight_offset": spec.weight_offset,
        "cast": spec.cast,
    }
    named = all(getattr(roles, part) in (None, name) for part, name in STANDARD.items())
    for theirs, mine in TRACKING:
        if isinstance(module, theirs) and named and layout.channel_axis == 1:
            return mine, options | ({} if spec.activation is None else {"activation": spec.activation})
    weight = getattr(module, "weight", None) if roles.weight is not None else None
    plain = named and spec.activation is None and layout.channel_axis == -1 and spec.shares == "token"
    if plain and weight is not None and weight.ndim == layout.axes and spec.statistic in ("moments", "rms"):
        options |= {"normalized_shape": tuple(weight.shape), "elementwise_affine": True, "groups": spec.groups}
        if spec.gating is not None:
            return ours.GatedRMSNorm, options | {"gating": spec.gating}
        return (ours.LayerNorm if spec.statistic == "moments" else ours.RMSNorm), options
    if (
        isinstance(module, nn.LayerNorm)
        and type(module).forward is nn.LayerNorm.forward  # another may take rows of any size
        and spec.statistic == "moments"
        and plain
        and weight is None
        and roles.bias is None
    ):
        return ours.LayerNorm, options
    if isinstance(module, nn.GroupNorm) and named:
        return ours.GroupNorm, options | ({} if spec.activation is None else {"activation": spec.activation})
    return AnyLayout, {"norm_spec": spec, "norm_layout": layout, "norm_roles": roles}


def class_for(mine: type[nn.Module], theirs: type[nn.Module]) -> type[nn.Module]:
    """Return a class that computes as ours and is still an instance of the class that the module had."""
    if issubclass(mine, theirs):
        return mine
    if (mine, theirs) not in _classes:
        _classes[mine, theirs] = _class_over(mine, theirs)
    return _classes[mine, theirs]


def _class_over(mine: type[nn.Module], theirs: type[nn.Module]) -> type[nn.Module]:

    def rebuilt(self: nn.Module, protocol: object) -> tuple[Any, ...]:
        return _blank, (mine, theirs), vars(self).copy()

    body = {"__reduce_ex__": rebuilt, "__module__": theirs.__module__, "__qualname__": theirs.__qualname__}
    return type(theirs.__name__, (mine, theirs), body)


def _blank(mine: type[nn.Module], theirs: type[nn.Module]) -> nn.Module:
    kind = class_for(mine, theirs)
    blank: nn.Module = kind.__new__(kind)
    return blank


class Passing(nn.Module):
    """Mixin before the class that a module had: it was folded into others, and returns its input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return input
