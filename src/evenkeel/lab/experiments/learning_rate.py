"""`learning-rate`: which learning rates train, with and without norm, with and without warm-up, pre and post."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from evenkeel.report import Axis, Figure, assign_styles, format_number, join_words, lines

__all__ = ["LEARNING_RATE"]

WARMUPS = {"with warm-up": True, "without warm-up": False}


@dataclass(frozen=True, kw_only=True)
class RateOptions(TrainingOptions):
    """Options of `learning-rate`, and those of every training.

    Attributes:
        arms: placements and norms to compare.
        rates: learning rates, ascending.
        depth: blocks.
    """

    seeds: int = 2
    arms: tuple[str, ...] = ("none", "post-layer", "pre-layer")
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    depth: int = 6
    steps: int = 120

    def check(self) -> None:
        """Arms must exist and rates ascend."""
        for name in self.arms:
            find_arm(name)
        if list(self.rates) != sorted(set(self.rates)):
            raise StudyError("rates must ascend without repetition, for example 1e-4,1e-3,1e-2")


def trials(options: RateOptions) -> list[Trial]:
    """Each arm at each rate, with and without warm-up."""
    return options.grid(arm=options.arms, warmup=WARMUPS.values(), rate=options.rates)


def measure(options: RateOptions, trial: Trial) -> dict[str, Any]:
    """Train briefly; the validation loss, and whether anything was learned."""
    model = options.model(find_arm(trial["arm"]), depth=options.depth, seed=trial["seed"])
    schedule = replace(options.schedule(trial["rate"]), warmup=options.steps // 4 if trial["warmup"] else 0)
    losses = train_bytes(model, schedule, trial["seed"])
    loss = final_loss(model, schedule, losses)
    return {"loss": loss, "failed": has_failed(loss, options.context), "steps": len(losses)}


def stable_range(
    options: RateOptions, records: Sequence[Record], arm: str, *, warmup: bool
) -> tuple[float, float] | None:
    """Return the widest run of neighbouring rates at which every seed learned something, or None."""
    learned = [
        bool(outcomes) and not any(outcomes)
        for rate in options.rates
        for outcomes in [[r["failed"] for r in records if (r["arm"], r["rate"], r["warmup"]) == (arm, rate, warmup)]]
    ]
    best: list[float] = []
    current: list[float] = []
    for rate, good in zip(options.rates, learned, strict=True):
        current = [*current, rate] if good else []
        best = max(best, current, key=len)
    return (best[0], best[-1]) if best else None


def judge(options: RateOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the highest rates that train."""
    highest = {
        (arm, warmup): found[1]
        for arm in options.arms
        for warmup in WARMUPS.values()
        if (found := stable_range(options, records, arm, warmup=warmup))
    }
    normed = [arm for arm in options.arms if arm != "none" and (arm, True) in highest]
    claims = []
    if normed and any(r["arm"] == "none" for r in records):
        claims.append(norm_claim(options, highest, normed))
    if {"post-layer", "pre-layer"} <= set(options.arms) and records:
        claims.append(warmup_claim(options, highest, "post-layer", needs=True))
        claims.append(warmup_claim(options, highest, "pre-layer", needs=False))
    return claims


def norm_claim(options: RateOptions, highest: dict[tuple[str, bool], float], normed: Sequence[str]) -> Claim:
    """Normalization allows higher learning rates."""
    plain = highest.get(("none", True))
    factors = {arm: highest[arm, True] / plain for arm in normed} if plain else {}
    shown = [f"{arm} up to {highest[arm, True]:g}" for arm in normed]
    without = f"none up to {plain:g}" if plain else "none at no rate"
    return Claim(
        claim="Normalization allows higher learning rates",
        source="Ioffe & Szegedy 2015; Ba et al. 2016",
        measured=f"With warm-up, {join_words([*shown, without])} (every seed learned; rates a factor of about 3 apart)",
        verdict="agrees"
        if not factors or min(factors.values()) > 1
        else "partly"
        if max(factors.values()) > 1
        else "disagrees",
    )


def warmup_claim(options: RateOptions, highest: dict[tuple[str, bool], float], arm: str, *, needs: bool) -> Claim:
    """Post-LN needs a warm-up and Pre-LN does not."""
    shown = [
        f"{name} up to {highest[arm, on]:g}" if (arm, on) in highest else f"{name} at no rate"
        for name, on in WARMUPS.items()
    ]
    loses = highest.get((arm, True), 0.0) > highest.get((arm, False), 0.0)
    text = "needs a learning-rate warm-up" if needs else "trains without a learning-rate warm-up"
    return Claim(
        claim=f"{arm} {text}",
        source="Xiong et al. 2020",
        measured=f"At {options.depth} blocks, {join_words(shown)}",
        verdict="agrees" if loses == needs else "disagrees",
    )


def draw(options: RateOptions, records: Sequence[Record]) -> list[Figure]:
    """Validation loss by learning rate."""
    if not records:
        return []
    styles = assign_styles(options.arms)
    panels = []
    for heading, warmup in WARMUPS.items():
        series = []
        for arm in options.arms:
            rows = [
                {"rate": math.log10(r["rate"]), "loss": shown_loss(r["loss"])}
                for r in records
                if r["arm"] == arm and r["warmup"] == warmup
            ]
            series.append(band_over(arm, rows, "rate", lambda row: row["loss"]))
        y = Axis("validation loss (nats per byte)", log=False, include=(SHOWN_LOSS,))
        panels.append(
            lines(series, x=Axis("log10 of the learning rate"), y=y, styles=styles, heading=heading.capitalize())
        )
    best = {arm: [r["loss"] for r in records if r["arm"] == arm and r["loss"] is not None] for arm in options.arms}
    shown = [f"{arm} {format_number(min(losses))}" for arm, losses in best.items() if losses]
    return [
        Figure(
            name="learning-rate",
            title=f"Lowest loss over all rates after {options.steps} steps: {join_words(shown)}",
            caption=f"Mean over the seeds; bands span them. Trainings that were lost are drawn at {SHOWN_LOSS:g}.",
            panels=panels,
        )
    ]


LEARNING_RATE = Experiment(
    name="learning-rate",
    title="Usable learning rates",
    question="At which learning rates does the transformer learn, with and without normalization and warm-up?",
    method="Short trainings of the lab's transformer on real text over a grid of constant learning rates, with a "
    "linear warm-up over the first quarter of the steps and without one. A rate is usable when no seed loses its loss "
    "or ends no better than byte frequencies alone.",
    options=RateOptions,
    trials=trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
