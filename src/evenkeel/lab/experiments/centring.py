"""`centring`: how much of a trained model's activations is their mean, and how LayerNorm and RMSNorm then differ."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import evenkeel.functional as ek
from evenkeel._errors import StudyError
from evenkeel.lab.arms import find_arm
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial
from evenkeel.lab.experiments._statistics import Estimate, band_over, mean_of, verdict
from evenkeel.lab.experiments._training import TrainingOptions, train_bytes
from evenkeel.lab.model import Transformer
from evenkeel.lab.probes import residual_statistics
from evenkeel.report import Axis, Figure, assign_styles, format_number, join_words, lines

__all__ = ["CENTRING"]

# Below this share of its power, a mean changes a normalized vector by less than 1 % in length.
NEARLY_CENTRED = 0.01


@dataclass(frozen=True, kw_only=True)
class CentringOptions(TrainingOptions):
    """Options of `centring`, and those of every training.

    Attributes:
        arms: placements and norms to train.
        depth: blocks.
        lr: learning rate after the warm-up.
    """

    arms: tuple[str, ...] = ("pre-layer", "pre-rms")
    depth: int = 6
    width: int = 96
    heads: int = 4
    steps: int = 200
    context: int = 64
    lr: float = 2e-3

    def check(self) -> None:
        """Arms must have norms in front of their sublayers."""
        for name in self.arms:
            if find_arm(name).norm not in ("layer", "rms"):
                raise StudyError(f"centring compares LayerNorm with RMSNorm; arm {name} has neither")


def trials(options: CentringOptions) -> list[Trial]:
    """Each arm with each seed."""
    return options.grid(arm=options.arms)


def measure(options: CentringOptions, trial: Trial) -> dict[str, Any]:
    """What reaches each norm before training and after it."""
    seed = trial["seed"]
    model = options.model(find_arm(trial["arm"]), depth=options.depth, seed=seed)
    windows = options.unseen_windows(seed)
    start = look_at_norms(model, windows[:, :-1])
    losses = train_bytes(model, options.schedule(options.lr), seed)
    return {"start": start, "end": look_at_norms(model, windows[:, :-1]), "loss": losses[-1]}


@torch.no_grad()
def look_at_norms(model: Transformer, tokens: Tensor) -> list[dict[str, float]]:
    """Return, for each norm in order, the share of the mean and the difference between LayerNorm and RMSNorm."""
    found: list[dict[str, float]] = []

    def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        layer, rms = (norm(x, x.shape[-1:], eps=1e-5) for norm in (ek.layer_norm, ek.rms_norm))
        difference = ((layer - rms).norm(dim=-1) / rms.norm(dim=-1)).mean().item()
        found.append({"share": residual_statistics(x)["mean2_over_rms2"], "difference": difference})

    hooks = [norm.register_forward_pre_hook(see) for norm in model.norms().values()]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return found


def pooled(records: Sequence[Record], arm: str, moment: str, key: str) -> Estimate | None:
    """Return the mean over norms of each seed, with its interval over the seeds."""
    chosen = [record[moment] for record in records if record["arm"] == arm]
    return mean_of([statistics.fmean(norm[key] for norm in norms) for norms in chosen]) if chosen else None


def judge(options: CentringOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare with what the texts say of RMSNorm."""
    claims = []
    for arm in options.arms:
        share, difference = (pooled(records, arm, "end", key) for key in ("share", "difference"))
        if share is None or difference is None:
            continue
        worst = max(norm["share"] for record in records if record["arm"] == arm for norm in record["end"])
        claims.append(
            Claim(
                claim=f"{arm}: activations are approximately zero-mean, so that centring hardly matters",
                source="the usual account of why RMSNorm works; Zhang & Sennrich 2019 argue the same",
                measured=f"After {options.steps} steps the mean makes up {share} of the power that reaches a norm (at "
                f"most {format_number(worst)} at any norm); LayerNorm and RMSNorm of the same input differ by "
                f"{difference} of its length",
                verdict="partly" if share.high <= NEARLY_CENTRED < worst else verdict(share, 0.0, NEARLY_CENTRED),
            )
        )
    return claims


def draw(options: CentringOptions, records: Sequence[Record]) -> list[Figure]:
    """Share of the mean, and the difference, by norm in the order of the forward pass."""
    if not records:
        return []
    names = [f"{arm}, {when}" for arm in options.arms for when in ("at the start", "trained")]
    styles = assign_styles(names)
    panels = []
    for key, label in (
        ("share", "mean² / RMS²"),
        ("difference", "|LayerNorm − RMSNorm| / |RMSNorm|"),
    ):
        series = []
        for name in names:
            arm, _, when = name.partition(", ")
            rows = [
                {"norm": index, key: norm[key]}
                for record in records
                if record["arm"] == arm
                for index, norm in enumerate(record["end" if when == "trained" else "start"], start=1)
            ]
            series.append(band_over(name, rows, "norm", operator.itemgetter(key)))
        panels.append(
            lines(series, x=Axis("norm, in order", integer=True), y=Axis(label, log=True), styles=styles, heading=label)
        )
    pools = {arm: pooled(records, arm, "end", "share") for arm in options.arms}
    shares = [f"{arm} {format_number(found.value)}" for arm, found in pools.items() if found is not None]
    return [
        Figure(
            name="centring",
            title=f"Share of the mean in what reaches a norm of a trained model: {join_words(shares)}",
            caption="For a vector in which all components are independent with mean 0, the share is 1/width, "
            f"{format_number(1 / options.width)} here. Bands span the seeds.",
            panels=panels,
        )
    ]


CENTRING = Experiment(
    name="centring",
    title="Is the stream centred?",
    question='Are activations "approximately zero-mean", and how far apart are LayerNorm and RMSNorm on them?',
    method="The lab's transformer is trained on real text. At every norm, before and after training, the share "
    "mean² / RMS² of its input is measured, and the distance between LayerNorm and RMSNorm of that same input.",
    options=CentringOptions,
    trials=trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
