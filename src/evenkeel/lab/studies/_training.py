"""Training one arm: the loop, its records and the checkpoints from which it continues bit for bit.

Nothing random is left to carry over: a step's batch is drawn from a generator seeded by (seed, step) alone, and the
model has no dropout. A checkpoint is therefore the weights, the optimizer's moments, the step and the size of the
records at that moment, all in one file, because two files cannot be replaced at once.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from evenkeel._errors import StudyError
from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import Records, read_records
from evenkeel.lab.studies._schemas import StudyRecord
from evenkeel.lab.training import (
    Corpus,
    load_checkpoint,
    loss_backward,
    make_optimizer,
    measure_cost,
    sample_windows,
    save_checkpoint,
    validation_loss,
)
from evenkeel.lab.transformer import Arm, Probe, Transformer

VALIDATIONS = 10  # per arm, beside the one before the first step
VALIDATION_BATCHES = 8
PROBE_FRACTIONS = (0.0, 0.25, 1.0)  # of the steps
DIVERGED_WINDOW = 20  # steps
DIVERGED_FACTOR = 2.0


class Observer:
    """Told how a study goes on; does nothing unless a method is overridden.

    Example:
        >>> from evenkeel.lab import Observer
        >>> class Printer(Observer):
        ...     def validated(self, step: int, loss: float) -> None:
        ...         print(step, loss)
        >>> Printer().validated(100, 2.5)
        100 2.5
    """

    def arm_skipped(self, arm: Arm, seed: int) -> None:
        """An arm of a resumed study had ended before."""

    def arm_started(self, arm: Arm, seed: int, step: int) -> None:
        """An arm begins, or continues, at this step."""

    def step_done(self, step: int, loss: float, tokens_per_second: float) -> None:
        """This many training steps are done; the loss is the last one's."""

    def validated(self, step: int, loss: float) -> None:
        """The validation loss after this many steps is known."""

    def arm_ended(self, arm: Arm, seed: int, status: str) -> None:
        """An arm ended as ``finished`` or ``diverged``."""


class ArmTraining:
    """One arm with one seed: model, optimizer, position, and the directory that holds its records and checkpoint."""

    def __init__(self, arm: Arm, seed: int, settings: StudySettings, corpus: Corpus, directory: Path) -> None:
        self.arm, self.seed, self.settings, self.corpus = arm, seed, settings, corpus
        self.checkpoint_path = directory / "checkpoint.safetensors"
        self.records_path = directory / "records.jsonl"
        self.model = Transformer(
            arm,
            depth=settings.depth,
            width=settings.width,
            heads=settings.heads,
            context=settings.context,
            seed=seed,
        )
        self.optimizer = make_optimizer(self.model, settings.weight_decay)
        self.step = 0
        self.losses: list[float] = []
        self.step_seconds: list[float] = []

    def start(self) -> Records:
        """Continue from the checkpoint, or else from the first step; return the records to append to."""
        recorded_bytes = 0
        if self.checkpoint_path.exists():
            self.step, recorded_bytes = load_checkpoint(
                self.checkpoint_path, self.model, self.optimizer, step=self.settings.steps, records_bytes=sys.maxsize
            )
        if recorded_bytes > (self.records_path.stat().st_size if self.records_path.exists() else 0):
            raise StudyError(
                f"{self.records_path} is shorter than its checkpoint says; delete the directory "
                f"{self.records_path.parent} to run this arm again"
            )
        records = Records(self.records_path, keep=recorded_bytes)
        if not recorded_bytes:
            arm, parameters = self.arm, sum(p.numel() for p in self.model.parameters())
            choices = {key: getattr(arm, key) for key in ("norm", "placement", "feed_forward", "bias", "qk_norm")}
            records.write("start", arm=arm.name, seed=self.seed, parameters=parameters, **choices)
        for record in read_records(self.records_path, StudyRecord):
            if record["kind"] == "train":
                self.losses.append(math.nan if record["loss"] is None else record["loss"])
                self.step_seconds.append(record["step_seconds"])
        return records

    def save(self, records: Records) -> None:
        """Replace the checkpoint by the present state."""
        save_checkpoint(self.checkpoint_path, self.model, self.optimizer, step=self.step, records_bytes=records.sync())

    def train_step(self, records: Records) -> float:
        """Train on the step's batch, record it, and return the loss; some steps carry a probe."""
        start = time.perf_counter()
        learning_rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        probe = Probe(self.model) if self.step in self.probe_steps() else None
        with probe or contextlib.nullcontext():
            loss, gradient_norm = self.forward_backward()
        if probe is not None:
            probe.after_backward()
        if self.settings.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.settings.clip, gradient_norm)
        self.optimizer.step()
        if probe is not None:
            # At the first step Adam's update is the learning rate's sign pattern: it says nothing about the arm.
            records.write("probe", step=self.step, **probe.record(with_updates=self.step > 0))
        self.step_seconds.append(time.perf_counter() - start)
        records.write(
            "train",
            step=self.step,
            loss=loss,
            gradient_norm=gradient_norm.item(),
            learning_rate=learning_rate,
            step_seconds=self.step_seconds[-1],
            tokens=self.settings.batch * self.settings.context,
        )
        self.losses.append(loss)
        self.step += 1
        return loss

    def forward_backward(self) -> tuple[float, Tensor]:
        """Compute the loss and its gradients; return the loss and the norm of all gradients together."""
        self.model.train()
        loss = loss_backward(self.model, self.optimizer, self.batch(self.step))
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return loss, torch.nn.utils.get_total_norm(gradients)

    def batch(self, step: int) -> Tensor:
        """Return the sequences of a step, the same for every arm: (batch, context + 1)."""
        return sample_windows(self.corpus, self.seed, step, batch=self.settings.batch, context=self.settings.context)

    def validate(self) -> float:
        """Return the mean loss over fixed windows of the validation text."""
        size = {"batch": self.settings.batch, "context": self.settings.context}
        return validation_loss(self.model, self.corpus, batches=VALIDATION_BATCHES, **size)

    def cost(self) -> dict[str, float | None]:
        """Return the median time of the training steps, and what the norms take of a step by `measure_cost`."""
        cost = measure_cost(self.model, self.batch(self.step))
        # over the whole training: the few steps that measure_cost times stand for a moment of the machine's load
        return cost | ({"step_seconds": statistics.median(self.step_seconds)} if self.step_seconds else {})

    def learning_rate(self) -> float:
        """Return the step's learning rate: linear warm-up, then a cosine down to a tenth."""
        warmup = self.settings.warmup or 0
        if self.step < warmup:
            return self.settings.lr * (self.step + 1) / warmup
        progress = (self.step - warmup) / max(1, self.settings.steps - warmup)
        return self.settings.lr * (0.55 + 0.45 * math.cos(math.pi * progress))

    def probe_steps(self) -> set[int]:
        """Return the steps that carry a probe: the first, one at a quarter, the last."""
        return {round(fraction * (self.settings.steps - 1)) for fraction in PROBE_FRACTIONS}

    def has_diverged(self) -> bool:
        """Whether the last loss is not finite, or recent ones cost twice the first step's or a uniform guess's."""
        if self.losses and not math.isfinite(self.losses[-1]):
            return True
        recent = self.losses[-DIVERGED_WINDOW:]
        limit = DIVERGED_FACTOR * max([*self.losses[:1], math.log(256)])
        return len(recent) == DIVERGED_WINDOW and statistics.fmean(recent) > limit


def train_arm(training: ArmTraining, observer: Observer, *, checkpoint_seconds: float) -> None:
    """Train one arm to its end, or to its divergence, from wherever it was left.

    Args:
        training: the arm, its settings and its directory.
        observer: is told of every step.
        checkpoint_seconds: least time between two checkpoints.
    """
    settings = training.settings
    every = max(1, settings.steps // VALIDATIONS)
    with training.start() as records:
        observer.arm_started(training.arm, training.seed, training.step)
        saved = time.monotonic()
        validation = math.nan
        while True:
            due = training.step % every == 0 or training.step == settings.steps
            if due:
                validation = training.validate()
                records.write("validation", step=training.step, loss=validation)
                observer.validated(training.step, validation)
            diverged = training.has_diverged() or (due and not math.isfinite(validation))
            if diverged or training.step == settings.steps:
                break
            loss = training.train_step(records)
            rate = settings.batch * settings.context / training.step_seconds[-1]
            observer.step_done(training.step, loss, rate)
            if time.monotonic() - saved >= checkpoint_seconds or training.step == settings.steps:
                training.save(records)
                saved = time.monotonic()
        status = "diverged" if diverged else "finished"
        records.write("cost", **training.cost())
        records.write("end", status=status, step=training.step, validation_loss=None if diverged else validation)
        records.sync()
    observer.arm_ended(training.arm, training.seed, status)


def is_finished(directory: Path) -> bool:
    """Whether an arm's records say that it ended."""
    return any(record["kind"] == "end" for record in read_records(directory / "records.jsonl", StudyRecord))
