"""Short trainings of the lab's transformer on the default text: what several experiments do inside a trial."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from evenkeel.lab.arms import Arm
from evenkeel.lab.experiments._experiment import Options
from evenkeel.lab.model import Transformer, next_byte_loss
from evenkeel.lab.text import Corpus, load_corpus
from evenkeel.lab.training import make_optimizer, sample_windows

__all__ = [
    "SHOWN_LOSS",
    "Schedule",
    "TrainingOptions",
    "final_loss",
    "has_failed",
    "shown_loss",
    "standard_text",
    "train_bytes",
    "validation_loss",
]

# A loss this far above a uniform guess's, or one that is not finite, will not come back in a short training.
LOST = 2 * math.log(256)
SHOWN_LOSS = 6.0  # nats; a lost training is drawn here, just above a uniform guess's 5.5


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A short training: how long, on how much, how fast.

    Attributes:
        steps: of training.
        batch: sequences of a step.
        context: bytes of a sequence.
        lr: learning rate after the warm-up, then constant.
        warmup: steps of linear warm-up.
        weight_decay: AdamW's, on the matrices of linear maps.
    """

    steps: int
    batch: int
    context: int
    lr: float
    warmup: int = 0
    weight_decay: float = 0.1


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """The options that experiments share which train the lab's transformer; they add arms, depths and learning rates.

    Attributes:
        width: size of the stream.
        heads: attention heads.
        steps: of training.
        batch: sequences of a step.
        context: bytes of a sequence.
    """

    width: int = 48
    heads: int = 2
    steps: int = 60
    batch: int = 8
    context: int = 32

    def model(self, arm: Arm, *, depth: int, seed: int) -> Transformer:
        """Return a transformer of these sizes."""
        return Transformer(arm, depth=depth, width=self.width, heads=self.heads, context=self.context, seed=seed)

    def schedule(self, lr: float) -> Schedule:
        """Return the training at a learning rate, with a warm-up over its first tenth."""
        return Schedule(steps=self.steps, batch=self.batch, context=self.context, lr=lr, warmup=self.steps // 10)

    def unseen_windows(self, seed: int) -> Tensor:
        """Return the batch after those that a training with this seed sees."""
        return sample_windows(standard_text(self.context), seed, self.steps, batch=self.batch, context=self.context)


@functools.lru_cache(maxsize=2)
def standard_text(context: int) -> Corpus:
    """Return the default text, the source of Python's standard library."""
    return load_corpus(None, context=context)


def train_bytes(
    model: Transformer, schedule: Schedule, seed: int, *, watch: Callable[[int], None] | None = None
) -> list[float]:
    """Train a model and return the loss of every step; a loss that is lost ends the training.

    Args:
        model: is trained.
        schedule: how.
        seed: of the batches.
        watch: called after each backward pass, before the update, with the number of the step.
    """
    corpus = standard_text(schedule.context)
    optimizer = make_optimizer(model, schedule.weight_decay)
    losses = []
    model.train()
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr * min(1.0, (step + 1) / max(1, schedule.warmup))
        optimizer.zero_grad()
        loss = next_byte_loss(model, sample_windows(corpus, seed, step, batch=schedule.batch, context=schedule.context))
        loss.backward()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]) or (losses[-1] > LOST and step > schedule.warmup):
            break
        if watch is not None:
            watch(step)
        optimizer.step()
    return losses


@torch.no_grad()
def validation_loss(model: Transformer, schedule: Schedule, batches: int = 4) -> float:
    """Return the mean loss over evenly spaced windows of the validation text, in nats per byte."""
    text = standard_text(schedule.context).validation
    starts = torch.linspace(0, len(text) - schedule.context - 1, batches * schedule.batch, dtype=torch.float64).long()
    model.eval()
    losses = [
        next_byte_loss(model, text[part[:, None] + torch.arange(schedule.context + 1)].long())
        for part in starts.split(schedule.batch)
    ]
    return torch.stack(losses).mean().item()


def final_loss(model: Transformer, schedule: Schedule, losses: list[float]) -> float:
    """Return the validation loss after a training with these losses; infinite where it was lost."""
    finished = len(losses) == schedule.steps and math.isfinite(losses[-1])
    return validation_loss(model, schedule) if finished else math.inf


def shown_loss(loss: float | None) -> float:
    """Return where a loss is drawn; a lost training, recorded as None, stands above all others."""
    return SHOWN_LOSS if loss is None or not math.isfinite(loss) else min(loss, SHOWN_LOSS)


def has_failed(loss: float, context: int) -> bool:
    """Whether a training learned nothing: its validation loss is no better than byte frequencies alone give."""
    return not math.isfinite(loss) or loss >= standard_text(context).frequency_loss
