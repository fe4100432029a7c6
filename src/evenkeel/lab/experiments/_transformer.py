"""Short trainings of the lab's transformer on the default text: what several experiments do inside a trial."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from evenkeel._options.experiments import ArmOptions, TrainingOptions, Trial
from evenkeel._options.study import BYTES
from evenkeel.lab.experiments._experiment import Record
from evenkeel.lab.training import (
    Corpus,
    load_corpus,
    loss_backward,
    make_optimizer,
    sample_windows,
    validation_loss,
)
from evenkeel.lab.transformer import Transformer, find_arm
from evenkeel.report import Axis

# A loss this far above a uniform guess's, or one that is not finite, will not come back in a short training.
LOST = 2 * math.log(BYTES)
SHOWN_LOSS = 6.0  # nats; a lost training is drawn here, just above a uniform guess's 5.5
LOSS_AXIS = Axis("validation loss (nats per byte)", log=False, include=(SHOWN_LOSS,))
VALIDATION_BATCHES = 4


def build(options: TrainingOptions, arm: str, *, depth: int, seed: int, bias: bool = True) -> Transformer:
    """Return a transformer of the options' sizes."""
    sizes = {"width": options.width, "heads": options.heads, "context": options.context}
    return Transformer(find_arm(arm, bias=bias), depth=depth, seed=seed, **sizes)


def build_arm(options: ArmOptions, trial: Trial) -> Transformer:
    """Return the untrained model of a trial."""
    return build(options, trial["arm"], depth=options.depth, seed=trial["seed"])


def train(
    options: TrainingOptions,
    model: Transformer,
    seed: int,
    *,
    lr: float,
    warmup: int | None = None,
    steps: int | None = None,
) -> list[float]:
    """Train a model and return the loss of every step; a loss that is lost ends the training.

    Args:
        options: sizes of the batches.
        model: is trained.
        seed: of the batches.
        lr: learning rate after the warm-up, then constant.
        warmup: steps of linear warm-up; None means a tenth of the training.
        steps: of training; None means the option's.
    """
    warmup = options.steps // 10 if warmup is None else warmup
    optimizer = make_optimizer(model, weight_decay=0.1)
    losses = []
    model.train()
    for step in range(options.steps if steps is None else steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / max(1, warmup))
        losses.append(loss_backward(model, optimizer, windows(options, seed, step)))
        if not math.isfinite(losses[-1]) or (losses[-1] > LOST and step > warmup):
            break
        optimizer.step()
    return losses


def windows(options: TrainingOptions, seed: int, step: int) -> Tensor:
    """Return the batch of a training step."""
    return sample_windows(standard_text(options.context), seed, step, batch=options.batch, context=options.context)


def unseen_windows(options: TrainingOptions, seed: int) -> Tensor:
    """Return the batch after those that a training with this seed sees."""
    return windows(options, seed, options.steps)


def final_loss(options: TrainingOptions, model: Transformer, losses: list[float]) -> float:
    """Return the validation loss after a training with these losses; infinite where it was lost."""
    if len(losses) < options.steps or not math.isfinite(losses[-1]):
        return math.inf
    text = standard_text(options.context)
    return validation_loss(model, text, batches=VALIDATION_BATCHES, batch=options.batch, context=options.context)


def outcome(options: TrainingOptions, model: Transformer, losses: list[float]) -> dict[str, Any]:
    """Return the validation loss, and whether nothing was learned: it is no better than byte frequencies give."""
    loss = final_loss(options, model, losses)
    return {"loss": loss, "failed": not loss < standard_text(options.context).frequency_loss}


@functools.lru_cache(maxsize=2)
def standard_text(context: int) -> Corpus:
    """Return the default text, the source of Python's standard library."""
    return load_corpus(None, context=context)


FAILED = "counts as failed"


def least_failed(records: Sequence[Record]) -> float | None:
    """Return the least loss of the trainings that learned nothing: what is above counts as failed."""
    losses = [r["loss"] for r in records if r["failed"] and r["loss"] is not None]
    return min(losses, default=None)


def drawn_loss(loss: float | None) -> float:
    """Return where a loss is drawn; a lost training, recorded as None, stands above all others."""
    return SHOWN_LOSS if loss is None or not math.isfinite(loss) else min(loss, SHOWN_LOSS)
