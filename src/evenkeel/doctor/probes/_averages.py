"""The statistics of an average of weights beside those of its model: in a training, in a checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from evenkeel._errors import InvalidInputError, InvalidTypeError
from evenkeel.doctor.probes._norms import find_sites
from evenkeel.doctor.probes._records import Averaged
from evenkeel.doctor.probes._signal import distances
from evenkeel.doctor.probes._tensors import local, sample, to_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from evenkeel.doctor.probes._norms import Site
    from evenkeel.doctor.probes._records import NormState

__all__ = ["Average", "averages_in"]

NAMED = re.compile(r"(?i)(^|_)(ema|swa|avg|average|averaged|shadow)\d*(_|$)")
PARTS = ("weight", "bias", "mean", "variance")
EPS = 1e-5


class Average:
    """An average of a model's weights that a training keeps.

    Attributes:
        first: what it keeps of the beginning: statistics of both, samples of the average's weights.

    Raises:
        InvalidTypeError: the average is no module.
        InvalidInputError: it has other norms than the model.
    """

    def __init__(self, average: nn.Module, sites: Sequence[Site]) -> None:
        if not isinstance(average, torch.nn.Module):
            raise InvalidTypeError(
                f"watch: expected a torch.nn.Module as averaged, but got {type(average).__name__}; "
                "pass the averaged model"
            )
        own, others = remembering(find_sites(average)), remembering(sites)
        if sizes_of(own) != sizes_of(others):
            raise InvalidInputError(
                f"watch: the averaged model has {len(own)} norms with statistics of {sizes_of(own)} channels, the "
                f"model {len(others)} of {sizes_of(others)}; pass the copy of the model whose weights are averaged"
            )
        self.pairs = list(zip(own, others, strict=True))
        self.weights = [p for p in average.parameters() if p.ndim > 1]
        self.first: list[Tensor] = []

    def begin(self) -> None:
        """Keep what both are before the training."""
        self.first = [tensor.clone() for tensor in self._now()]

    def _now(self) -> list[Tensor]:
        statistics = [s.tensor(part) for pair in self.pairs for s in pair for part in ("mean", "variance")]
        return [t.detach() for t in statistics if t is not None] + [sample(p) for p in self.weights]

    @torch.no_grad()
    def found(self) -> tuple[Averaged, ...]:
        """The norms of both, as they are now beside what they were."""
        now = self._now()
        if len(self.first) != len(now):
            return ()
        changed = to_numbers([(a != b).any() for a, b in zip(self.first, now, strict=True)])
        moved = any(changed[4 * len(self.pairs) :])
        records = []
        for number, (own, other) in enumerate(self.pairs):
            mine, theirs = any(changed[4 * number :][:2]), any(changed[4 * number + 2 :][:2])
            tensors = ({part: t for part in PARTS if (t := s.tensor(part)) is not None} for s in (own, other))
            names, counts = (own.name, other.name), (updates_of(own), updates_of(other))
            records.append(compared(names, counts, tensors, moved and theirs and not mine))
        return tuple(records)


def remembering(sites: Iterable[Site]) -> list[Site]:
    """The norms that remember statistics."""
    return [site for site in sites if site.tensor("mean") is not None and site.tensor("variance") is not None]


def sizes_of(sites: Iterable[Site]) -> list[int]:
    """How many channels each norm remembers."""
    return [t.numel() for site in sites if (t := site.tensor("mean")) is not None]


def updates_of(site: Site) -> int | None:
    """How many batches the statistics of a norm have seen; None where nothing counts."""
    count = getattr(site.module, "num_batches_tracked", None)
    return int(count) if isinstance(count, torch.Tensor) else None


def averages_in(tensors: Mapping[str, Tensor], states: Iterable[NormState]) -> tuple[Averaged, ...]:
    """Pair the norms of a checkpoint that holds a model and an average of its weights, by their names."""
    statistics = ("running_mean", "running_var")
    counts = {n.site: n.updates for n in states if all(f"{n.site}.{name}" in tensors for name in statistics)}
    tails = {site: tail for site in counts if (tail := tail_of(site)) is not None}
    records = []
    for site, tail in tails.items():
        others = [name for name in counts if name not in tails and f".{name}".endswith(f".{tail}")]
        other = min(others, key=lambda name: name.count("."), default=None)
        if other is None or tensors[f"{site}.running_mean"].numel() != tensors[f"{other}.running_mean"].numel():
            continue
        names = ("weight", "bias", *statistics)
        parts = (
            {part: tensors[key] for part, name in zip(PARTS, names, strict=True) if (key := f"{of}.{name}") in tensors}
            for of in (site, other)
        )
        records.append(compared((site, other), (counts[site], counts[other]), parts))
    return tuple(records)


def tail_of(site: str) -> str | None:
    """What stands in a name behind the part that says that it is an average's; None where none does."""
    parts = site.split(".")
    at = [k for k, part in enumerate(parts[:-1]) if NAMED.search(part)]
    if not at:
        return None
    tail = parts[at[-1] + 1 :]
    return ".".join(tail[1:] if tail[0] == "module" and len(tail) > 1 else tail)


def compared(
    names: tuple[str, str],
    updates: tuple[int | None, int | None],
    tensors: Iterable[Mapping[str, Tensor]],
    stayed: bool | None = None,
) -> Averaged:
    """The record of a norm in the average and in the model."""
    a, b = ({part: local(t.detach()).float().reshape(-1).cpu() for part, t in parts.items()} for parts in tensors)
    shift, ratio = distances(b["mean"], b["variance"], a["mean"], a["variance"], EPS)
    affine = [(a[part], b[part], start) for part, start in (("weight", 1.0), ("bias", 0.0)) if part in a and part in b]
    apart = sum(float((mine - theirs).square().sum()) for mine, theirs, _ in affine)
    way = sum(float((theirs - start).square().sum()) for _, theirs, start in affine)
    return Averaged(
        site=names[0],
        other=names[1],
        updates=updates[0],
        others=updates[1],
        shift=float(shift),
        ratio=float(ratio),
        followed=1 - (apart / way) ** 0.5 if way > 0 else float("nan"),
        stayed=stayed,
    )
