"""`centring`: how much of a trained model's activations is their mean, and how LayerNorm and RMSNorm then differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import evenkeel.functional as ek
from evenkeel._options.experiments import CentringOptions
from evenkeel.lab.experiments._estimates import (
    Estimate,
    band,
    exactly,
    intervals,
    level,
    mean_of,
    verdict,
)
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, select
from evenkeel.lab.experiments._transformer import build_arm, train, unseen_windows
from evenkeel.lab.transformer import Transformer, norm_styles, residual_statistics
from evenkeel.report import MUTED, Axis, Figure, format_number, join_words, lines

# Below this share of its power, a mean changes a normalized vector by less than 1 % in length.
NEARLY_CENTRED = 0.01
LIMIT = "nearly centred"


def measure(options: CentringOptions, trial: Trial) -> dict[str, Any]:
    """Train, and compare LayerNorm with RMSNorm on the input of each norm before and after."""
    model = build_arm(options, trial)
    windows = unseen_windows(options, trial["seed"])
    start = look_at_norms(model, windows[:, :-1])
    losses = train(options, model, trial["seed"], lr=options.lr)
    return {"start": start, "end": look_at_norms(model, windows[:, :-1]), "loss": losses[-1]}


@torch.no_grad()
def look_at_norms(model: Transformer, tokens: Tensor) -> list[dict[str, float]]:
    """Return, for each norm in order, the share of the mean and the difference between LayerNorm and RMSNorm."""
    seen: list[dict[str, float]] = []

    def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        layer, rms = (norm(x, x.shape[-1:], eps=1e-5) for norm in (ek.layer_norm, ek.rms_norm))
        difference = ((layer - rms).norm(dim=-1) / rms.norm(dim=-1)).mean().item()
        seen.append({"share": residual_statistics(x)["mean2_over_rms2"], "difference": difference})

    hooks = [norm.register_forward_pre_hook(see) for norm in model.norms().values()]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def pooled(records: Sequence[Record], arm: str, key: str) -> Estimate:
    """Return the mean over the trained norms of each seed, with its interval over the seeds."""
    return mean_of(mean_of(norm[key] for norm in record["end"]).value for record in select(records, arm=arm))


def judge(options: CentringOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare with what the texts say of RMSNorm."""
    claims = []
    for arm in options.arms:
        share, difference = (pooled(records, arm, key) for key in ("share", "difference"))
        if not share:
            continue
        worst = max(norm["share"] or 0.0 for record in select(records, arm=arm) for norm in record["end"])
        claims.append(
            Claim(
                claim=f"{arm}: activations are approximately zero-mean, so that centring hardly matters",
                source="the usual account of why RMSNorm works; Zhang & Sennrich 2019 argue the same",
                measured=f"After {options.steps} steps the mean makes up {share} of the power that reaches a norm (at "
                f"most {format_number(worst)} at any norm); LayerNorm and RMSNorm of the same input differ by "
                f"{difference} of its length",
                verdict="partly" if share.high <= NEARLY_CENTRED < worst else verdict(share, 0.0, NEARLY_CENTRED),
                intervals=intervals({"all norms": share, "largest of one": exactly(worst)}),
                quantity="the mean's share of the power",
                allowed=(0.0, NEARLY_CENTRED),
            )
        )
    return claims


def draw(options: CentringOptions, records: Sequence[Record]) -> list[Figure]:
    """Share of the mean, and the difference, by norm in the order of the forward pass."""
    if not records:
        return []
    curves = {
        f"{arm}, {when}": [(i, norm) for r in select(records, arm=arm) for i, norm in enumerate(r[moment], start=1)]
        for arm in options.arms
        for when, moment in (("at the start", "start"), ("trained", "end"))
    }
    panels = []
    for key, label in (("share", "mean² / RMS²"), ("difference", "|LayerNorm − RMSNorm| / |RMSNorm|")):
        series = [band(name, [(index, norm[key]) for index, norm in norms]) for name, norms in curves.items()]
        limit = level(LIMIT, NEARLY_CENTRED, series) if key == "share" else []
        x, styles = Axis("norm, in order", integer=True), norm_styles(curves) | {LIMIT: MUTED}
        panels.append(lines([*series, *limit], x=x, y=Axis(label, log=True), styles=styles, heading=label))
    means = {arm: pooled(records, arm, "share") for arm in options.arms}
    shares = [f"{format_number(100 * share.value, digits=2)} % with {arm}" for arm, share in means.items() if share]
    return [
        Figure(
            name="centring",
            title=f"Of the power that reaches a norm after training the mean holds {join_words(shares)}",
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
    trials=CentringOptions.trials,
    measure=measure,
    judge=judge,
    draw=draw,
)
