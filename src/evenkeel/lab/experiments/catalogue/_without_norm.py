"""`without-norm`: at which depth training without normalization fails, and what mends it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from evenkeel._options.experiments import WithoutOptions
from evenkeel.lab.experiments._estimates import curves, exactly, intervals, level, measured, spread
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, grouped, select
from evenkeel.lab.experiments._transformer import (
    FAILED,
    LOSS_AXIS,
    SHOWN_LOSS,
    build,
    drawn_loss,
    least_failed,
    outcome,
    train,
)
from evenkeel.lab.transformer import Transformer, norm_styles
from evenkeel.report import MUTED, Axis, Figure, format_number, join_words, lines

# name -> (arm, what is done to the maps that end a sublayer)
REMEDIES = {
    "no norm": ("none", "nothing"),
    "no norm, 1/sqrt(2L) init": ("none", "scaled"),
    "no norm, zero init": ("none", "zero"),
    "DyT": ("pre-dyt", "nothing"),
    "LayerNorm": ("pre-layer", "nothing"),
}
# remedy -> who claims that it helps
SOURCES = {
    "no norm, 1/sqrt(2L) init": "Radford et al. 2019 (the scaling); Zhang et al. 2019",
    "no norm, zero init": "Zhang et al. 2019 (Fixup); Bachlechner et al. 2020",
    "DyT": "Zhu et al. 2025",
}


def measure(options: WithoutOptions, trial: Trial) -> dict[str, Any]:
    """Train briefly; return the validation loss, and whether nothing was learned."""
    arm, remedy = REMEDIES[trial["remedy"]]
    model = build(options, arm, depth=trial["depth"], seed=trial["seed"])
    if remedy != "nothing":
        shrink_last_maps(model, 0.0 if remedy == "zero" else (2 * trial["depth"]) ** -0.5)
    return outcome(options, model, train(options, model, trial["seed"], lr=options.lr))


@torch.no_grad()
def shrink_last_maps(model: Transformer, gain: float) -> None:
    """Multiply the map that ends each sublayer, attention's and the feed-forward's, by a gain."""
    for name, parameter in model.named_parameters():
        if name.endswith(("function.output.weight", "function.down.weight")):
            parameter.mul_(gain)


def deepest_learned(options: WithoutOptions, records: Sequence[Record], remedy: str) -> int:
    """Return the greatest depth up to which every training of a remedy learned something, or 0."""
    deepest = 0
    for depth in options.depths:
        outcomes = [r["failed"] for r in select(records, remedy=remedy, depth=depth)]
        if not outcomes or any(outcomes):
            break
        deepest = depth
    return deepest


def judge(options: WithoutOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare depths and losses; a remedy counts once it was tried at every depth, as the plain model must be."""
    tried = {
        remedy: deepest_learned(options, records, remedy)
        for remedy in REMEDIES
        if {r["depth"] for r in select(records, remedy=remedy)} >= set(options.depths)
    }
    if "no norm" not in tried:
        return []
    claims = []
    if "LayerNorm" in tried:
        claims.append(
            Claim(
                claim="Without normalization deep networks do not train",
                source="the textbook account; Zhang et al. 2019 (Fixup) dispute it",
                measured=f"At learning rate {options.lr:g} the plain model learned up to {tried['no norm'] or 'no'} "
                f"blocks, LayerNorm up to {tried['LayerNorm'] or 'no'} (of {max(options.depths)} tried)",
                verdict="agrees" if tried["no norm"] < tried["LayerNorm"] else "disagrees",
                intervals=intervals({name: exactly(tried[name]) for name in ("no norm", "LayerNorm")}),
                quantity="deepest that learned (blocks)",
            )
        )
    return claims + [remedy_claim(options, records, remedy, tried) for remedy in SOURCES if remedy in tried]


def remedy_claim(options: WithoutOptions, records: Sequence[Record], remedy: str, tried: dict[str, int]) -> Claim:
    """Whether a remedy lets the deepest model learn, and how its loss compares with LayerNorm's there."""
    last = max(options.depths)
    losses = {name: [r["loss"] for r in select(records, remedy=name, depth=last)] for name in (remedy, "LayerNorm")}
    ends = [
        f"{name} lost" if None in values else f"{name} {format_number(statistics.fmean(values))}"
        for name, values in losses.items()
        if values
    ]
    return Claim(
        claim=f"{remedy} makes deep networks trainable without normalization",
        source=SOURCES[remedy],
        measured=f"It learned up to {tried[remedy] or 'no'} blocks; validation loss at {last}: {join_words(ends)}",
        verdict="agrees" if tried[remedy] == last else "partly" if tried[remedy] > tried["no norm"] else "disagrees",
        intervals=spread({name: measured(values) for name, values in losses.items()}),
        quantity=f"validation loss at {last} blocks (range)",
    )


def draw(options: WithoutOptions, records: Sequence[Record]) -> list[Figure]:
    """Validation loss by depth."""
    if not records:
        return []
    series = curves(grouped(records, "remedy", REMEDIES), lambda r: [(r["depth"], drawn_loss(r["loss"]))])
    series += level(FAILED, least_failed(records), series)
    styles = norm_styles(REMEDIES) | {FAILED: MUTED}
    panel = lines(series, x=Axis("blocks", log=True), y=LOSS_AXIS, styles=styles)
    deepest = {name: deepest_learned(options, records, name) for name in REMEDIES if select(records, remedy=name)}
    reach = [f"{name} to {depth or 'no'} blocks" for name, depth in deepest.items()]
    return [
        Figure(
            name="without-norm",
            title=f"Every training learned: {join_words(reach)}",
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
    trials=lambda options: options.grid(depth=options.depths, remedy=REMEDIES),
    measure=measure,
    judge=judge,
    draw=draw,
)
