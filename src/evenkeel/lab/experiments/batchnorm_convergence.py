"""`batchnorm-convergence`: steps to an accuracy at growing learning rates, with BatchNorm and without."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel._errors import StudyError
from evenkeel.lab.experiments._digits import DigitsOptions, accuracy, digits, make_network, train_digits
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial
from evenkeel.lab.experiments._statistics import band_over
from evenkeel.report import Axis, Figure, Row, assign_styles, dots, format_number, join_words, lines

__all__ = ["BATCHNORM_CONVERGENCE"]

NAMES = {"none": "no norm", "batch": "BatchNorm"}
IOFFE = "Ioffe & Szegedy 2015"


@dataclass(frozen=True, kw_only=True)
class ConvergenceOptions(DigitsOptions):
    """Options of `batchnorm-convergence`, and those of every training on the digits.

    Attributes:
        lr: the learning rate called x1.
        factors: multiples of it, ascending; 1 among them.
        target: the test accuracy to reach, below 1.
    """

    lr: float = 1.0
    factors: tuple[float, ...] = (1, 5, 30)
    steps: int = 2000
    target: float = 0.9

    def check(self) -> None:
        """The target must be an accuracy and the factors contain 1."""
        if self.target >= 1:
            raise StudyError(f"target must be an accuracy below 1, but is {self.target}")
        if 1 not in self.factors or list(self.factors) != sorted(set(self.factors)):
            raise StudyError("factors must ascend and contain 1, for example 1,5,30")


def trials(options: ConvergenceOptions) -> list[Trial]:
    """Each rate with and without BatchNorm."""
    return options.grid(norm=NAMES, factor=options.factors)


def measure(options: ConvergenceOptions, trial: Trial) -> dict[str, Any]:
    """Train until the accuracy is reached."""
    data = digits()
    network = make_network(trial["norm"], seed=trial["seed"], width=options.width, layers=options.layers)
    steps, curve = [0], [accuracy(network, data.test, data.test_labels)]

    def look(step: int, _: float) -> bool:
        if step % options.every == 0 or step == options.steps:
            steps.append(step)
            curve.append(accuracy(network, data.test, data.test_labels))
        return curve[-1] >= options.target

    rate = options.lr * trial["factor"]
    losses = train_digits(
        network, data, steps=options.steps, batch=options.batch, lr=rate, seed=trial["seed"], watch=look
    )
    reached = steps[-1] if curve[-1] >= options.target else None
    return {"steps": steps, "accuracy": curve, "reached": reached, "finite": losses[-1] == losses[-1]}


def reached(records: Sequence[Record], norm: str, factor: float) -> list[int | None]:
    """Return the steps of each seed, None where the accuracy was not reached."""
    return [r["reached"] for r in records if r["norm"] == norm and r["factor"] == factor]


def in_words(counts: Sequence[int | None]) -> str:
    """Return the steps of several seeds as a text."""
    there = [count for count in counts if count is not None]
    if not there:
        return "never"
    text = f"{format_number(statistics.fmean(there))} steps"
    return text if len(there) == len(counts) else f"{text} in {len(there)} of {len(counts)} seeds"


def judge(options: ConvergenceOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the steps at each rate."""
    if not records:
        return []
    claims = [same_rate_claim(records)]
    factors = [factor for factor in options.factors if factor > 1]
    claims += [faster_claim(records, factor) for factor in factors]
    claims += [plain_claim(records, factor) for factor in factors[:1]]
    return claims


def same_rate_claim(records: Sequence[Record]) -> Claim:
    """Fewer steps at the same rate."""
    plain, norm = reached(records, "none", 1), reached(records, "batch", 1)
    return Claim(
        claim="BatchNorm reaches the same accuracy in fewer steps at the same learning rate",
        source=IOFFE,
        measured=f"At x1: no norm {in_words(plain)}, BatchNorm {in_words(norm)}",
        verdict=fewer(norm, plain),
    )


def faster_claim(records: Sequence[Record], factor: float) -> Claim:
    """A higher rate still trains, and makes BatchNorm's training shorter."""
    base, fast = reached(records, "batch", 1), reached(records, "batch", factor)
    shorter = fewer(fast, base)
    return Claim(
        claim=f"With BatchNorm a x{factor:g} learning rate still trains, and in fewer steps than x1",
        source=f"{IOFFE}, section 4.2.2 (x5, x30)",
        measured=f"With BatchNorm: x1 {in_words(base)}, x{factor:g} {in_words(fast)}",
        verdict="partly" if shorter != "agrees" and fast and None not in fast else shorter,
    )


def plain_claim(records: Sequence[Record], factor: float) -> Claim:
    """A higher rate ruins training without BatchNorm."""
    base, fast = reached(records, "none", 1), reached(records, "none", factor)
    missed = sum(count is None for count in fast)
    return Claim(
        claim=f"Without BatchNorm a x{factor:g} learning rate diverges",
        source=f"{IOFFE}, section 4.2.2",
        measured=f"Without norm: x1 {in_words(base)}, x{factor:g} {in_words(fast)}",
        verdict="agrees" if missed == len(fast) and fast else "partly" if missed else "disagrees",
    )


def fewer(these: Sequence[int | None], those: Sequence[int | None]) -> str:
    """Return the verdict on the claim that these take fewer steps than those, seed by seed."""
    pairs = list(zip(these, those, strict=False))
    better = [a is not None and (b is None or a < b) for a, b in pairs]
    return "agrees" if pairs and all(better) else "undecided" if any(better) else "disagrees"


def draw(options: ConvergenceOptions, records: Sequence[Record]) -> list[Figure]:
    """Accuracy by step, and steps to the target."""
    if not records:
        return []
    names = {(norm, factor): f"{NAMES[norm]} x{factor:g}" for norm in NAMES for factor in options.factors}
    styles = assign_styles(names.values())
    series, rows = [], []
    for (norm, factor), name in names.items():
        chosen = [r for r in records if r["norm"] == norm and r["factor"] == factor]
        points = [{"step": s, "accuracy": a} for r in chosen for s, a in zip(r["steps"], r["accuracy"], strict=True)]
        series.append(band_over(name, points, "step", lambda p: p["accuracy"]))
        counts = reached(records, norm, factor)
        there = [count for count in counts if count is not None]
        complete = bool(there) and len(there) == len(counts)
        rows.append(
            Row(
                name,
                statistics.fmean(there) if complete else None,
                low=min(there) if complete else None,
                high=max(there) if complete else None,
                points=there if complete else (),
                note="" if complete else in_words(counts),
            )
        )
    accuracy = Axis("test accuracy", log=False, include=(0.0, 1.0))
    count = Axis(f"steps to {100 * options.target:g} %", log=True)
    panels = [
        lines(series, x=Axis("step"), y=accuracy, styles=styles, heading="Accuracy"),
        dots(rows, x=count, styles=styles, heading="Steps to the target"),
    ]
    best = {
        norm: min((r["reached"] for r in records if r["norm"] == norm and r["reached"]), default=None) for norm in NAMES
    }
    shown = [f"{NAMES[norm]} {steps or 'never'}" for norm, steps in best.items()]
    return [
        Figure(
            name="batchnorm-convergence",
            title=f"Fewest steps to {100 * options.target:g} % over all rates: {join_words(shown)}",
            caption=f"A curve ends where it reaches the target. x1 is a learning rate of {options.lr:g}.",
            panels=panels,
        )
    ]


BATCHNORM_CONVERGENCE = Experiment(
    name="batchnorm-convergence",
    title="BatchNorm and the speed of training",
    question="How many steps does a sigmoid network need to reach an accuracy, with and without BatchNorm, at growing "
    "learning rates?",
    method="A network of sigmoid layers learns scikit-learn's digits by plain stochastic gradient descent, from the "
    "same weights with and without BatchNorm, until it reaches the accuracy on the test images or the last step.",
    options=ConvergenceOptions,
    trials=trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
