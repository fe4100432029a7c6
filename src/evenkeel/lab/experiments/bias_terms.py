"""`bias-terms`: the transformer with bias terms and without them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel.lab.arms import find_arm
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial
from evenkeel.lab.experiments._statistics import Estimate, band_over, mean_of
from evenkeel.lab.experiments._training import Schedule, TrainingOptions, final_loss, train_bytes
from evenkeel.lab.model import Transformer
from evenkeel.report import Axis, Figure, assign_styles, format_number, lines

__all__ = ["BIAS_TERMS"]

NAMES = {True: "with biases", False: "without biases"}
CHUNK = 10  # steps between changing over, so that other load on the machine disturbs both models alike


@dataclass(frozen=True, kw_only=True)
class BiasOptions(TrainingOptions):
    """Options of `bias-terms`, and those of every training.

    Attributes:
        arm: placement and norm.
        depth: blocks.
        lr: learning rate after the warm-up.
    """

    seeds: int = 5
    arm: str = "pre-layer"
    depth: int = 4
    width: int = 96
    heads: int = 4
    steps: int = 150
    context: int = 64
    lr: float = 2e-3

    def check(self) -> None:
        """The arm must exist."""
        find_arm(self.arm)


def trials(options: BiasOptions) -> list[Trial]:
    """A pair of trainings for each seed."""
    return options.grid()


def measure(options: BiasOptions, trial: Trial) -> dict[str, Any]:
    """Train both models on the same batches, and time their steps in turn."""
    schedule = options.schedule(options.lr)
    found: dict[str, Any] = {}
    for bias, name in NAMES.items():
        model = make_model(options, trial["seed"], bias=bias)
        losses = train_bytes(model, schedule, trial["seed"])
        found[name] = {
            "losses": losses,
            "validation": final_loss(model, schedule, losses),
            "parameters": sum(p.numel() for p in model.parameters()),
        }
    times = interleaved_seconds(options, trial["seed"])
    return {name: values | {"step_seconds": times[name]} for name, values in found.items()}


def make_model(options: BiasOptions, seed: int, *, bias: bool) -> Transformer:
    """Return the model; both share every weight that is no bias."""
    return options.model(find_arm(options.arm, bias=bias), depth=options.depth, seed=seed)


def interleaved_seconds(options: BiasOptions, seed: int) -> dict[str, float]:
    """Return the median time of a training step of each model, a few steps of one and then of the other."""
    models = {name: make_model(options, seed, bias=bias) for bias, name in NAMES.items()}
    rounds = max(2, min(options.steps // CHUNK, 8))
    times: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 1):
        for name, model in models.items():
            schedule = Schedule(steps=CHUNK, batch=options.batch, context=options.context, lr=options.lr)
            start = time.perf_counter()
            train_bytes(model, schedule, seed + number)
            times[name].append((time.perf_counter() - start) / CHUNK)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def difference(records: Sequence[Record], key: str, *, relative: bool) -> Estimate:
    """Return without less with biases, or the ratio less 1 in percent, seed by seed."""
    pairs = [(r[NAMES[False]][key], r[NAMES[True]][key]) for r in records]
    return mean_of([100 * (a / b - 1) if relative else a - b for a, b in pairs if None not in (a, b)])


def judge(options: BiasOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare loss, size and time."""
    kept = [r for r in records if all(r[name]["validation"] is not None for name in NAMES.values())]
    if not kept:
        return []
    loss = difference(kept, "validation", relative=False)
    size = difference(kept, "parameters", relative=True)
    time_ = difference(kept, "step_seconds", relative=True)
    return [
        Claim(
            claim="Leaving out the bias terms does not cost quality",
            source="Chowdhery et al. 2022 (PaLM); Touvron et al. 2023 (Llama)",
            measured=f"The validation loss changes by {loss} nats per byte without biases, after {options.steps} steps",
            verdict="agrees" if loss.high <= 0.02 else "disagrees" if loss.low > 0.02 else "undecided",
        ),
        Claim(
            claim="It makes the model smaller and faster",
            source="the usual account",
            measured=f"Parameters change by {format_number(size.value)} %, the time of a training step by {time_} %",
            verdict="agrees" if time_.high < 0 else "disagrees" if time_.low > 0 else "undecided",
        ),
    ]


def draw(options: BiasOptions, records: Sequence[Record]) -> list[Figure]:
    """Training loss by step."""
    if not records:
        return []
    series = []
    for name in NAMES.values():
        points = [{"step": step, "loss": loss} for r in records for step, loss in enumerate(r[name]["losses"])]
        series.append(band_over(name, points, "step", lambda p: p["loss"]))
    panel = lines(series, x=Axis("step"), y=Axis("training loss (nats per byte)"), styles=assign_styles(NAMES.values()))
    loss = difference(records, "validation", relative=False)
    return [
        Figure(
            name="bias-terms",
            title=f"Without biases the validation loss changes by {format_number(loss.value)} nats per byte",
            caption="Both models share every weight and every batch; bands span the seeds.",
            panels=[panel],
        )
    ]


BIAS_TERMS = Experiment(
    name="bias-terms",
    title="With and without bias terms",
    question="Does the transformer need the bias terms of its linear maps and norms, and what do they cost?",
    method="The lab's transformer is trained on real text with and without biases, from the same weights on the same "
    "batches; the steps are timed in turn, a few of one and then of the other.",
    options=BiasOptions,
    trials=trials,
    measure=measure,
    judge=judge,
    draw=draw,
    timed=True,
)
