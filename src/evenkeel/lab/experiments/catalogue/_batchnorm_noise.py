"""`batchnorm-noise`: does the noise of batch statistics regularize, and what does it cost at small batches?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from evenkeel._options.experiments import NoiseOptions
from evenkeel.lab.experiments._digits import (
    Digits,
    accuracy,
    digits,
    frozen_statistics,
    make_network,
    train_digits,
)
from evenkeel.lab.experiments._estimates import (
    Estimate,
    band,
    covers,
    growth_exponent,
    intervals,
    mean_of,
    verdict,
)
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, select
from evenkeel.lab.transformer import norm_styles
from evenkeel.report import Axis, Figure, format_number, join_words, lines

ROUNDING = 1e-6  # relative difference of two float32 evaluations of the same function


def measure(options: NoiseOptions, trial: Trial) -> dict[str, Any]:
    """Train, and measure the gap between training and test and the difference between the two modes."""
    data = digits(options.train_images)
    network = make_network(
        trial["norm"], seed=trial["seed"], width=options.width, layers=options.layers, activation="relu"
    )
    train_digits(network, data, steps=options.steps, batch=trial["batch"], lr=options.lr, seed=trial["seed"])
    train_loss, test_loss = losses(network, data)
    return {
        "train_accuracy": accuracy(network, data.train, data.train_labels),
        "test_accuracy": accuracy(network, data.test, data.test_labels),
        "gap": test_loss - train_loss,
        "test_loss": test_loss,
        "mode_difference": mode_difference(network, data, trial["batch"]),
    }


@torch.no_grad()
def losses(network: nn.Module, data: Digits) -> tuple[float, float]:
    """Return the losses on the training and the test images, in evaluation mode."""
    network.eval()
    train = F.cross_entropy(network(data.train), data.train_labels).item()
    return train, F.cross_entropy(network(data.test), data.test_labels).item()


@torch.no_grad()
def mode_difference(network: nn.Module, data: Digits, batch: int) -> float:
    """Return |train-mode logits - eval-mode logits| / |eval-mode logits| over test batches of this size."""
    network.eval()
    whole = network(data.test)
    with frozen_statistics(network):
        seen = torch.cat([network(part) for part in data.test.split(batch) if len(part) == batch])
    return ((seen - whole[: len(seen)]).norm() / whole[: len(seen)].norm()).item()


def gap_change(options: NoiseOptions, records: Sequence[Record], norm: str) -> Estimate:
    """Return the gap at the smallest batch less that at the largest, over the seeds."""
    small, large = (
        {r["seed"]: r["gap"] for r in select(records, norm=norm, batch=batch) if r["gap"] is not None}
        for batch in (min(options.batches), max(options.batches))
    )
    return mean_of(small[seed] - large[seed] for seed in small if seed in large)


def judge(options: NoiseOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare gaps and modes."""
    changes = {norm: change for norm in options.norms if (change := gap_change(options, records, norm))}
    claims = [gap_claim(options, changes["batch"])] if "batch" in changes else []
    if "batch" in changes and (controls := [norm for norm in ("layer", "rms", "none") if norm in changes]):
        alone = all(changes["batch"].high < changes[norm].low for norm in controls)
        never = all(changes["batch"].low > changes[norm].high for norm in controls)
        claims.append(
            Claim(
                claim="That effect belongs to BatchNorm; norms without batch statistics do not have it",
                source="the usual account; LayerNorm and RMSNorm as the control",
                measured="The same difference without batch statistics: "
                + join_words([f"{norm} {changes[norm]}" for norm in controls]),
                verdict="agrees" if alone else "disagrees" if never else "undecided",
                intervals=intervals({norm: changes[norm] for norm in ("batch", *controls)}),
                quantity="change of the loss gap (nats)",
            )
        )
    return claims + [claim for claim in (mode_claim(records), control_claim(options, records)) if claim]


def gap_claim(options: NoiseOptions, change: Estimate) -> Claim:
    """The gap between training and test at small batches."""
    return Claim(
        claim="BatchNorm's batch noise regularizes: smaller batches narrow the gap between training and test",
        source="Ioffe & Szegedy 2015, section 3.4; Luo et al. 2019",
        measured=f"The loss gap at batch {min(options.batches)} less that at {max(options.batches)} is {change} nats; "
        "a negative number is a narrower gap",
        verdict=verdict(change, -math.inf, 0.0),
        intervals=intervals({"batch": change}),
        quantity="change of the loss gap (nats)",
        allowed=(None, 0.0),
    )


def mode_slope(records: Sequence[Record]) -> Estimate:
    """Return the exponent of the difference between the modes in the batch size."""
    return growth_exponent((r["batch"], r["mode_difference"]) for r in select(records, norm="batch"))


def mode_claim(records: Sequence[Record]) -> Claim | None:
    """Train mode against eval mode by batch size."""
    slope = mode_slope(records)
    if not slope:
        return None
    worst = max(r["mode_difference"] or 0.0 for r in select(records, norm="batch"))
    return Claim(
        claim="BatchNorm's outputs in training and in evaluation drift apart as batches shrink",
        source="Ioffe 2017 (Batch Renormalization)",
        measured=f"The relative difference changes with the batch size to the power {slope}; at most "
        f"{format_number(worst)}",
        verdict=verdict(slope, -math.inf, 0.0),
        intervals=intervals({"exponent": slope}),
        quantity="exponent in the batch size",
        allowed=(None, 0.0),
    )


def control_claim(options: NoiseOptions, records: Sequence[Record]) -> Claim | None:
    """LayerNorm and RMSNorm do the same in both modes."""
    controls = [norm for norm in ("layer", "rms") if norm in options.norms]
    recorded = [r["mode_difference"] for norm in controls for r in select(records, norm=norm)]
    differences = [difference for difference in recorded if difference is not None]
    if not differences:
        return None
    return Claim(
        claim="LayerNorm and RMSNorm compute the same in training and in evaluation",
        source="Ba et al. 2016",
        measured=f"Largest relative difference of the outputs {format_number(max(differences))}",
        verdict="agrees" if max(differences) <= ROUNDING else "disagrees",
    )


def draw(options: NoiseOptions, records: Sequence[Record]) -> list[Figure]:
    """Gap and difference between the modes by batch size."""
    if not records:
        return []
    x, styles = Axis("images of a batch", log=True), norm_styles(options.norms)
    panels = []
    for key, heading, y in (
        ("gap", "Gap", Axis("test loss − training loss (nats)")),
        ("mode_difference", "Training against evaluation mode", Axis("|train − eval| / |eval|", log=True, floor=1e-8)),
    ):
        series = [band(norm, [(r["batch"], r[key]) for r in select(records, norm=norm)]) for norm in options.norms]
        panels.append(lines(series, x=x, y=y, styles=styles, heading=heading))
    return [
        Figure(
            name="batchnorm-noise",
            title=noise_title(options, records),
            caption="Test loss less training loss after the same number of steps; and the relative difference between "
            "the outputs in training and in evaluation mode, drawn at 1e-8 where there is none. Bands span the seeds.",
            panels=panels,
        )
    ]


def noise_title(options: NoiseOptions, records: Sequence[Record]) -> str:
    """What small batches do to BatchNorm's gap and to its two modes."""
    change, slope = gap_change(options, records, "batch"), mode_slope(records)
    seen = "change" if not change or covers(change, 0.0) else "narrow" if change.value < 0 else "widen"
    gap = f"Smaller batches {'do not visibly change' if seen == 'change' else seen} BatchNorm's gap"
    apart = ", and drive its two modes apart" if slope and slope.high < 0 else ""
    return f"{gap} between training and test{apart}"


BATCHNORM_NOISE = Experiment(
    name="batchnorm-noise",
    title="The noise of batch statistics",
    question="Does the noise of its batch statistics make BatchNorm regularize, and how far apart are its two modes?",
    method="Small networks learn a small part of scikit-learn's digits for the same number of steps at growing batch "
    "sizes, with BatchNorm and, as the control, with norms that have no batch statistics and with none. The gap is "
    "the test loss less the training loss, both in evaluation mode.",
    options=NoiseOptions,
    trials=lambda options: options.grid(norm=options.norms, batch=options.batches),
    measure=measure,
    judge=judge,
    draw=draw,
)
