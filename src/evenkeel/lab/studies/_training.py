"""Training one run: the loop, its records and the checkpoints from which it continues bit for bit.

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
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from evenkeel._errors import StudyError
from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import Records, read_records
from evenkeel.lab.studies._observer import Observer, Run
from evenkeel.lab.studies._schemas import StudyRecord
from evenkeel.lab.training import (
    Corpus,
    autocast,
    even_windows,
    load_checkpoint,
    loss_backward,
    make_optimizer,
    sample_windows,
    save_checkpoint,
    validation_loss,
)
from evenkeel.lab.transformer import Arm, Probe, Transformer

VALIDATIONS = 4  # of a run, beside the one before the first step
VALIDATION_STEPS = 3  # that take as long as a validation
VALIDATION_BATCHES = 8
DIVERGED_WINDOW = 20  # steps
DIVERGED_FACTOR = 2.0


def make_model(arm: Arm, settings: StudySettings, corpus: Corpus, seed: int = 0) -> Transformer:
    """Return the untrained model of an arm."""
    size = {"depth": settings.depth, "width": settings.width, "heads": settings.heads, "context": settings.context}
    return Transformer(arm, **size, seed=seed, vocabulary=corpus.vocabulary)


class ArmTraining:
    """One run: model, optimizer, position, and the directory that holds its records and checkpoint."""

    def __init__(self, run: Run, settings: StudySettings, corpus: Corpus, directory: Path) -> None:
        self.run, self.settings, self.corpus = run, settings, corpus
        self.checkpoint_path = directory / "checkpoint.safetensors"
        self.records_path = directory / "records.jsonl"
        self.model = make_model(run.arm, settings, corpus, run.seed).to(settings.device)
        self.compiled = torch.compile(self.model) if settings.compile else None
        self.optimizer = make_optimizer(self.model, settings.weight_decay)
        self.step = 0
        self.losses: list[float] = []

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
            arm, parameters = self.run.arm, sum(p.numel() for p in self.model.parameters())
            choices = {key: getattr(arm, key) for key in ("norm", "placement", "feed_forward", "bias", "qk_norm")}
            trained = {"lr": self.run.lr, "warmup": self.warmup, "seed": self.run.seed, "parameters": parameters}
            records.write("start", arm=arm.name, **trained, **choices)
        for record in read_records(self.records_path, StudyRecord):
            if record["kind"] == "train":
                self.losses.append(math.nan if record["loss"] is None else record["loss"])
        return records

    def save(self, records: Records) -> None:
        """Replace the checkpoint by the present state."""
        save_checkpoint(self.checkpoint_path, self.model, self.optimizer, step=self.step, records_bytes=records.sync())

    def train_step(self, records: Records) -> float:
        """Train on the step's batch, record it, and return the loss; some steps carry a probe."""
        learning_rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        probe = Probe(self.model) if self.step in self.probe_steps() else None
        with probe or contextlib.nullcontext():
            loss, gradient_norm = self.forward_backward(None if probe else self.compiled)
        if probe is not None:
            records.write("probe", step=self.step, **probe.record())  # before clipping changes the gradients
        if self.settings.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.settings.clip, gradient_norm)
        self.optimizer.step()
        records.write(
            "train",
            step=self.step,
            loss=loss,
            gradient_norm=gradient_norm.item(),
            learning_rate=learning_rate,
        )
        self.losses.append(loss)
        self.step += 1
        return loss

    def forward_backward(self, forward: Callable[..., Tensor] | None) -> tuple[float, Tensor]:
        """Compute the loss and its gradients; return the loss and the norm of all gradients together."""
        self.model.train()
        windows = self.batch(self.step)
        loss = loss_backward(self.model, self.optimizer, windows, compute=self.settings, forward=forward)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return loss, torch.nn.utils.get_total_norm(gradients)

    def batch(self, step: int) -> Tensor:
        """Return the sequences of a step, the same for every arm: (batch, context + 1)."""
        return sample_windows(
            self.corpus, self.run.seed, step, batch=self.settings.batch, context=self.settings.context
        )

    def validate(self) -> float:
        """Return the mean loss over fixed windows of the validation text."""
        size = {"batch": self.settings.batch, "context": self.settings.context}
        return validation_loss(self.model, self.corpus, batches=VALIDATION_BATCHES, compute=self.settings, **size)

    @torch.no_grad()
    def leak(self) -> float | None:
        """Return how much logits change, in training, at positions before the one that is changed: 0 if causal.

        The last byte or token of every sequence is changed; the root mean square of the earlier logits' change is over
        theirs.
        """
        if self.settings.context < 2:
            return None
        tokens = even_windows(self.corpus, self.settings.batch, context=self.settings.context)[:, :-1]
        changed = tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % self.corpus.vocabulary
        self.model.train()
        with autocast(self.settings):
            before, after = (self.model(x.to(self.settings.device))[:, :-1].double() for x in (tokens, changed))
        return ((after - before).square().mean() / before.square().mean()).sqrt().item()

    @property
    def warmup(self) -> int:
        """Steps over which the learning rate rises."""
        return self.settings.steps // 2 if self.run.arm.long_warmup else self.settings.warmup or 0

    def learning_rate(self) -> float:
        """Return the step's learning rate: linear warm-up, then a cosine down to a tenth."""
        warmup = self.warmup
        if self.step < warmup:
            return self.run.lr * (self.step + 1) / warmup
        progress = (self.step - warmup) / max(1, self.settings.steps - warmup)
        return self.run.lr * (0.55 + 0.45 * math.cos(math.pi * progress))

    def probe_steps(self) -> set[int]:
        """Return the steps that carry a probe: the first and the last."""
        return {0, self.settings.steps - 1}

    def has_diverged(self) -> bool:
        """Whether the last loss is not finite, or recent ones cost twice the first step's or a uniform guess's."""
        if self.losses and not math.isfinite(self.losses[-1]):
            return True
        recent = self.losses[-DIVERGED_WINDOW:]
        limit = DIVERGED_FACTOR * max([*self.losses[:1], math.log(self.corpus.vocabulary)])
        return len(recent) == DIVERGED_WINDOW and statistics.fmean(recent) > limit


def train_arm(training: ArmTraining, observer: Observer, *, checkpoint_seconds: float) -> None:
    """Train one run to its end, or to its divergence, from wherever it was left.

    Args:
        training: the run, its settings and its directory.
        observer: is told of every step.
        checkpoint_seconds: least time between two checkpoints.
    """
    settings, run = training.settings, training.run
    every = max(1, settings.steps // VALIDATIONS)
    with training.start() as records:
        observer.run_started(run, training.step)
        saved = time.monotonic()
        validation = math.nan
        while True:
            due = training.step % every == 0 or training.step == settings.steps
            if due:
                validation = training.validate()
                records.write("validation", step=training.step, loss=validation)
                observer.validated(run, training.step, validation)
            diverged = training.has_diverged() or (due and not math.isfinite(validation))
            if diverged or training.step == settings.steps:
                break
            start = time.perf_counter()
            loss = training.train_step(records)
            tokens_per_second = settings.batch * settings.context / (time.perf_counter() - start)
            observer.step_done(run, training.step, loss, tokens_per_second)
            if time.monotonic() - saved >= checkpoint_seconds or training.step == settings.steps:
                training.save(records)
                saved = time.monotonic()
        status = "diverged" if diverged else "finished"
        ends = {} if diverged else {"validation_loss": validation, "leak": training.leak()}
        records.write("end", status=status, step=training.step, **{"validation_loss": None, "leak": None, **ends})
        records.sync()
    observer.run_ended(run, status)


def is_finished(directory: Path) -> bool:
    """Whether a run's records say that it ended."""
    return any(record["kind"] == "end" for record in read_records(directory / "records.jsonl", StudyRecord))
