"""`batchnorm-noise`: does the noise of batch statistics regularize, and what does it cost at small batches?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from evenkeel._errors import StudyError
from evenkeel.lab.experiments._digits import HIDDEN_NORMS, Digits, accuracy, digits, make_network, train_digits
from evenkeel.lab.experiments._experiment import Claim, Experiment, Options, Record, Trial
from evenkeel.lab.experiments._statistics import Estimate, band_over, growth_exponent, mean_of, verdict
from evenkeel.report import Axis, Figure, assign_styles, format_number, join_words, lines

__all__ = ["BATCHNORM_NOISE"]

ROUNDING = 1e-6  # relative difference of two float32 evaluations of the same function


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(Options):
    """Options of `batchnorm-noise`.

    Attributes:
        norms: to compare; those without batch statistics are the control.
        batches: images of a step, ascending, at least 2.
        train_images: a small training set, so that there is something to overfit.
        steps: of training, the same for every batch size.
        lr: learning rate.
        width: of each hidden layer.
        layers: hidden layers.
    """

    seeds: int = 5
    norms: tuple[str, ...] = ("batch", "layer", "rms", "none")
    batches: tuple[int, ...] = (4, 8, 16, 32, 128)
    train_images: int = 300
    steps: int = 600
    lr: float = 0.1
    width: int = 100
    layers: int = 2

    def check(self) -> None:
        """Norms must exist; a batch of one has no batch statistics."""
        if unknown := [norm for norm in self.norms if norm not in HIDDEN_NORMS]:
            raise StudyError(f"norms must be of {join_words(list(HIDDEN_NORMS))}, but one is {unknown[0]!r}")
        if min(self.batches) < 2:
            raise StudyError("batches must be at least 2; BatchNorm has no statistics for a batch of 1")


def trials(options: NoiseOptions) -> list[Trial]:
    """Each norm at each batch size."""
    return options.grid(norm=options.norms, batch=options.batches)


def measure(options: NoiseOptions, trial: Trial) -> dict[str, Any]:
    """Train; the gap between training and test, and the difference between the two modes."""
    data = digits(options.train_images)
    network = make_network(
        trial["norm"], seed=trial["seed"], width=options.width, layers=options.layers, activation="relu"
    )
    train_digits(network, data, steps=options.steps, batch=trial["batch"], lr=options.lr, seed=trial["seed"])
    train_loss, test_loss = losses(network, data)
    return {
        "train_accuracy": accuracy(network, data.train, data.train_labels),
        "test_accuracy": accuracy(network, data.test, data.test_labels),
        "gap": test_loss - train_loss,
        "test_loss": test_loss,
        "mode_difference": mode_difference(network, data, trial["batch"]),
    }


@torch.no_grad()
def losses(network: nn.Module, data: Digits) -> tuple[float, float]:
    """Return the losses on the training and the test images, in evaluation mode."""
    network.eval()
    train = F.cross_entropy(network(data.train), data.train_labels).item()
    return train, F.cross_entropy(network(data.test), data.test_labels).item()


@torch.no_grad()
def mode_difference(network: nn.Module, data: Digits, batch: int) -> float:
    """Return |train-mode logits - eval-mode logits| / |eval-mode logits| over test batches of this size."""
    network.eval()
    whole = network(data.test)
    network.train()
    momenta = {m: m.momentum for m in network.modules() if isinstance(m, nn.BatchNorm1d)}
    for module in momenta:
        module.momentum = 0.0  # looking must not move the running statistics
    parts = [network(part) for part in data.test.split(batch) if len(part) == batch]
    for module, momentum in momenta.items():
        module.momentum = momentum
    seen = torch.cat(parts)
    return ((seen - whole[: len(seen)]).norm() / whole[: len(seen)].norm()).item()


def of(records: Sequence[Record], norm: str, batch: int | None = None) -> list[Record]:
    """Return the records of a norm, of one batch size or of all."""
    return [r for r in records if r["norm"] == norm and batch in (None, r["batch"])]


def gap_change(options: NoiseOptions, records: Sequence[Record], norm: str) -> Estimate | None:
    """Return the gap at the smallest batch less that at the largest, over the seeds."""
    ends = [
        {r["seed"]: r["gap"] for r in of(records, norm, batch)}
        for batch in (min(options.batches), max(options.batches))
    ]
    common = [ends[0][seed] - ends[1][seed] for seed in ends[0] if seed in ends[1]]
    return mean_of(common) if common else None


def judge(options: NoiseOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare gaps and modes."""
    small, large = min(options.batches), max(options.batches)
    changes = {norm: found for norm in options.norms if (found := gap_change(options, records, norm))}
    claims = []
    if "batch" in changes:
        claims.append(
            Claim(
                claim="BatchNorm's batch noise regularizes: smaller batches narrow the gap between training and test",
                source="Ioffe & Szegedy 2015, section 3.4; Luo et al. 2019",
                measured=f"The loss gap at batch {small} less that at {large} is {changes['batch']} nats; a negative "
                "number is a narrower gap",
                verdict=verdict(changes["batch"], -float("inf"), 0.0),
            )
        )
    if "batch" in changes and (controls := [norm for norm in ("layer", "rms", "none") if norm in changes]):
        shown = [f"{norm} {changes[norm]}" for norm in controls]
        alone = all(changes["batch"].high < changes[norm].low for norm in controls)
        never = all(changes["batch"].low > changes[norm].high for norm in controls)
        claims.append(
            Claim(
                claim="That effect belongs to BatchNorm; norms without batch statistics do not have it",
                source="the usual account; LayerNorm and RMSNorm as the control",
                measured=f"The same difference without batch statistics: {join_words(shown)}",
                verdict="agrees" if alone else "disagrees" if never else "undecided",
            )
        )
    claims += [claim for claim in (mode_claim(records), control_claim(options, records)) if claim]
    return claims


def mode_claim(records: Sequence[Record]) -> Claim | None:
    """Train mode against eval mode by batch size."""
    chosen = of(records, "batch")
    if len({r["batch"] for r in chosen}) < 2:
        return None
    slope = growth_exponent([r["batch"] for r in chosen], [r["mode_difference"] for r in chosen])
    worst = max(r["mode_difference"] for r in chosen)
    return Claim(
        claim="BatchNorm's outputs in training and in evaluation drift apart as batches shrink",
        source="Ioffe 2017 (Batch Renormalization)",
        measured=f"The relative difference changes with the batch size to the power {slope}; at most "
        f"{format_number(worst)}",
        verdict=verdict(slope, -float("inf"), 0.0),
    )


def control_claim(options: NoiseOptions, records: Sequence[Record]) -> Claim | None:
    """LayerNorm and RMSNorm do the same in both modes."""
    chosen = [r for norm in ("layer", "rms") if norm in options.norms for r in of(records, norm)]
    if not chosen:
        return None
    worst = max(r["mode_difference"] for r in chosen)
    return Claim(
        claim="LayerNorm and RMSNorm compute the same in training and in evaluation",
        source="Ba et al. 2016",
        measured=f"Largest relative difference of the outputs {format_number(worst)}",
        verdict="agrees" if worst <= ROUNDING else "disagrees",
    )


def draw(options: NoiseOptions, records: Sequence[Record]) -> list[Figure]:
    """Gap and difference between the modes by batch size."""
    if not records:
        return []
    styles = assign_styles(options.norms)
    gap = [band_over(norm, of(records, norm), "batch", lambda r: r["gap"]) for norm in options.norms]
    modes = [band_over(norm, of(records, norm), "batch", lambda r: r["mode_difference"]) for norm in options.norms]
    x = Axis("images of a batch", integer=True)
    changes = {norm: found for norm in options.norms if (found := gap_change(options, records, norm))}
    shown = [f"{norm} {format_number(found.value)}" for norm, found in changes.items()]
    ends = f"from batch {max(options.batches)} to {min(options.batches)}"
    return [
        Figure(
            name="batchnorm-noise",
            title=f"Change of the loss gap {ends}, in nats: {join_words(shown)}" if shown else "Loss gap by batch size",
            caption="Test loss less training loss after the same number of steps; and the relative difference between "
            "the outputs in training and in evaluation mode, drawn at 1e-8 where there is none. Bands span the seeds.",
            panels=[
                lines(gap, x=x, y=Axis("test loss − training loss (nats)"), styles=styles, heading="Gap"),
                lines(
                    modes,
                    x=x,
                    y=Axis("|train − eval| / |eval|", log=True, floor=1e-8),
                    styles=styles,
                    heading="Training against evaluation mode",
                ),
            ],
        )
    ]


BATCHNORM_NOISE = Experiment(
    name="batchnorm-noise",
    title="The noise of batch statistics",
    question="Does the noise of its batch statistics make BatchNorm regularize, and how far apart are its two modes?",
    method="Small networks learn a small part of scikit-learn's digits for the same number of steps at growing batch "
    "sizes, with BatchNorm and, as the control, with norms that have no batch statistics and with none. The gap is "
    "the test loss less the training loss, both in evaluation mode.",
    options=NoiseOptions,
    trials=trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
