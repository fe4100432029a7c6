"""`bias-terms`: the transformer with bias terms and without them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from evenkeel._options.experiments import BiasOptions
from evenkeel.lab.experiments._estimates import Estimate, band, below, covers, exactly, intervals, mean_of, verdict
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial
from evenkeel.lab.experiments._transformer import build, final_loss, train
from evenkeel.lab.training import seconds_in_turn
from evenkeel.lab.transformer import Transformer, norm_styles
from evenkeel.report import Axis, Figure, format_number, lines

NAMES = WITH, WITHOUT = "with biases", "without biases"
CHUNK = 10  # steps between changing over, so that other load on the machine disturbs both models alike


def measure(options: BiasOptions, trial: Trial) -> dict[str, Any]:
    """Train both models on the same batches, and time their steps in turn."""
    seed = trial["seed"]
    measured: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        model = make_model(options, seed, name)
        losses = train(options, model, seed, lr=options.lr)
        measured[name] = {
            "losses": losses,
            "validation": final_loss(options, model, losses),
            "parameters": sum(p.numel() for p in model.parameters()),
        }
    rounds = max(2, min(options.steps // CHUNK, 8))
    times = seconds_in_turn([training(options, seed, name) for name in NAMES], rounds)
    for name, taken in zip(NAMES, times, strict=True):
        measured[name]["step_seconds"] = statistics.median(taken) / CHUNK
    return measured


def make_model(options: BiasOptions, seed: int, name: str) -> Transformer:
    """Return the model with or without biases; both share every weight that is no bias."""
    return build(options, options.arm, depth=options.depth, seed=seed, bias=name == WITH)


def training(options: BiasOptions, seed: int, name: str) -> Callable[[], object]:
    """Return a call that trains a model for a few steps, each time on batches of its own."""
    model, seeds = make_model(options, seed, name), itertools.count(seed)
    return lambda: train(options, model, next(seeds), lr=options.lr, warmup=0, steps=CHUNK)


def change(records: Sequence[Record], key: str) -> Estimate:
    """Return by how many percent a number is larger without biases, over the seeds."""
    return mean_of(100 * (r[WITHOUT][key] / r[WITH][key] - 1) for r in records)


def loss_change(records: Sequence[Record]) -> Estimate:
    """Return the validation loss without biases less that with them, over the seeds at which neither was lost."""
    ends = ((r[WITHOUT]["validation"], r[WITH]["validation"]) for r in records)
    return mean_of(without - with_ for without, with_ in ends if None not in (without, with_))


def judge(options: BiasOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare loss, size and time, over the seeds at which neither training was lost."""
    kept = [r for r in records if None not in (r[WITH]["validation"], r[WITHOUT]["validation"])]
    if not kept:
        return []
    loss, size, seconds = loss_change(kept), change(kept, "parameters"), change(kept, "step_seconds")
    return [
        Claim(
            claim="Leaving out the bias terms does not cost quality",
            source="Chowdhery et al. 2022 (PaLM); Touvron et al. 2023 (Llama)",
            measured=f"The validation loss changes by {loss} nats per byte without biases, after {options.steps} steps",
            verdict=verdict(loss, -float("inf"), 0.02),
            intervals=intervals({"without biases": loss}),
            quantity="change of the loss (nats per byte)",
            allowed=(None, 0.02),
        ),
        Claim(
            claim="It makes the model smaller and faster",
            source="the usual account",
            measured=f"Parameters change by {format_number(size.value)} %, the time of a training step by {seconds} %",
            verdict=below(seconds, exactly(0)),
            intervals=intervals({"step time": seconds, "parameters": exactly(size.value)}),
            quantity="change (%)",
            allowed=(None, 0.0),
        ),
    ]


def draw(options: BiasOptions, records: Sequence[Record]) -> list[Figure]:
    """Training loss by step."""
    if not records:
        return []
    series = [band(name, [point for r in records for point in enumerate(r[name]["losses"])]) for name in NAMES]
    panel = lines(series, x=Axis("step"), y=Axis("training loss (nats per byte)"), styles=norm_styles(NAMES))
    loss = loss_change(records)
    return [
        Figure(
            name="bias-terms",
            title="Leaving out the biases makes no difference seen in the loss"
            if covers(loss, 0.0)
            else f"Leaving out the biases changes the loss by {format_number(loss.value)} nats per byte",
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
    trials=lambda options: options.grid(),
    measure=measure,
    judge=judge,
    draw=draw,
    timed=True,
)
