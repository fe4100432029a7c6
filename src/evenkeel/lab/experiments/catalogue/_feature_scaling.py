"""`feature-scaling`: the same small network on raw and on standardized features of a real table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenkeel._options.experiments import ScalingOptions
from evenkeel._packages import require_package
from evenkeel.lab.experiments._estimates import (
    PERCENT,
    Estimate,
    below,
    curves,
    exactly,
    geometric_mean,
    intervals,
    mean_of,
)
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, select
from evenkeel.lab.transformer import derive_seed, norm_styles
from evenkeel.report import Axis, Figure, Row, bars, format_number, join_words, lines

PREPARATIONS = ("raw", "standardized")


def load(table: str) -> tuple[Tensor, Tensor, list[str]]:
    """Return features, labels and feature names of a bundled table, rows in an order drawn once."""
    bunch = getattr(require_package("sklearn.datasets"), f"load_{table}")()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(derive_seed(0, table)))
    return (
        torch.from_numpy(bunch.data)[order].float(),
        torch.from_numpy(bunch.target).long()[order],
        list(bunch.feature_names),
    )


def prepared(options: ScalingOptions, preparation: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training and test features and labels; the statistics come from the training part alone."""
    x, labels, _ = load(options.table)
    cut = len(x) * 7 // 10
    if preparation == "standardized":
        mean, std = x[:cut].double().mean(0), x[:cut].double().std(0, correction=0)
        x = ((x.double() - mean) / std).float()
    return x[:cut], labels[:cut], x[cut:], labels[cut:]


def measure(options: ScalingOptions, trial: Trial) -> dict[str, Any]:
    """Train by plain gradient descent, and record losses, accuracy, conditioning, and which weights moved."""
    x, labels, test, test_labels = prepared(options, trial["preparation"])
    network = make_network(x.shape[1], options.hidden, int(labels.max()) + 1, trial["seed"])
    first = network.get_parameter("0.weight")
    start = first.detach().clone()
    steps: list[int] = []
    losses: list[float] = []
    for step in range(options.steps + 1):
        loss = F.cross_entropy(network(x), labels)
        if step % options.every == 0:
            steps.append(step)
            losses.append(loss.item())
        if not loss.isfinite() or step == options.steps:
            break
        gradients = torch.autograd.grad(loss, [*network.parameters()])
        with torch.no_grad():
            torch._foreach_add_([*network.parameters()], gradients, alpha=-trial["rate"])
    with torch.no_grad():
        accuracy = (network(test).argmax(-1) == test_labels).float().mean().item()
    return {
        "steps": steps,
        "losses": losses,
        "final": losses[-1] if len(steps) > 1 and steps[-1] == step - step % options.every else math.inf,
        "accuracy": accuracy,
        "condition": condition_number(x),
        "moved": (first.detach() - start).norm(dim=0).tolist(),  # a number for each feature
    }


def make_network(features: int, hidden: int, classes: int, seed: int) -> nn.Sequential:
    """Return Linear, ReLU, Linear; the same weights for the same seed."""
    maps = [nn.Linear(features, hidden), nn.Linear(hidden, classes)]
    for index, linear in enumerate(maps):
        generator = torch.Generator().manual_seed(derive_seed(seed, "feature scaling", index))
        nn.init.xavier_normal_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(maps[0], nn.ReLU(), maps[1])


def condition_number(x: Tensor) -> float:
    """Return the condition number of the Gram matrix of features and a constant: a linear model's curvature."""
    design = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    values = torch.linalg.svdvals(design)
    return (values[0] / values[-1]).square().item()


def at_best(options: ScalingOptions, records: Sequence[Record], preparation: str) -> list[Record]:
    """Return a preparation's records at the rate of the lowest mean final loss, of the rates with no seed lost."""
    by_rate = [select(records, preparation=preparation, rate=rate) for rate in options.rates]
    finite = [same for same in by_rate if same and None not in (r["final"] for r in same)]
    return min(finite, key=lambda same: sum(r["final"] for r in same) / len(same), default=[])


def imbalance(records: Sequence[Record]) -> Estimate:
    """Return how many times farther the weights of the farthest-moved feature went than those of the median one."""
    ways = [r["moved"] for r in records if None not in r["moved"] and min(r["moved"]) > 0]
    return geometric_mean(max(moved) / statistics.median(moved) for moved in ways)


def judge(options: ScalingOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the two preparations, each at its best rate."""
    best = [at_best(options, records, preparation) for preparation in PREPARATIONS]
    if not all(best):
        return []
    losses = [mean_of(r["final"] for r in same) for same in best]
    scores = [mean_of((r["accuracy"] for r in same), scale=100, within=PERCENT) for same in best]
    # the condition number of dependent columns is infinite, recorded as None
    conditions = [math.inf if same[0]["condition"] is None else same[0]["condition"] for same in best]
    moved = [imbalance(same) for same in best]
    rates = [same[0]["rate"] for same in best]
    text = "the textbook account of feature scaling; LeCun et al. 1998 (Efficient BackProp)"
    claims = [
        Claim(
            claim="Unequal feature scales hurt training",
            source=text,
            measured=f"After {options.steps} steps at the best rate of each ({rates[0]:g} and {rates[1]:g}), the "
            f"training loss is {losses[0]} on raw and {losses[1]} on standardized features; test accuracy {scores[0]} "
            f"and {scores[1]} %",
            verdict=below(losses[1], losses[0]),
            intervals=intervals(dict(zip(PREPARATIONS, losses, strict=True))),
            quantity="training loss (nats)",
        ),
        Claim(
            claim="They hurt because they make the problem ill-conditioned",
            source=text,
            measured=f"Condition number of the features' Gram matrix: {format_number(conditions[0])} raw, "
            f"{format_number(conditions[1])} standardized",
            verdict="agrees" if conditions[1] < conditions[0] / 10 else "disagrees",
            intervals=intervals({name: exactly(c) for name, c in zip(PREPARATIONS, conditions, strict=True)}),
            quantity="condition number",
        ),
    ]
    return claims + ([moved_claim(moved, text)] if all(moved) else [])


def moved_claim(moved: Sequence[Estimate], source: str) -> Claim:
    """Whether on raw features the weights of one feature move farther than on standardized ones."""
    return Claim(
        claim="On raw features only the weights of the largest features train",
        source=source,
        measured="The weights of the feature that moved farthest went this many times as far as the median "
        f"feature's: {moved[0]} raw, {moved[1]} standardized",
        verdict=below(moved[1], moved[0]),
        intervals=intervals(dict(zip(PREPARATIONS, moved, strict=True))),
        quantity="farthest over median movement",
    )


def draw(options: ScalingOptions, records: Sequence[Record]) -> list[Figure]:
    """Loss by step at each one's best rate, and which weights moved."""
    best = {preparation: at_best(options, records, preparation) for preparation in PREPARATIONS}
    if not all(best.values()):
        return []
    styles = norm_styles(PREPARATIONS)
    series = curves(best, lambda r: zip(r["steps"], r["losses"], strict=True))
    _, _, names = load(options.table)
    panels = [lines(series, x=Axis("step"), y=Axis("training loss (nats)", log=True), styles=styles, heading="Loss")]
    for preparation, same in best.items():
        ways = [r["moved"] for r in same if None not in r["moved"]]
        if not ways:
            continue
        moved = torch.tensor(ways).mean(0)
        share = (moved / moved.sum()).tolist()
        rows = [Row(name, value) for name, value in zip(names, share, strict=True)]
        style = dict.fromkeys(names, styles[preparation])
        heading = f"Which weights moved, {preparation}"
        panels.append(bars(rows, x=Axis("share of the way", include=(0.0,)), styles=style, heading=heading))
    finals = {name: mean_of(r["final"] for r in same) for name, same in best.items()}
    ends = [f"{format_number(end.value)} on {name}" for name, end in finals.items() if end]
    return [
        Figure(
            name="feature-scaling",
            title=f"At its best rate the training loss comes to {join_words(ends)} features",
            caption="The share of a feature is how far its weights in the first layer moved, of the way of all.",
            panels=panels,
        )
    ]


FEATURE_SCALING = Experiment(
    name="feature-scaling",
    title="Feature scaling",
    question="What do unequal scales of the input features do to training?",
    method="The same network learns a real table by plain gradient descent, on raw and on standardized features, from "
    "the same weights, each over a grid of learning rates; the best rate of each is compared.",
    options=ScalingOptions,
    trials=lambda options: options.grid(preparation=PREPARATIONS, rate=options.rates),
    measure=measure,
    judge=judge,
    draw=draw,
)
