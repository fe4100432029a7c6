"""`norm-before-activation`: Linear, BatchNorm, activation against Linear, activation, BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenkeel._options.experiments import OrderOptions
from evenkeel.lab.experiments._digits import ORDERS, make_network, train_watched
from evenkeel.lab.experiments._estimates import (
    Estimate,
    below,
    covers,
    curves,
    exactly,
    intervals,
    mean_of,
)
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, select
from evenkeel.lab.transformer import norm_styles
from evenkeel.report import Axis, Figure, format_number, join_words, lines


def measure(options: OrderOptions, trial: Trial) -> dict[str, Any]:
    """Train, and record the test accuracy along the way."""
    seed, choices = trial["seed"], {"activation": trial["activation"], "order": trial["order"]}
    network = make_network("batch", seed=seed, width=options.width, layers=options.layers, **choices)
    steps, curve, losses = train_watched(options, network, seed, lr=options.lr)
    return {"steps": steps, "accuracy": curve, "loss": losses[-1]}


def advantage(records: Sequence[Record], activation: str) -> Estimate:
    """Return the mean accuracy along the way of `before` less that of `after`, in percentage points, over the seeds."""
    before, after = (
        {r["seed"]: mean_of(r["accuracy"][1:]).value for r in select(records, activation=activation, order=order)}
        for order in ORDERS
    )
    return mean_of(100 * (before[seed] - after[seed]) for seed in before if seed in after)


def judge(options: OrderOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the orders."""
    gains = {activation: advantage(records, activation) for activation in options.activations}
    return [
        Claim(
            claim=f"BatchNorm belongs before the activation ({activation})",
            source="Ioffe & Szegedy 2015, section 3.2",
            measured=f"Test accuracy, averaged over {options.steps} steps, is higher by {gain} percentage points "
            "with the norm before the activation than after it",
            verdict=below(exactly(0), gain),
            intervals=intervals({activation: gain}),
            quantity="accuracy gained (points)",
            allowed=(0.0, None),
        )
        for activation, gain in gains.items()
        if gain
    ]


def draw(options: OrderOptions, records: Sequence[Record]) -> list[Figure]:
    """Accuracy by step for both orders, a panel for each activation."""
    if not records:
        return []
    names = {order: f"norm {order}" for order in ORDERS}
    x, y, styles = Axis("step"), Axis("test accuracy", log=False), norm_styles(names.values())
    panels = []
    for activation in options.activations:
        trained = {name: select(records, activation=activation, order=order) for order, name in names.items()}
        series = curves(trained, lambda r: zip(r["steps"], r["accuracy"], strict=True))
        panels.append(lines(series, x=x, y=y, styles=styles, heading=activation))
    gains = {activation: advantage(records, activation) for activation in options.activations}
    told = [f"{format_number(gain.value, digits=2)} points ({name})" for name, gain in gains.items() if gain]
    unseen = all(covers(gain, 0.0) for gain in gains.values() if gain)
    return [
        Figure(
            name="norm-before-activation",
            title="No difference is seen between the norm before and after the activation"
            if unseen
            else f"The norm before the activation gains {join_words(told)} of accuracy",
            caption="Averaged over the training; bands span the seeds.",
            panels=panels,
        )
    ]


NORM_BEFORE_ACTIVATION = Experiment(
    name="norm-before-activation",
    title="Before or after the activation",
    question="Does BatchNorm work better before the activation than after it?",
    method="A network learns scikit-learn's digits by plain stochastic gradient descent, each hidden layer being "
    "Linear, BatchNorm, activation, or Linear, activation, BatchNorm, from the same weights.",
    options=OrderOptions,
    trials=lambda options: options.grid(activation=options.activations, order=ORDERS),
    measure=measure,
    judge=judge,
    draw=draw,
)
