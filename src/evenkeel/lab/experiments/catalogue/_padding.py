"""`padding`: what padded positions do to batch statistics, and what a mask undoes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import evenkeel.functional as ek
from evenkeel._options.experiments import PaddingOptions
from evenkeel.lab.experiments._estimates import band, exactly, intervals, level, mean_of, spread
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, select
from evenkeel.lab.transformer import derive_seed, norm_styles
from evenkeel.report import MUTED, Axis, Figure, format_number, lines

LIMIT = "rounding"
ROUNDING = 1e-5  # of float32 outputs near 1, after sums over thousands of positions


def measure(options: PaddingOptions, trial: Trial) -> dict[str, Any]:
    """Return the RMS error at valid positions of each norm against the same norm on the valid positions alone."""
    generator = torch.Generator().manual_seed(derive_seed(trial["seed"], "padding", trial["length"]))
    length = trial["length"]
    spread = min(length - 1, options.longest - length)
    lengths = torch.randint(length - spread, length + spread + 1, (options.batch, 1), generator=generator)
    mask = torch.arange(options.longest) < lengths  # (batch, time)
    x = torch.randn(options.batch, options.longest, options.features, generator=generator) + options.mean
    x = x * mask.unsqueeze(-1)
    valid = x[mask]  # (positions, features)
    alone = ek.batch_norm(valid, None, None, training=True)
    channels_first = x.transpose(1, 2)
    polluted = ek.batch_norm(channels_first, None, None, training=True).transpose(1, 2)[mask]
    masked = ek.batch_norm(channels_first, None, None, training=True, mask=mask).transpose(1, 2)[mask]
    layer = ek.layer_norm(x, (options.features,))[mask]
    return {
        "padding": 1 - mask.float().mean().item(),
        "polluted": rms(polluted - alone),
        "masked": rms(masked - alone),
        "layer": rms(layer - ek.layer_norm(valid, (options.features,))),
    }


def rms(x: torch.Tensor) -> float:
    """Return the root of the mean square."""
    return x.double().square().mean().sqrt().item()


def largest(records: Sequence[Record], key: str) -> float:
    """Return the largest of an error over the records; one that is not finite, recorded as None, is larger than all."""
    return max(math.inf if record[key] is None else record[key] for record in records)


def judge(options: PaddingOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare with the texts' claims."""
    if not records:
        return []
    claims = []
    padded = [record for record in records if record["padding"]]
    if padded:
        worst = max(padded, key=lambda record: largest([record], "polluted"))
        least = min(largest([record], "polluted") for record in padded)
        claims.append(
            Claim(
                claim="Padding pollutes BatchNorm's statistics",
                source="the textbook account of normalization for variable-length sequences",
                measured=f"RMS error of the normalized values at valid positions from {format_number(least)} to "
                f"{format_number(largest(padded, 'polluted'))}, the largest at a padding share of "
                f"{format_number(worst['padding'])}",
                verdict="agrees" if least > ROUNDING else "disagrees",
                intervals=spread({"BatchNorm": [r["polluted"] for r in padded if r["polluted"] is not None]}),
                quantity="RMS error, from least to most",
                allowed=(ROUNDING, None),
            )
        )
    claims.append(clean_claim("A mask keeps padding out of BatchNorm's statistics", "masked", records))
    claims.append(clean_claim("LayerNorm is not affected by padding", "layer", records))
    return claims


def clean_claim(claim: str, key: str, records: Sequence[Record]) -> Claim:
    """A claim that an error is nothing but rounding."""
    worst = largest(records, key)
    return Claim(
        claim=claim,
        source="Ba et al. 2016, section 3; the textbook account",
        measured=f"largest RMS error {format_number(worst)} over {len(records)} batches, "
        f"where rounding is below {ROUNDING:g}",
        verdict="agrees" if worst <= ROUNDING else "disagrees",
        intervals=intervals({"largest": exactly(worst)}),
        quantity="RMS error",
        allowed=(None, ROUNDING),
    )


def draw(options: PaddingOptions, records: Sequence[Record]) -> list[Figure]:
    """Error against padding share."""
    if not records:
        return []
    names = {"polluted": "BatchNorm", "masked": "BatchNorm, masked", "layer": "LayerNorm"}
    shares = {r["length"]: mean_of(s["padding"] for s in select(records, length=r["length"])).value for r in records}
    series = [band(name, [(shares[r["length"]], r[key]) for r in records]) for key, name in names.items()]
    x, y = Axis("share of padded positions"), Axis("RMS error at valid positions", log=True, floor=1e-8)
    worst = format_number(largest(records, "polluted"))
    undone = "; a mask undoes it" if largest(records, "masked") <= ROUNDING else ""
    series += level(LIMIT, ROUNDING, series)
    return [
        Figure(
            name="padding",
            title=f"Padding moves BatchNorm's output by up to {worst} standard deviations{undone}",
            caption="Each norm on the padded batch against the same norm on the valid positions alone; bands span the "
            "seeds. Errors below 1e-8 are drawn there.",
            panels=[lines(series, x=x, y=y, styles=norm_styles(names.values()) | {LIMIT: MUTED})],
        )
    ]


PADDING = Experiment(
    name="padding",
    title="Padding and batch statistics",
    question="What do padded positions do to the statistics, and does a mask undo it?",
    method="Sequences of random lengths are padded with zeros to one length. BatchNorm without and with a mask, and "
    "LayerNorm, normalize the padded batch; the error at the valid positions is measured against the same norm applied "
    "to the valid positions alone.",
    options=PaddingOptions,
    trials=lambda options: options.grid(length=options.lengths),
    measure=measure,
    judge=judge,
    draw=draw,
)
