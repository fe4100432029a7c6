"""`without-norm`: at which depth training without normalization fails, and what mends it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenkeel._errors import StudyError
from evenkeel.lab.arms import find_arm
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial
from evenkeel.lab.experiments._statistics import band_over
from evenkeel.lab.experiments._training import (
    SHOWN_LOSS,
    TrainingOptions,
    final_loss,
    has_failed,
    shown_loss,
    train_bytes,
)
from evenkeel.lab.model import Transformer
from evenkeel.report import Axis, Figure, assign_styles, format_number, join_words, lines

__all__ = ["WITHOUT_NORM"]

# name -> (arm, what is done to the maps that end a sublayer)
REMEDIES = {
    "no norm": ("none", "nothing"),
    "no norm, 1/sqrt(2L) init": ("none", "scaled"),
    "no norm, zero init": ("none", "zero"),
    "DyT": ("pre-dyt", "nothing"),
    "LayerNorm": ("pre-layer", "nothing"),
}


@dataclass(frozen=True, kw_only=True)
class WithoutOptions(TrainingOptions):
    """Options of `without-norm`, and those of every training.

    Attributes:
        depths: numbers of blocks, ascending.
        lr: learning rate after the warm-up.
    """

    seeds: int = 2
    depths: tuple[int, ...] = (2, 4, 8, 16, 32)
    lr: float = 2e-3

    def check(self) -> None:
        """Depths must ascend."""
        if list(self.depths) != sorted(set(self.depths)):
            raise StudyError("depths must ascend without repetition, for example 2,8,32")


def trials(options: WithoutOptions) -> list[Trial]:
    """Each remedy at each depth."""
    return options.grid(depth=options.depths, remedy=REMEDIES)


def measure(options: WithoutOptions, trial: Trial) -> dict[str, Any]:
    """Train briefly; the validation loss, and whether anything was learned."""
    arm, remedy = REMEDIES[trial["remedy"]]
    model = options.model(find_arm(arm), depth=trial["depth"], seed=trial["seed"])
    if remedy != "nothing":
        shrink_last_maps(model, 0.0 if remedy == "zero" else (2 * trial["depth"]) ** -0.5)
    schedule = options.schedule(options.lr)
    losses = train_bytes(model, schedule, trial["seed"])
    loss = final_loss(model, schedule, losses)
    return {"loss": loss, "failed": has_failed(loss, options.context)}


@torch.no_grad()
def shrink_last_maps(model: Transformer, gain: float) -> None:
    """Multiply the map that ends each sublayer, attention's and the feed-forward's, by a gain."""
    for name, parameter in model.named_parameters():
        if name.endswith(("function.output.weight", "function.down.weight")):
            parameter.mul_(gain)


def deepest_learned(options: WithoutOptions, records: Sequence[Record], remedy: str) -> int | None:
    """Return the greatest depth up to which every training of a remedy learned something, or None."""
    deepest = None
    for depth in options.depths:
        outcomes = [r["failed"] for r in records if r["remedy"] == remedy and r["depth"] == depth]
        if not outcomes or any(outcomes):
            break
        deepest = depth
    return deepest


def judge(options: WithoutOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare depths and losses."""
    if not records:
        return []
    last = max(options.depths)
    found = {remedy: deepest_learned(options, records, remedy) for remedy in REMEDIES}
    plain = found["no norm"]
    claims = [
        Claim(
            claim="Without normalization deep networks do not train",
            source="the textbook account; Zhang et al. 2019 (Fixup) dispute it",
            measured=f"At learning rate {options.lr:g} the plain model learned up to {plain or 'no'} blocks, LayerNorm "
            f"up to {found['LayerNorm'] or 'no'} (of {last} tried)",
            verdict="agrees" if (plain or 0) < (found["LayerNorm"] or 0) else "disagrees",
        )
    ]
    sources = {
        "no norm, 1/sqrt(2L) init": "Radford et al. 2019 (the scaling); Zhang et al. 2019",
        "no norm, zero init": "Zhang et al. 2019 (Fixup); Bachlechner et al. 2020",
        "DyT": "Zhu et al. 2025",
    }
    claims += [
        remedy_claim(options, records, remedy, source)
        for remedy, source in sources.items()
        if losses_at(records, remedy, last)
    ]
    return claims


def losses_at(records: Sequence[Record], remedy: str, depth: int) -> list[float]:
    """Return the losses of a remedy at a depth; a lost training counts as infinite."""
    found = [r["loss"] for r in records if r["remedy"] == remedy and r["depth"] == depth]
    return [math.inf if loss is None else loss for loss in found]


def remedy_claim(options: WithoutOptions, records: Sequence[Record], remedy: str, source: str) -> Claim:
    """Whether a remedy lets the deepest model learn, and how its loss compares with LayerNorm's there."""
    last = max(options.depths)
    reached, plain = (deepest_learned(options, records, name) for name in (remedy, "no norm"))
    losses = {name: losses_at(records, name, last) for name in (remedy, "LayerNorm")}
    shown = [
        f"{name} {format_number(statistics.fmean(values))}" if all(map(math.isfinite, values)) else f"{name} lost"
        for name, values in losses.items()
        if values
    ]
    return Claim(
        claim=f"{remedy} makes deep networks trainable without normalization",
        source=source,
        measured=f"It learned up to {reached or 'no'} blocks; validation loss at {last}: {join_words(shown)}",
        verdict="agrees" if reached == last else "partly" if (reached or 0) > (plain or 0) else "disagrees",
    )


def draw(options: WithoutOptions, records: Sequence[Record]) -> list[Figure]:
    """Validation loss by depth."""
    if not records:
        return []
    series = [
        band_over(remedy, [r for r in records if r["remedy"] == remedy], "depth", lambda r: shown_loss(r["loss"]))
        for remedy in REMEDIES
    ]
    panel = lines(
        series,
        x=Axis("blocks", integer=True),
        y=Axis("validation loss (nats per byte)", log=False, include=(SHOWN_LOSS,)),
        styles=assign_styles(REMEDIES),
    )
    plain = deepest_learned(options, records, "no norm")
    reach = f"learns up to {plain} blocks" if plain else f"learns at no depth from {min(options.depths)} on"
    return [
        Figure(
            name="without-norm",
            title=f"Without norm the plain model {reach}; the remedies differ",
            caption=f"Validation loss after {options.steps} steps; bands span the seeds. Trainings that were lost are "
            f"drawn at {SHOWN_LOSS:g}.",
            panels=[panel],
        )
    ]


WITHOUT_NORM = Experiment(
    name="without-norm",
    title="Depth without normalization",
    question="At which depth does training without normalization fail, and do initialization or DyT mend it?",
    method="Short trainings of the lab's transformer on real text at growing depth: without norm; without norm and the "
    "last map of each sublayer scaled by 1/sqrt(2L), or zero, at the start; with DyT; with Pre-LN. A training counts "
    "as failed when its loss is lost, or ends no better than byte frequencies alone.",
    options=WithoutOptions,
    trials=trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
