"""`gradients-at-init`: gradients and the residual stream of an untrained transformer, by depth and width."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from evenkeel._errors import StudyError
from evenkeel._options.experiments import GradientOptions
from evenkeel.lab.experiments._estimates import (
    band,
    curves,
    geometric_mean,
    growth_exponent,
    intervals,
    mean_of,
    verdict,
)
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, grouped, select
from evenkeel.lab.experiments._transformer import standard_text
from evenkeel.lab.training import sample_windows
from evenkeel.lab.transformer import Transformer, derive_seed, find_arm, next_token_loss, norm_styles
from evenkeel.report import MUTED, Axis, Figure, Series, format_number, join_words, lines

XIONG = "Xiong et al. 2020"
# How far a measured exponent may lie from the predicted one and still be called the same.
EXPONENT_TOLERANCE = 0.1
BOUNDS = ("1 + l/2", "1 + 3l/2")
GRADIENT = Axis("gradient norm", log=True)


def trials(options: GradientOptions) -> list[Trial]:
    """Return each arm at each depth with and without attention, and at each width."""
    shapes = [(depth, options.width, attention) for depth in options.depths for attention in (True, False)]
    shapes += [(options.depth, width, True) for width in options.widths]
    return [
        {"arm": arm, "depth": depth, "width": width, "attention": attention, "seed": seed}
        for depth, width, attention in dict.fromkeys(shapes)
        for arm in options.arms
        for seed in options.seed_range()
    ]


def measure(options: GradientOptions, trial: Trial) -> dict[str, Any]:
    """Run one forward and backward pass: ``||x_l||^2 / d`` and the gradients of the feed-forward's second maps."""
    arm = find_arm(trial["arm"], feed_forward="relu", bias=False)
    width = trial["width"]
    model = Transformer(arm, depth=trial["depth"], width=width, heads=1, context=options.context, seed=trial["seed"])
    as_in_the_theory(model, trial["seed"], attention=trial["attention"])
    corpus = standard_text(options.context)
    windows = sample_windows(corpus, trial["seed"], 0, batch=options.batch, context=options.context)
    with torch.no_grad():
        traced = model.trace(windows[:, :-1])
    next_token_loss(model, windows).backward()
    streams = [traced[f"blocks.{layer}.x"] for layer in range(trial["depth"])] + [traced["x"]]
    last = f"blocks.{trial['depth'] - 1}.x_{model.step_name}_5"
    return {
        "stream": [power(x) for x in streams],
        "before_last_norm": power(traced[last]) if last in traced else power(traced["x"]),
        "gradients": [
            gradient_norm(model.get_parameter(f"blocks.{layer}.feed_forward.function.down.weight"))
            for layer in range(trial["depth"])
        ],
    }


def as_in_the_theory(model: Transformer, seed: int, *, attention: bool) -> None:
    """Draw the feed-forward with variance 1 / fan-in, so that it halves the power of a normalized input.

    For the square matrices of the theory this is Xavier's; it keeps the prediction at any hidden width. Queries are
    zero, so that attention averages, as the theory assumes; without attention its output map is zero too.
    """
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        kind = name.rpartition(".")[2]
        generator = torch.Generator().manual_seed(derive_seed(seed, "theory", name))
        if kind in ("up", "down"):
            nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
        elif kind == "query" or (kind == "output" and not attention):
            nn.init.zeros_(module.weight)


def power(x: torch.Tensor) -> float:
    """Return E ||x||^2 / d."""
    return x.double().square().mean().item()


def gradient_norm(parameter: torch.Tensor) -> float:
    """Return the Frobenius norm of a parameter's gradient."""
    if parameter.grad is None:
        raise StudyError("a parameter has no gradient; this is a mistake in the experiment")
    return parameter.grad.double().norm().item()


def sweep(options: GradientOptions, records: Sequence[Record], arm: str, *, attention: bool) -> list[Record]:
    """Return an arm's records of the sweep over depth."""
    return select(records, arm=arm, width=options.width, attention=attention)


def last_gradients(records: Sequence[Record], x: Callable[[Record], float]) -> list[tuple[float, float | None]]:
    """Return the last layer's gradient in each record, with the position that x gives it."""
    return [(x(record), record["gradients"][-1]) for record in records]


def depth_of(record: Record) -> float:
    """Return the number of blocks."""
    return record["depth"]


def judge(options: GradientOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare with the predictions of Xiong et al."""
    claims = [
        last_layer_claim(options, records, "post-layer", "does not depend on depth"),
        last_layer_claim(options, records, "pre-layer", "falls as (1 + L/2)^-1/2 with depth L"),
        stream_claim(options, records),
        post_stream_claim(options, records),
        *(width_claim(options, records, arm) for arm in ("post-layer", "pre-layer")),
        vanishing_claim(options, records),
    ]
    return [claim for claim in claims if claim is not None]


def last_layer_claim(options: GradientOptions, records: Sequence[Record], arm: str, text: str) -> Claim | None:
    """The gradient of the last feed-forward layer against depth."""
    predicted, x = PREDICTED[arm]
    exponent = growth_exponent(last_gradients(sweep(options, records, arm, attention=True), x))
    if not exponent:
        return None
    depths = f"{min(options.depths)} to {max(options.depths)} blocks"
    return Claim(
        claim=f"{arm}: the gradient of the last feed-forward layer {text}",
        source=f"{XIONG}, theorem 1",
        measured=f"Over {depths} at width {options.width}, its exponent is {exponent}; predicted {predicted:g}",
        verdict=verdict(exponent, predicted - EXPONENT_TOLERANCE, predicted + EXPONENT_TOLERANCE),
        intervals=intervals({"exponent": exponent}),
        quantity=f"exponent; predicted {predicted:g}",
        allowed=(predicted - EXPONENT_TOLERANCE, predicted + EXPONENT_TOLERANCE),
    )


def width_claim(options: GradientOptions, records: Sequence[Record], arm: str) -> Claim | None:
    """The gradient of the last feed-forward layer against width: the theory gives an upper bound."""
    wide = select(records, arm=arm, depth=options.depth, attention=True)
    exponent = growth_exponent(last_gradients(wide, lambda r: r["width"] * math.sqrt(math.log(r["width"]))))
    if not exponent:
        return None
    return Claim(
        claim=f"{arm}: at fixed depth the gradient of the last feed-forward layer grows at most as d sqrt(ln d)",
        source=f"{XIONG}, theorem 1 (an upper bound)",
        measured=f"Over widths {min(options.widths)} to {max(options.widths)} at {options.depth} blocks, its exponent "
        f"in d sqrt(ln d) is {exponent}; at most 1 was predicted",
        verdict=verdict(exponent, -math.inf, 1.0),
        intervals=intervals({"exponent": exponent}),
        quantity="exponent; at most 1 predicted",
        allowed=(None, 1.0),
    )


def stream_claim(options: GradientOptions, records: Sequence[Record]) -> Claim | None:
    """``E ||x_l||^2`` in Pre-LN."""
    without, with_ = (
        [point for r in sweep(options, records, "pre-layer", attention=on) for point in enumerate(r["stream"])]
        for on in (False, True)
    )
    if not without or not with_ or None in (power for _, power in [*without, *with_]):
        return None
    # at initialization, a layer's expectation does not depend on the depth
    means = band("", without)
    ratios = [mean / (1 + layer / 2) for layer, mean in zip(means.x, means.y, strict=True) if mean is not None]
    error = max(abs(ratio - 1) for ratio in ratios)
    within = [0.9 * (1 + layer / 2) <= power <= 1.1 * (1 + 3 * layer / 2) for layer, power in with_]
    bounds = [error < 0.1, all(within)]
    return Claim(
        claim="Pre-LN: the stream's E ||x_l||^2 lies between (1 + l/2) d, without attention, and (1 + 3l/2) d",
        source=f"{XIONG}, lemma 2",
        measured=f"Without attention it is (1 + l/2) d within {format_number(100 * error)} %; with attention "
        f"{sum(within)} of {len(within)} values lie between the bounds, give or take 10 %",
        verdict="agrees" if all(bounds) else "partly" if any(bounds) else "disagrees",
    )


def post_stream_claim(options: GradientOptions, records: Sequence[Record]) -> Claim | None:
    """``E ||x||^2`` in Post-LN before the last norm of a block."""
    power = mean_of(r["before_last_norm"] for r in sweep(options, records, "post-layer", attention=False))
    if not power:
        return None
    return Claim(
        claim="Post-LN: the stream's E ||x||^2 before a block's last norm stays 3d/2 at any depth",
        source=f"{XIONG}, lemma 2",
        measured=f"In the last block it is {power} times d, over all depths",
        verdict=verdict(power, 1.5 * 0.95, 1.5 * 1.05),
        intervals=intervals({"last block": power}),
        quantity="E ||x||² / d; predicted 1.5",
        allowed=(1.5 * 0.95, 1.5 * 1.05),
    )


def vanishing_claim(options: GradientOptions, records: Sequence[Record]) -> Claim | None:
    """The textbook picture of Post-LN: gradients that vanish towards the first layers."""
    deepest = max(options.depths)
    with_, without = (
        geometric_mean(
            r["gradients"][0] / r["gradients"][-1]
            for r in select(sweep(options, records, "post-layer", attention=on), depth=deepest)
            if r["gradients"][0] and r["gradients"][-1]
        )
        for on in (True, False)
    )
    if not with_ or not without:
        return None
    return Claim(
        claim="Post-LN: at initialization gradients vanish towards the first layers",
        source="the textbook picture of Post-LN",
        measured=f"At {deepest} blocks the first feed-forward layer's gradient is {with_} times the last one's with "
        f"attention, and {without} times without",
        verdict=verdict(with_, 0.0, 0.1),
        intervals=intervals({"attention": with_, "without": without}),
        quantity="first gradient over last; vanished to 0.1",
        allowed=(None, 0.1),
    )


def draw(options: GradientOptions, records: Sequence[Record]) -> list[Figure]:
    """The last layer's gradient by depth and width, every layer's at the deepest, and the stream's power."""
    if not records:
        return []
    by_depth = {arm: last_gradients(sweep(options, records, arm, attention=True), depth_of) for arm in options.arms}
    by_width = {
        arm: last_gradients(select(records, arm=arm, depth=options.depth, attention=True), lambda r: r["width"])
        for arm in options.arms
    }
    last = Figure(
        name="last-gradient",
        title=last_gradient_title(options, records),
        caption="The gradient of the second map of the last feed-forward layer at initialization; bands span"
        " the seeds. The dotted lines are what theorem 1 predicts of Pre-LN, drawn through its first point.",
        panels=[
            lines(
                [band(arm, points) for arm, points in curves.items()] + predicted_curve(curves, law),
                x=Axis(label, log=True),
                y=GRADIENT,
                styles=norm_styles(options.arms) | dict.fromkeys(LAWS, MUTED),
                heading=heading,
            )
            for curves, label, heading, law in (
                (by_depth, "blocks L", f"Width {options.width}", "(1 + L/2)^-1/2"),
                (by_width, "width d", f"{options.depth} blocks", "d sqrt(ln d)"),
            )
        ],
    )
    return [last, layers_figure(options, records), stream_figure(options, records)]


def last_gradient_title(options: GradientOptions, records: Sequence[Record]) -> str:
    """How the last layer's gradient changes with depth, by the exponents that the claims have."""
    texts = []
    for arm, (_, x) in PREDICTED.items():
        exponent = growth_exponent(last_gradients(sweep(options, records, arm, attention=True), x))
        if exponent:
            steady, falls = abs(exponent.value) < EXPONENT_TOLERANCE, exponent.value < 0
            change = "keeps its size" if steady else "falls" if falls else "grows"
            texts.append(f"{change} with {arm} (exponent {format_number(exponent.value, digits=2)})")
    return f"With depth the last layer's gradient {join_words(texts)}" if texts else "The last layer's gradient"


def predicted_curve(curves: Mapping[str, Sequence[tuple[float, float | None]]], law: str) -> list[Series]:
    """Return a law of theorem 1 through the first point of Pre-LN, if that was measured."""
    measured = band(law, curves.get("pre-layer", ()))
    if not measured.y or not measured.y[0]:
        return []
    scale = measured.y[0] / LAWS[law](measured.x[0])
    return [Series(law, measured.x, [scale * LAWS[law](x) for x in measured.x])]


def deepest_profiles(options: GradientOptions, records: Sequence[Record], key: str, start: int) -> list[Series]:
    """Return one curve for each arm: the values of every layer at the greatest depth, over the seeds."""
    deepest = select(records, width=options.width, attention=True, depth=max(options.depths))
    return curves(grouped(deepest, "arm", options.arms), lambda r: enumerate(r[key], start=start))


def layers_figure(options: GradientOptions, records: Sequence[Record]) -> Figure:
    """Gradient norm of every feed-forward layer at the greatest depth."""
    series = deepest_profiles(options, records, "gradients", 1)
    x = Axis("block (1 is next to the embedding)", integer=True)
    return Figure(
        name="gradients-by-layer",
        title=layers_title(options, records),
        caption="The gradient of the second map of every feed-forward layer at initialization, with attention.",
        panels=[lines(series, x=x, y=GRADIENT, styles=norm_styles(options.arms))],
    )


def layers_title(options: GradientOptions, records: Sequence[Record]) -> str:
    """How the first block's gradient compares with the last one's, as a geometric mean over the seeds."""
    texts = []
    for arm in options.arms:
        deepest = select(sweep(options, records, arm, attention=True), depth=max(options.depths))
        ratio = geometric_mean(r["gradients"][0] / r["gradients"][-1] for r in deepest if all(r["gradients"]))
        if ratio:
            texts.append(f"{format_number(ratio.value, digits=2)} with {arm}")
    return f"The first block's gradient is {join_words(texts)} times the last one's"


def stream_figure(options: GradientOptions, records: Sequence[Record]) -> Figure:
    """Power of the residual stream by depth, beside the predicted bounds of Pre-LN."""
    layers = list(range(max(options.depths) + 1))
    series = [
        *deepest_profiles(options, records, "stream", 0),
        Series(BOUNDS[0], layers, [1 + layer / 2 for layer in layers]),
        Series(BOUNDS[1], layers, [1 + 3 * layer / 2 for layer in layers]),
    ]
    ends = [f"{format_number(item.y[-1])} with {item.name}" for item in series[:-2] if item.y]
    x, y = Axis("blocks passed", integer=True), Axis("E ||x||² / d", log=True)
    return Figure(
        name="stream-at-init",
        title=f"Through {max(options.depths)} blocks the stream's power comes to {join_words(ends)}",
        caption="E ||x_l||² / d at initialization, with attention, beside the bounds predicted for Pre-LN (dotted).",
        panels=[lines(series, x=x, y=y, styles=norm_styles(options.arms) | dict.fromkeys(BOUNDS, MUTED))],
    )


# What theorem 1 says of the last layer's gradient in Pre-LN: with depth, and at most with width.
LAWS: dict[str, Callable[[float], float]] = {
    "(1 + L/2)^-1/2": lambda depth: (1 + depth / 2) ** -0.5,
    "d sqrt(ln d)": lambda width: width * math.sqrt(math.log(width)),
}

# arm -> the predicted exponent of the last layer's gradient, and in what
PREDICTED: dict[str, tuple[float, Callable[[Record], float]]] = {
    "post-layer": (0.0, depth_of),
    "pre-layer": (-0.5, lambda record: 1 + record["depth"] / 2),
}

GRADIENTS_AT_INIT = Experiment(
    name="gradients-at-init",
    title="Gradients at initialization",
    question="How do the gradients and the residual stream of an untrained transformer depend on depth, width and the "
    "placement of the norm?",
    method="One forward and backward pass of the lab's transformer at initialization on real text, with one head, ReLU "
    "and no biases. Feed-forward maps have variance 1/fan-in and queries are zero, as the theory assumes; without "
    "attention its output map is zero as well.",
    options=GradientOptions,
    trials=trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
