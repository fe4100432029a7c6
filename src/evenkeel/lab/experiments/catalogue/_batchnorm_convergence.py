"""`batchnorm-convergence`: steps to an accuracy at growing learning rates, with BatchNorm and without."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel._options.experiments import ConvergenceOptions
from evenkeel.lab.experiments._digits import make_network, train_watched
from evenkeel.lab.experiments._estimates import curves, level, spread
from evenkeel.lab.experiments._experiment import Claim, Experiment, Interval, Record, Trial, select
from evenkeel.lab.transformer import norm_styles
from evenkeel.report import MUTED, Axis, Figure, Row, dots, format_number, join_words, lines

NAMES = {"none": "no norm", "batch": "BatchNorm"}
TARGET = "target"
STEPS_DRAWN = "steps to the accuracy (range of the seeds)"
IOFFE = "Ioffe & Szegedy 2015"

Steps = Mapping[int, int | None]  # of each seed to the target, None where it was not reached


def measure(options: ConvergenceOptions, trial: Trial) -> dict[str, Any]:
    """Train until the accuracy is reached."""
    seed, rate = trial["seed"], options.lr * trial["factor"]
    network = make_network(trial["norm"], seed=seed, width=options.width, layers=options.layers)
    steps, curve, losses = train_watched(options, network, seed, lr=rate, target=options.target)
    arrival = steps[-1] if curve[-1] >= options.target else None
    return {"steps": steps, "accuracy": curve, "reached": arrival, "finite": losses[-1] == losses[-1]}


def reached(records: Sequence[Record], norm: str, factor: float) -> Steps:
    """Return the steps of each seed, None where the accuracy was not reached."""
    return {r["seed"]: r["reached"] for r in select(records, norm=norm, factor=factor)}


def in_words(counts: Steps) -> str:
    """Return the steps of several seeds as a text."""
    there = [count for count in counts.values() if count is not None]
    if not there:
        return "never"
    text = f"{format_number(statistics.fmean(there))} steps"
    return text if len(there) == len(counts) else f"{text} in {len(there)} of {len(counts)} seeds"


def judge(options: ConvergenceOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the steps at each rate with those at x1."""
    plain, norm = ({factor: reached(records, name, factor) for factor in options.factors} for name in NAMES)
    higher = [factor for factor in options.factors if factor > 1]
    claims = [same_rate_claim(plain[1], norm[1])] if plain[1] and norm[1] else []
    claims += [faster_claim(norm[1], norm[factor], factor) for factor in higher if norm[1] and norm[factor]]
    return claims + [plain_claim(plain[1], plain[factor], factor) for factor in higher[:1] if plain[factor]]


def same_rate_claim(plain: Steps, norm: Steps) -> Claim:
    """Fewer steps at the same rate."""
    return Claim(
        claim="BatchNorm reaches the same accuracy in fewer steps at the same learning rate",
        source=IOFFE,
        measured=f"At x1: no norm {in_words(plain)}, BatchNorm {in_words(norm)}",
        verdict=fewer(norm, plain),
        intervals=drawn_steps({"no norm": plain, "BatchNorm": norm}),
        quantity=STEPS_DRAWN,
    )


def faster_claim(base: Steps, fast: Steps, factor: float) -> Claim:
    """A higher rate still trains, and makes BatchNorm's training shorter."""
    shorter = fewer(fast, base)
    return Claim(
        claim=f"With BatchNorm a x{factor:g} learning rate still trains, and in fewer steps than x1",
        source=f"{IOFFE}, section 4.2.2 (x5, x30)",
        measured=f"With BatchNorm: x1 {in_words(base)}, x{factor:g} {in_words(fast)}",
        verdict="partly" if shorter != "agrees" and None not in fast.values() else shorter,
        intervals=drawn_steps({"x1": base, f"x{factor:g}": fast}),
        quantity=STEPS_DRAWN,
    )


def plain_claim(base: Steps, fast: Steps, factor: float) -> Claim:
    """A higher rate ruins training without BatchNorm."""
    missed = [count is None for count in fast.values()]
    return Claim(
        claim=f"Without BatchNorm a x{factor:g} learning rate diverges",
        source=f"{IOFFE}, section 4.2.2",
        measured=f"Without norm: x1 {in_words(base)}, x{factor:g} {in_words(fast)}",
        verdict="agrees" if all(missed) else "partly" if any(missed) else "disagrees",
        intervals=drawn_steps({"x1": base, f"x{factor:g}": fast}),
        quantity=STEPS_DRAWN,
    )


def drawn_steps(named: dict[str, Steps]) -> list[Interval]:
    """Return the mean and range of the steps over the seeds that reached the accuracy."""
    return spread({name: [count for count in counts.values() if count is not None] for name, counts in named.items()})


def fewer(these: Steps, those: Steps) -> str:
    """Return the verdict on the claim that these take fewer steps than those, seed by seed."""
    pairs = [(these[seed], those[seed]) for seed in these if seed in those]
    better = [a is not None and (b is None or a < b) for a, b in pairs]
    return "undecided" if not pairs else "agrees" if all(better) else "undecided" if any(better) else "disagrees"


def draw(options: ConvergenceOptions, records: Sequence[Record]) -> list[Figure]:
    """Accuracy by step, and steps to the target."""
    if not records:
        return []
    names = {(norm, factor): f"{NAMES[norm]} x{factor:g}" for norm in NAMES for factor in options.factors}
    trained = {name: select(records, norm=norm, factor=factor) for (norm, factor), name in names.items()}
    series = curves(trained, lambda r: zip(r["steps"], r["accuracy"], strict=True))
    rows = [steps_row(name, reached(records, norm, factor)) for (norm, factor), name in names.items()]
    target, styles = f"{100 * options.target:g} %", norm_styles(names.values())
    accuracy = Axis("test accuracy", log=False, include=(0.0, 1.0))
    panels = [
        lines(
            [*series, *level(TARGET, options.target, series)],
            x=Axis("step"),
            y=accuracy,
            styles=styles | {TARGET: MUTED},
            heading="Accuracy",
        ),
        dots(rows, x=Axis(f"steps to {target}", log=True), styles=styles, heading="Steps to the target"),
    ]
    arrivals = {
        name: [r["reached"] for r in select(records, norm=norm) if r["reached"]] for norm, name in NAMES.items()
    }
    fewest = [f"{f'in {min(steps)} steps' if steps else 'never'} with {name}" for name, steps in arrivals.items()]
    return [
        Figure(
            name="batchnorm-convergence",
            title=f"At its best rate the network reaches {target} {join_words(fewest)}",
            caption=f"A curve ends where it reaches the target. x1 is a learning rate of {options.lr:g}.",
            panels=panels,
        )
    ]


def steps_row(name: str, counts: Steps) -> Row:
    """Return the steps to the target as a row: their mean and range, or in words where a seed missed it."""
    there = [count for count in counts.values() if count is not None]
    if not there or len(there) < len(counts):
        return Row(name, None, note=in_words(counts))
    return Row(name, statistics.fmean(there), low=min(there), high=max(there), points=there)


BATCHNORM_CONVERGENCE = Experiment(
    name="batchnorm-convergence",
    title="BatchNorm and the speed of training",
    question="How many steps does a sigmoid network need to reach an accuracy, with and without BatchNorm, at growing "
    "learning rates?",
    method="A network of sigmoid layers learns scikit-learn's digits by plain stochastic gradient descent, from the "
    "same weights with and without BatchNorm, until it reaches the accuracy on the test images or the last step.",
    options=ConvergenceOptions,
    trials=lambda options: options.grid(norm=NAMES, factor=options.factors),
    measure=measure,
    judge=judge,
    draw=draw,
)
