"""Short trainings of the lab's transformer on the default text: what several experiments do inside a trial."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evenkeel._options.study import BYTES
from evenkeel.lab.experiments._experiment import Options, Record, Trial
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

    def model(self, arm: str, *, depth: int, seed: int, bias: bool = True) -> Transformer:
        """Return a transformer of these sizes."""
        sizes = {"width": self.width, "heads": self.heads, "context": self.context}
        return Transformer(find_arm(arm, bias=bias), depth=depth, seed=seed, **sizes)

    def train(
        self, model: Transformer, seed: int, *, lr: float, warmup: int | None = None, steps: int | None = None
    ) -> list[float]:
        """Train a model and return the loss of every step; a loss that is lost ends the training.

        Args:
            model: is trained.
            seed: of the batches.
            lr: learning rate after the warm-up, then constant.
            warmup: steps of linear warm-up; None means a tenth of the training.
            steps: of training; None means the option's.
        """
        warmup = self.steps // 10 if warmup is None else warmup
        optimizer = make_optimizer(model, weight_decay=0.1)
        losses = []
        model.train()
        for step in range(self.steps if steps is None else steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, (step + 1) / max(1, warmup))
            losses.append(loss_backward(model, optimizer, self.windows(seed, step)))
            if not math.isfinite(losses[-1]) or (losses[-1] > LOST and step > warmup):
                break
            optimizer.step()
        return losses

    def windows(self, seed: int, step: int) -> Tensor:
        """Return the batch of a training step."""
        return sample_windows(standard_text(self.context), seed, step, batch=self.batch, context=self.context)

    def unseen_windows(self, seed: int) -> Tensor:
        """Return the batch after those that a training with this seed sees."""
        return self.windows(seed, self.steps)

    def final_loss(self, model: Transformer, losses: list[float]) -> float:
        """Return the validation loss after a training with these losses; infinite where it was lost."""
        if len(losses) < self.steps or not math.isfinite(losses[-1]):
            return math.inf
        text = standard_text(self.context)
        return validation_loss(model, text, batches=VALIDATION_BATCHES, batch=self.batch, context=self.context)

    def outcome(self, model: Transformer, losses: list[float]) -> dict[str, Any]:
        """Return the validation loss, and whether nothing was learned: it is no better than byte frequencies give."""
        loss = self.final_loss(model, losses)
        return {"loss": loss, "failed": not loss < standard_text(self.context).frequency_loss}


@dataclass(frozen=True, kw_only=True)
class ArmOptions(TrainingOptions):
    """The options of trainings that compare arms at one depth and learning rate.

    Attributes:
        arms: placements and norms to compare.
        depth: blocks.
        lr: learning rate after the warm-up.
    """

    arms: tuple[str, ...] = ("pre-layer",)
    depth: int = 6
    lr: float = 2e-3

    def check(self) -> None:
        """Check that the arms exist."""
        for name in self.arms:
            find_arm(name)

    def trials(self) -> list[Trial]:
        """Return each arm with each seed."""
        return self.grid(arm=self.arms)

    def start(self, trial: Trial) -> Transformer:
        """Return the untrained model of a trial."""
        return self.model(trial["arm"], depth=self.depth, seed=trial["seed"])


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
