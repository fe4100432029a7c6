"""`residual-growth`: how the residual stream grows with depth, at initialization and after a short training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from evenkeel._options.experiments import GrowthOptions
from evenkeel.lab.experiments._estimates import band, below, intervals, mean_of
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, select
from evenkeel.lab.experiments._transformer import build_arm, train, unseen_windows
from evenkeel.lab.transformer import Transformer, norm_styles
from evenkeel.report import Axis, Figure, format_number, join_words, lines

# A power that changes by less than this factor over the whole depth neither grows nor shrinks.
FLAT = 1.5
# A shape that misses the profile by more than this, relative, does not describe it.
POOR_FIT = 0.3


def measure(options: GrowthOptions, trial: Trial) -> dict[str, Any]:
    """Train, and measure the power of the stream after every block before and after."""
    model, seed = build_arm(options, trial), trial["seed"]
    start = powers(model, options, seed)
    losses = train(options, model, seed, lr=options.lr)
    return {"start": start, "end": powers(model, options, seed), "loss": losses[-1], "steps": len(losses)}


@torch.no_grad()
def powers(model: Transformer, options: GrowthOptions, seed: int) -> list[float]:
    """Return E ||x||^2 / d of the stream: after the embedding and after every block."""
    traced = model.train().trace(unseen_windows(options, seed)[:, :-1])
    streams = [traced[f"blocks.{layer}.x"] for layer in range(options.depth)] + [traced["x"]]
    return [x.double().square().mean().item() for x in streams]


def misfits(profile: Sequence[float]) -> dict[str, float]:
    """Return the relative RMS error of the best straight line and the best exponential through a profile.

    The line is fitted with weights 1 / value^2, the exponential on logarithms, so that both errors are relative.
    """
    layers = range(len(profile))
    line = weighted_line(layers, profile, [value**-2 for value in profile])
    slope, intercept = statistics.linear_regression(layers, [math.log(value) for value in profile])
    curve = [math.exp(intercept + slope * layer) for layer in layers]
    return {name: relative_error(fit, profile) for name, fit in (("linear", line), ("exponential", curve))}


def weighted_line(x: Sequence[float], y: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the values of the weighted least-squares line at x."""
    total = math.fsum(weights)
    centre_x = math.fsum(w * a for w, a in zip(weights, x, strict=True)) / total
    centre_y = math.fsum(w * b for w, b in zip(weights, y, strict=True)) / total
    slope = math.fsum(w * (a - centre_x) * (b - centre_y) for w, a, b in zip(weights, x, y, strict=True)) / math.fsum(
        w * (a - centre_x) ** 2 for w, a in zip(weights, x, strict=True)
    )
    return [centre_y + slope * (a - centre_x) for a in x]


def relative_error(fit: Sequence[float], values: Sequence[float]) -> float:
    """Return the RMS of fit / value - 1."""
    return math.sqrt(statistics.fmean((a / b - 1) ** 2 for a, b in zip(fit, values, strict=True)))


def profiles(records: Sequence[Record], arm: str, moment: str) -> list[list[float]]:
    """Return an arm's profiles that are finite and positive throughout, one for each seed."""
    recorded = [record[moment] for record in select(records, arm=arm)]
    return [profile for profile in recorded if all(v is not None and math.isfinite(v) and v > 0 for v in profile)]


def growths(records: Sequence[Record], arm: str) -> list[float]:
    """Return how many times the power after the training is larger at the end of the stream than at its start."""
    return [profile[-1] / profile[0] for profile in profiles(records, arm, "end")]


def shape_of(arm_profiles: Sequence[Sequence[float]]) -> tuple[str, str]:
    """Return the word for a set of profiles (flat, linear, exponential, either, neither) and the numbers behind it."""
    ratio = mean_of([profile[-1] / profile[0] for profile in arm_profiles])
    errors = [misfits(profile) for profile in arm_profiles]
    linear, exponential = (statistics.fmean(error[name] for error in errors) for name in ("linear", "exponential"))
    numbers = f"power grows {format_number(ratio.value)}-fold; a line misses by {format_number(100 * linear)} %, an "
    numbers += f"exponential by {format_number(100 * exponential)} %"
    if 1 / FLAT < ratio.value < FLAT:
        return "flat", numbers
    if min(linear, exponential) > POOR_FIT:
        return "neither", numbers
    better = [error["linear"] < error["exponential"] for error in errors]
    return ("linear" if all(better) else "either" if any(better) else "exponential"), numbers


TOLD = ("none", "pre-layer", "post-layer")  # in the title
# arm, moment, what is claimed, the shapes that bear it out, source
PREDICTIONS = (
    ("none", "start", "Without a norm the stream grows exponentially with depth", ("exponential",), "He et al. 2015"),
    ("pre-layer", "start", "Pre-LN: the power grows linearly at initialization", ("linear",), "Xiong et al. 2020"),
    ("pre-layer", "end", "Pre-LN: training turns the growth exponential", ("exponential",), "Sun et al. 2025"),
    ("post-layer", "end", "Post-LN keeps the power the same at every depth", ("flat",), "Xiong et al. 2020"),
    ("peri-layer", "end", "Peri-LN keeps growth linear in training", ("linear", "flat"), "Kim et al. 2025"),
    ("output-only-layer", "start", "Normalized outputs start with linear growth", ("linear",), "Kim et al. 2025"),
    ("deepnorm-layer", "end", "DeepNorm keeps the power the same at every depth", ("flat",), "Wang et al. 2022"),
)


def judge(options: GrowthOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the shapes of growth with the predictions."""
    words = {"either": "a line and an exponential fit alike", "neither": "neither shape fits"}
    claims = []
    for arm, moment, text, expected, source in PREDICTIONS:
        if not (arm_profiles := profiles(records, arm, moment)):
            continue
        shape, numbers = shape_of(arm_profiles)
        when = "At initialization" if moment == "start" else f"After {options.steps} steps"
        agreement = "agrees" if shape in expected else "undecided" if shape == "either" else "disagrees"
        measured = f"{when}: {words.get(shape, shape)}; {numbers}"
        claims.append(Claim(claim=text, source=source, measured=measured, verdict=agreement))
    plain, damped = (mean_of(growths(records, arm)) for arm in ("pre-layer", "damped-layer"))
    if plain and damped:
        claims.append(
            Claim(
                claim="Scaling each Pre-LN output by 1/sqrt(l) holds the growth of the stream down",
                source="Sun et al. 2025 (LayerNorm scaling)",
                measured=f"After training the power grows {damped} fold with it and {plain} fold without",
                verdict=below(damped, plain),
                intervals=intervals({"with it": damped, "without": plain}),
                quantity="growth of the power, fold",
            )
        )
    return claims


def draw(options: GrowthOptions, records: Sequence[Record]) -> list[Figure]:
    """The stream's power by depth at both moments."""
    if not records:
        return []
    x, y = Axis("blocks passed", integer=True), Axis("E ||x||² / d", log=True)
    panels = []
    for moment, heading in (("start", "At initialization"), ("end", f"After {options.steps} steps")):
        series = [
            band(arm, [point for profile in profiles(records, arm, moment) for point in enumerate(profile)])
            for arm in options.arms
        ]
        panels.append(lines(series, x=x, y=y, styles=norm_styles(options.arms), heading=heading))
    ends = {arm: growths(records, arm) for arm in options.arms}
    told = [arm for arm in TOLD if ends.get(arm)] or list(ends)[:3]
    growth = [f"{format_number(statistics.fmean(ends[arm]), digits=2)}-fold ({arm})" for arm in told if ends[arm]]
    return [
        Figure(
            name="residual-growth",
            title=f"After training the stream's power grows {join_words(growth)} over {options.depth} blocks",
            caption="Mean over the seeds; bands span them.",
            panels=panels,
        )
    ]


RESIDUAL_GROWTH = Experiment(
    name="residual-growth",
    title="Growth of the residual stream",
    question="How does the power of the residual stream grow with depth, and is that growth linear or exponential?",
    method="The lab's transformer is trained briefly on real text with each placement. The power E ||x||² / d of the "
    "stream is measured after every block, before and after training, and a line and an exponential are fitted to it; "
    "the one that misses less, in every seed, names the shape.",
    options=GrowthOptions,
    trials=GrowthOptions.trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
