"""What a probe measures: it watches one ordinary training step through hooks and changes nothing about it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from evenkeel.lab.transformer._model import Transformer

BINS = 48
TAIL = 0.0005  # of the values on either side of a histogram's range, counted in its first and last bin
MOST_VALUES = 1_000_000  # per histogram; larger activations are thinned out evenly


class Probe:
    """Records the residual stream, gradients and the norms' inputs and outputs during one training step.

    Of a batch in parts, the first one's forward pass is recorded.

    Used as a context around forward and backward; the record is taken before the gradients are changed or cleared::

        with Probe(model) as probe:
            model(tokens) ...; loss.backward()
        record = probe.record()
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.groups = parameter_groups(model)
        self.residual: list[dict[str, float]] = []
        self.norms: list[dict[str, Any]] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._widest: tuple[str, Tensor, Tensor] | None = None
        self._width = 0.0

    def __enter__(self) -> Probe:
        first, *_ = self.model.blocks
        self._hooks.append(first.register_forward_pre_hook(lambda _, inputs: self._see_residual(inputs[0])))
        for block in self.model.blocks:
            self._hooks.append(block.register_forward_hook(lambda _, inputs, output: self._see_residual(output)))
        for name, norm in self.model.norms().items():
            self._hooks.append(norm.register_forward_hook(functools.partial(self._see_norm, name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def _see_residual(self, x: Tensor) -> None:
        if len(self.residual) > len(self.model.blocks):
            return
        self.residual.append({"layer": len(self.residual), **residual_statistics(x.detach())})

    def _see_norm(self, name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if any(seen["norm"] == name for seen in self.norms):
            return
        before, after = inputs[0].detach(), output.detach()
        width = rms(before)
        self.norms.append({"norm": name, "block": block_of(name), "before": width, "after": rms(after)})
        if math.isfinite(width) and width > self._width:
            self._widest, self._width = (name, before, after), width

    def record(self) -> dict[str, Any]:
        """Return the probe's record, with the gradients as they are now."""
        return {
            "residual": self.residual,
            "gradients": [
                {"group": group, "block": block_of(group), "norm": total_norm(p.grad for p in parameters)}
                for group, parameters in self.groups.items()
            ],
            "norms": self.norms,
            "widest": self._histograms(),
        }

    def _histograms(self) -> dict[str, Any] | None:
        """Return the values before and after the norm with the widest input, as histograms."""
        if self._widest is None:
            return None
        name, *around = self._widest
        before, after = map(histogram, around)
        if before is None or after is None:
            return None
        return {"norm": name, "block": block_of(name), "before": before, "after": after}


def rms(x: Tensor) -> float:
    """Return the root of the mean of the squares of all elements."""
    return x.double().square().mean().sqrt().item()


def residual_statistics(x: Tensor) -> dict[str, float]:  # (b, t, w)
    """Return the RMS over all elements, and the share of a position's power that is its mean, over positions."""
    x = x.double()
    power = x.square().mean(-1)
    share = (x.mean(-1).square() / power).nanmean()  # a position that is all zero has no share
    return {"rms": math.sqrt(power.mean().item()), "mean2_over_rms2": share.item()}


def histogram(x: Tensor) -> dict[str, list[float]] | None:
    """Return counts over equal bins from the 0.05 % to the 99.95 % quantile; the end bins take what lies outside.

    Values that are not finite are left out; None if there is no other.
    """
    values = x.flatten().float()
    values = values[:: math.ceil(len(values) / MOST_VALUES)]
    values = values[values.isfinite()]
    if not len(values):
        return None
    low, high = values.quantile(torch.tensor([TAIL, 1 - TAIL], device=values.device)).tolist()
    if high <= low:  # all values equal, or nearly
        low, high = low - 0.5, low + 0.5
    counts = torch.histc(values.clamp(low, high), bins=BINS, min=low, max=high)
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
    return {"edges": [float(f"{edge:.6g}") for edge in edges.tolist()], "counts": [int(n) for n in counts.tolist()]}


def parameter_groups(model: Transformer) -> dict[str, list[nn.Parameter]]:
    """Return the parameters by the part of the model they belong to, in the order of the forward pass."""
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(group_of(name), []).append(parameter)
    return groups


def group_of(name: str) -> str:
    """Return the group of a parameter: ``embedding``, ``blocks.<l>.attention|feed_forward|norm``, ... ``head``."""
    parts = name.split(".")
    if parts[0] in ("bytes", "positions"):
        return "embedding"
    if parts[0] != "blocks":
        return parts[0]
    is_norm = parts[3] != "function" or parts[4] in ("query_norm", "key_norm")
    return ".".join([*parts[:2], "norm" if is_norm else parts[2]])


def block_of(name: str) -> int | None:
    """Return the block's number in a dotted name, or None."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else None


def total_norm(tensors: Iterable[Tensor | None]) -> float:
    """Return the Euclidean norm of all elements together; a tensor that is not there has none."""
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors if t is not None))
