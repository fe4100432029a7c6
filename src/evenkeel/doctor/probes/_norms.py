"""The norms of a model, and the state of each in numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenkeel.doctor.probes._records import NormState
from evenkeel.doctor.probes._tensors import local
from evenkeel.recognition import Layout, Recognition, Roles, survey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from evenkeel._spec import NormSpec

__all__ = ["DEAD", "Site", "find_sites", "norm_state", "numbers_of"]

DEAD = 1e-3  # of the median gain
FEWEST_GAINS = 8  # of fewer none is out of line


@dataclass(frozen=True)
class Site:
    """A norm of a model."""

    name: str
    module: nn.Module
    spec: NormSpec
    layout: Layout
    roles: Roles
    frozen: bool

    def tensor(self, part: str) -> Tensor | None:
        """The tensor that plays a part: weight, bias, mean, variance."""
        name = getattr(self.roles, part)
        found = None if name is None else getattr(self.module, name, None)
        return found if isinstance(found, torch.Tensor) else None

    @property
    def remembers(self) -> bool:
        """Whether it has remembered statistics."""
        return self.tensor("variance") is not None

    def for_input(self, x: Tensor) -> Site:
        """The site with the layout that fits an input: modules that move axes were told by inputs of other axes."""
        weight = self.tensor("weight")
        of_rows = self.spec.shares == "token" and self.layout.axes == 1 and self.layout.channel_axis == -1
        if of_rows and weight is not None and x.ndim > 2 and x.shape[-1] != weight.numel() == x.shape[1]:
            return replace(self, layout=replace(self.layout, channel_axis=1))
        return self


def find_sites(model: nn.Module, seen: Mapping[int, Tensor] | None = None) -> list[Site]:
    """Find the norms of a model in the order of its modules; a shared one counts once."""
    sites = []
    for found in survey(model, seen):
        told = completed(found.module, found.recognition)
        if told.spec is None or told.spec.gating is not None:  # of a norm with two inputs nothing is measured
            continue
        if told.layout is not None and told.roles is not None:
            name = found.names[0] or type(found.module).__name__
            sites.append(Site(name, found.module, told.spec, told.layout, told.roles, told.frozen))
    return sites


def completed(module: nn.Module, told: Recognition) -> Recognition:
    """Add layout and roles to evenkeel's own modules, which tell their spec alone."""
    if told.spec is None or told.roles is not None or told.spec.statistic not in ("moments", "rms", "l2"):
        return told
    names = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
    roles = Roles(**{part: name for part, name in names.items() if getattr(module, name, None) is not None})
    shape = getattr(module, "normalized_shape", (1,))
    token = told.spec.shares == "token"
    layout = Layout(
        shares=told.spec.shares,
        axes=len(shape) if isinstance(shape, tuple) else 1,
        channel_axis=-1 if token else 1,
        groups=told.spec.groups,
    )
    return replace(told, roles=roles, layout=layout)


def norm_state(site: Site) -> NormState:
    """Measure the parameters and buffers of a norm."""
    module = site.module
    own = [p for p in module.parameters() if p.dtype.is_floating_point]
    count = getattr(module, "num_batches_tracked", None)
    tensors = {part: site.tensor(part) for part in ("weight", "bias", "mean", "variance")}
    state = numbers_of(
        site.name, {k: v for k, v in tensors.items() if v is not None}, site.spec.weight_offset, site.spec.eps
    )
    return replace(
        state,
        shares=site.spec.shares,
        trainable=any(p.requires_grad for p in own) if own else None,
        training=module.training,
        frozen=site.frozen or (site.remembers and getattr(module, "momentum", None) == 0.0),
        updates=int(count) if isinstance(count, torch.Tensor) and site.remembers else None,
    )


def numbers_of(site: str, tensors: Mapping[str, Tensor], offset: float, eps: float | None) -> NormState:
    """Measure tensors by the parts that they play."""
    parts = {name: local(tensor.detach()).float().reshape(-1).cpu() for name, tensor in tensors.items()}
    weight, bias, variance = parts.get("weight"), parts.get("bias"), parts.get("variance")
    mean = parts.get("mean")
    holder = tensors.get("weight", tensors.get("variance", tensors.get("bias")))
    strange = sum(int((~part.isfinite()).sum()) for part in parts.values())
    if variance is not None:
        strange += int((variance < 0).sum())
    gains = None if weight is None else (weight + offset).abs()
    defaults = mean is not None and variance is not None and bool((mean == 0).all() and (variance == 1).all())
    return NormState(
        site=site,
        shares="",
        dtype="" if holder is None else str(holder.dtype).removeprefix("torch."),
        offset=offset,
        eps=eps,
        size=0 if weight is None else weight.numel(),
        at_start=0.0 if weight is None else float((weight == 1.0 - offset).float().mean()),
        dead=float("nan") if gains is None else dead_share(gains),
        bias_moved=None if bias is None else bool((bias != 0).any()),
        default_statistics=defaults,
        not_finite=strange,
        **outlier_of(gains),
        tiny=0.0 if variance is None else float((variance < (1e-5 if eps is None else eps)).float().mean()),
    )


def outlier_of(gains: Tensor | None) -> dict[str, Any]:
    """The largest gain over the median one, and where it is; nothing of few gains, or of mostly dead ones."""
    if gains is None or gains.numel() < FEWEST_GAINS or not float(gains.median()) > DEAD * float(gains.max()):
        return {}
    return {"outlier": float(gains.max() / gains.median()), "channel": int(gains.argmax())}


def dead_share(gains: Tensor) -> float:
    """The share of gains that pass nothing; all of them at zero is a norm that starts so, and none."""
    top = gains.max() if gains.numel() else gains.new_zeros(())
    if not bool(top > 0):
        return 0.0
    return float((gains < DEAD * top).float().mean())
