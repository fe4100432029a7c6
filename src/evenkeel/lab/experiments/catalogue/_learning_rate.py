"""`learning-rate`: which learning rates train, with and without norm, with and without warm-up, pre and post."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenkeel._options.experiments import RateOptions
from evenkeel.lab.experiments._estimates import curves, exactly, intervals, level
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
from evenkeel.lab.transformer import norm_styles
from evenkeel.report import MUTED, Axis, Figure, join_words, lines

WARMUPS = {"with warm-up": True, "without warm-up": False}


def measure(options: RateOptions, trial: Trial) -> dict[str, Any]:
    """Train briefly; return the validation loss, and whether nothing was learned."""
    model = build(options, trial["arm"], depth=options.depth, seed=trial["seed"])
    warmup = options.steps // 2 if trial["warmup"] else 0
    losses = train(options, model, trial["seed"], lr=trial["rate"], warmup=warmup)
    return {**outcome(options, model, losses), "steps": len(losses)}


def highest_rate(options: RateOptions, records: Sequence[Record], arm: str, *, warmup: bool) -> float | None:
    """Return the end of the widest run of neighbouring rates at which every seed learned something; 0 without any.

    None means that an arm has not been tried at every rate.
    """
    tried = [[r["failed"] for r in select(records, arm=arm, rate=rate, warmup=warmup)] for rate in options.rates]
    if not all(tried):
        return None
    widest: list[float] = []
    current: list[float] = []
    for rate, failed in zip(options.rates, tried, strict=True):
        current = [] if any(failed) else [*current, rate]
        widest = max(widest, current, key=len)
    return widest[-1] if widest else 0.0


def judge(options: RateOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the highest rates that train."""
    highest = {
        (arm, warmup): rate
        for arm in options.arms
        for warmup in WARMUPS.values()
        if (rate := highest_rate(options, records, arm, warmup=warmup)) is not None
    }
    claims = []
    if ("none", True) in highest and any(highest.get((arm, True)) for arm in options.arms if arm != "none"):
        claims.append(norm_claim({arm: rate for (arm, warmup), rate in highest.items() if warmup}))
    for arm, needs in (("post-layer", True), ("pre-layer", False)):
        if {"post-layer", "pre-layer"} <= set(options.arms) and {(arm, True), (arm, False)} <= set(highest):
            claims.append(warmup_claim(options, {on: highest[arm, on] for on in WARMUPS.values()}, arm, needs=needs))
    return claims


def up_to(name: str, rate: float) -> str:
    """Return the highest rate in words."""
    return f"{name} up to {rate:g}" if rate else f"{name} at no rate"


def norm_claim(highest: dict[str, float]) -> Claim:
    """Normalization allows higher learning rates."""
    normalized = {arm: rate for arm, rate in highest.items() if arm != "none" and rate}
    higher = [rate > highest["none"] for rate in normalized.values()]
    rates = [up_to(arm, rate) for arm, rate in [*normalized.items(), ("none", highest["none"])]]
    return Claim(
        claim="Normalization allows higher learning rates",
        source="Ioffe & Szegedy 2015; Ba et al. 2016",
        measured=f"With warm-up, {join_words(rates)} (every seed learned; rates a factor of about 3 apart)",
        verdict="agrees" if all(higher) else "partly" if any(higher) else "disagrees",
        intervals=intervals({arm: exactly(rate) for arm, rate in highest.items()}),
        quantity="highest usable learning rate",
    )


def warmup_claim(options: RateOptions, highest: dict[bool, float], arm: str, *, needs: bool) -> Claim:
    """Post-LN needs a warm-up and Pre-LN does not."""
    text = "needs a learning-rate warm-up" if needs else "trains without a learning-rate warm-up"
    return Claim(
        claim=f"{arm} {text}",
        source="Xiong et al. 2020",
        measured=f"At {options.depth} blocks, {join_words([up_to(name, highest[on]) for name, on in WARMUPS.items()])}",
        verdict="agrees" if (highest[True] > highest[False]) == needs else "disagrees",
        intervals=intervals({name: exactly(highest[on]) for name, on in WARMUPS.items()}),
        quantity="highest usable learning rate",
    )


def draw(options: RateOptions, records: Sequence[Record]) -> list[Figure]:
    """Validation loss by learning rate."""
    if not records:
        return []
    panels = []
    for heading, warmup in WARMUPS.items():
        groups = grouped(select(records, warmup=warmup), "arm", options.arms)
        series = curves(groups, lambda r: [(r["rate"], drawn_loss(r["loss"]))])
        x, styles = Axis("learning rate", log=True), norm_styles(options.arms) | {FAILED: MUTED}
        series += level(FAILED, least_failed(records), series)
        panels.append(lines(series, x=x, y=LOSS_AXIS, styles=styles, heading=heading.capitalize()))
    highest = {
        arm: rate for arm in options.arms if (rate := highest_rate(options, records, arm, warmup=True)) is not None
    }
    reach = join_words([up_to(arm, rate) for arm, rate in highest.items()]) if highest else "not yet measured"
    return [
        Figure(
            name="learning-rate",
            title=f"Usable learning rates with warm-up: {reach}",
            caption=f"Mean over the seeds; bands span them. Trainings that were lost are drawn at {SHOWN_LOSS:g}.",
            panels=panels,
        )
    ]


LEARNING_RATE = Experiment(
    name="learning-rate",
    title="Usable learning rates",
    question="At which learning rates does the transformer learn, with and without normalization and warm-up?",
    method="Short trainings of the lab's transformer on real text over a grid of constant learning rates, with a "
    "linear warm-up over the first half of the steps and without one. A rate is usable when no seed loses its loss "
    "or ends no better than byte frequencies alone.",
    options=RateOptions,
    trials=lambda options: options.grid(arm=options.arms, warmup=WARMUPS.values(), rate=options.rates),
    measure=measure,
    judge=judge,
    draw=draw,
)
