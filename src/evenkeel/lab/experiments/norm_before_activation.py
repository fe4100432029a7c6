"""`norm-before-activation`: Linear, BatchNorm, activation against Linear, activation, BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel._errors import StudyError
from evenkeel.lab.experiments._digits import (
    ACTIVATIONS,
    ORDERS,
    DigitsOptions,
    accuracy,
    digits,
    make_network,
    train_digits,
)
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial
from evenkeel.lab.experiments._statistics import Estimate, band_over, mean_of
from evenkeel.report import Axis, Figure, assign_styles, format_number, join_words, lines

__all__ = ["NORM_BEFORE_ACTIVATION"]


@dataclass(frozen=True, kw_only=True)
class OrderOptions(DigitsOptions):
    """Options of `norm-before-activation`, and those of every training on the digits.

    Attributes:
        activations: sigmoid, relu.
    """

    seeds: int = 5
    activations: tuple[str, ...] = ("sigmoid", "relu")

    def check(self) -> None:
        """Activations must exist."""
        if unknown := [name for name in self.activations if name not in ACTIVATIONS]:
            raise StudyError(f"activations must be of {join_words(list(ACTIVATIONS))}, but one is {unknown[0]!r}")


def trials(options: OrderOptions) -> list[Trial]:
    """Each order with each activation."""
    return options.grid(activation=options.activations, order=ORDERS)


def measure(options: OrderOptions, trial: Trial) -> dict[str, Any]:
    """Train; the test accuracy along the way."""
    data = digits()
    network = make_network(
        "batch",
        seed=trial["seed"],
        width=options.width,
        layers=options.layers,
        activation=trial["activation"],
        order=trial["order"],
    )
    steps, curve = [0], [accuracy(network, data.test, data.test_labels)]

    def look(step: int, _: float) -> bool:
        if step % options.every == 0 or step == options.steps:
            steps.append(step)
            curve.append(accuracy(network, data.test, data.test_labels))
        return False

    losses = train_digits(
        network, data, steps=options.steps, batch=options.batch, lr=options.lr, seed=trial["seed"], watch=look
    )
    return {"steps": steps, "accuracy": curve, "loss": losses[-1]}


def advantage(records: Sequence[Record], activation: str) -> Estimate | None:
    """Return the mean accuracy along the way of `before` less that of `after`, in percentage points, over the seeds."""
    means = {
        order: {
            r["seed"]: sum(r["accuracy"][1:]) / len(r["accuracy"][1:])
            for r in records
            if r["activation"] == activation and r["order"] == order
        }
        for order in ORDERS
    }
    common = [
        100 * (means["before"][seed] - means["after"][seed]) for seed in means["before"] if seed in means["after"]
    ]
    return mean_of(common) if common else None


def judge(options: OrderOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the orders."""
    claims = []
    for activation in options.activations:
        found = advantage(records, activation)
        if found is None:
            continue
        claims.append(
            Claim(
                claim=f"BatchNorm belongs before the activation ({activation})",
                source="Ioffe & Szegedy 2015, section 3.2",
                measured=f"Test accuracy, averaged over {options.steps} steps, is higher by {found} percentage points "
                "with the norm before the activation than after it",
                verdict="agrees" if found.low > 0 else "disagrees" if found.high < 0 else "undecided",
            )
        )
    return claims


def draw(options: OrderOptions, records: Sequence[Record]) -> list[Figure]:
    """Accuracy by step for both orders, a panel for each activation."""
    if not records:
        return []
    names = {order: f"norm {order}" for order in ORDERS}
    styles = assign_styles(names.values())
    panels = []
    for activation in options.activations:
        series = []
        for order, name in names.items():
            chosen = [r for r in records if r["activation"] == activation and r["order"] == order]
            points = [
                {"step": s, "accuracy": a} for r in chosen for s, a in zip(r["steps"], r["accuracy"], strict=True)
            ]
            series.append(band_over(name, points, "step", lambda p: p["accuracy"]))
        panels.append(
            lines(series, x=Axis("step"), y=Axis("test accuracy", log=False), styles=styles, heading=activation)
        )
    found = {activation: advantage(records, activation) for activation in options.activations}
    shown = [f"{name} {format_number(value.value)}" for name, value in found.items() if value is not None]
    return [
        Figure(
            name="norm-before-activation",
            title=f"Accuracy gained by norm before activation, in percentage points: {join_words(shown)}",
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
    trials=trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
