"""Readings of norms' parameters and of what the optimizer does with them."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading
from evenkeel.doctor.rules._rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements, NormState

__all__ = ["RULES"]

GROUP = "Parameters and optimizer"

LEAST_STEPS = 20  # of watching before a weight that stands still says something
MOST_OTHERS = 0.5  # the share of matrices in an optimizer from which on a missing norm was forgotten
HALF = ("bfloat16", "float16")


def frozen_gains(measured: Measurements) -> Iterator[Reading]:
    """The share of a norm's weight that cannot move: seen over steps, in one step, or in the weights themselves."""
    if measured.steps:
        yield from still_gains(measured)
    elif measured.optimizer:
        for record in measured.optimizer:
            if not math.isnan(record.lost):
                how = "rounds to nothing in one step of the optimizer, which float32 would take"
                yield Reading(site=record.site, value=record.lost, evidence={"how": how, "rate": record.rate})
    elif any(n.training is None for n in measured.norms):
        yield from gains_at_start(measured.norms)


def still_gains(measured: Measurements) -> Iterator[Reading]:
    """Weights that have the same bits after many steps, although a gradient reached them."""
    last = measured.steps[-1]
    span = last.step - measured.steps[0].step
    rates = {record.site: record.rate for record in measured.optimizer if record.held}
    if span < LEAST_STEPS:
        return
    # where gradients are set to zero before the watch sees them, it sees none at all; else what has none was not called
    blind = all(map(math.isnan, (slope for step in measured.steps for slope in step.gradient.values())))
    stepped = blind and any(step.update > 0 for step in measured.steps)
    for site, moved in last.moved.items():
        slopes = [step.gradient.get(site, math.nan) for step in measured.steps]
        by_gradient = any(slope > 0 for slope in slopes)
        if rates.get(site, 0.0) > 0 and (by_gradient or stepped):
            why = "although gradients reach it" if by_gradient else "in which other weights moved"
            how = f"has the same bits after {last.step} steps, {why}"
            yield Reading(site=site, value=1.0 - moved, evidence={"how": how, "rate": rates[site]})


def gains_at_start(norms: tuple[NormState, ...]) -> Iterator[Reading]:
    """Weights of a checkpoint that are where norms start, beside tensors that show a training."""
    others_moved = any(n.size and n.at_start < 0.5 and n.dtype in HALF for n in norms)
    halted = sum(n.at_start == 1.0 for n in norms)
    for n in norms:
        mostly = n.bias_moved is None and n.dtype in HALF and others_moved and 2 * halted >= len(norms)
        if n.size and (n.bias_moved or mostly):
            beside = "its own bias" if n.bias_moved else "the weights of other norms"
            how = f"is exactly where norms start, although {beside} moved ({n.dtype})"
            yield Reading(site=n.site, value=n.at_start, evidence={"how": how, "rate": math.nan})


def dead_gains(measured: Measurements) -> Iterator[Reading]:
    """The share of gains that pass nothing."""
    for n in measured.norms:
        if not math.isnan(n.dead) and n.size > 1 and n.at_start < 1:
            yield Reading(site=n.site, value=n.dead, evidence={"size": n.size})


def affine_not_optimized(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm whose trainable parameters the optimizer lacks, or that no gradient reaches."""
    for record in measured.optimizer:
        if record.others_held > MOST_OTHERS:
            missing, cut = not record.held, record.has_gradient is False
            what = "are not in the optimizer" if missing else "get no gradient"
            yield Reading(
                site=record.site, value=float(missing or cut), evidence={"what": what, "others": record.others_held}
            )


def norm_decay(measured: Measurements) -> Iterator[Reading]:
    """The weight decay of a norm's weight, where it pulls the gain to 0."""
    offsets = {n.site: n.offset for n in measured.norms}
    for record in measured.optimizer:
        if record.held and offsets.get(record.site, 0.0) == 0.0:
            yield Reading(site=record.site, value=record.decay, evidence={"rate": record.rate})


def redundant_bias(measured: Measurements) -> Iterator[Reading]:
    """1 for a layer with a bias whose result goes straight to a norm that subtracts each channel's mean."""
    for s in measured.signals:
        own = s.shares in ("channel", "sample_channel") and s.statistic == "moments"
        if own and s.source_kind in ("linear", "conv") and (s.training or not s.remembers) and not s.frozen:
            yield Reading(site=s.source, value=float(s.source_bias), evidence={"norm": s.site})


def outlying_gains(measured: Measurements) -> Iterator[Reading]:
    """The largest gain of a norm over its median one: gains that are large together are none."""
    for n in measured.norms:
        if not math.isnan(n.outlier) and n.at_start < 1:
            yield Reading(site=n.site, value=n.outlier, evidence={"channel": n.channel, "size": n.size})


def differing_replicas(measured: Measurements) -> Iterator[Reading]:
    """How many processes have other weights than most of them, at the same step."""
    if measured.replicas:
        counts = Counter(replica.digest for replica in measured.replicas)
        common, _ = counts.most_common(1)[0]
        other = [replica.rank for replica in measured.replicas if replica.digest != common]
        evidence = {"ranks": other, "processes": len(measured.replicas), "step": measured.replicas[0].step}
        yield Reading(site="replicas", value=float(len(other)), evidence=evidence)


RULES: tuple[Rule, ...] = (
    Rule(
        id="gamma-frozen",
        group=GROUP,
        severity="warning",
        quantity="share of the weight that cannot move",
        threshold=0.9,
        applies="{site} is trained, and its weight {how}",
        message="the weight of {site} {how} ({value:.0%} of its elements)",
        remedy="model.float()  # float32 weights; compute in bfloat16 by autocast:\n"
        "with torch.autocast(device.type, torch.bfloat16):\n    loss = step(model, batch)",
        source="Micikevicius et al. 2018, Mixed Precision Training, section 3.1: steps below half an ulp of the "
        "weight are "
        "lost (2⁻⁹ below 1 in bfloat16)",
        read=frozen_gains,
    ),
    Rule(
        id="gamma-dead",
        group=GROUP,
        severity="warning",
        quantity="share of gains below a thousandth of the largest",
        threshold=0.5,
        applies="{site} has a weight that was trained, and not all of it is zero",
        message="{value:.0%} of the {size} gains of {site} pass nothing",
        remedy="optimizer = torch.optim.AdamW([\n    {{'params': norms, 'weight_decay': 0.0}},\n"
        "    {{'params': others}},\n])  # or prune these channels",
        source="Liu et al. 2017, Network Slimming: channels with a gain near zero can be removed",
        read=dead_gains,
    ),
    Rule(
        id="affine-not-optimized",
        group=GROUP,
        severity="warning",
        quantity="parameters that are not trained",
        threshold=1.0,
        applies="the parameters of {site} require gradients, and the optimizer holds {others:.0%} of the weight "
        "matrices",
        message="the parameters of {site} {what}",
        remedy="optimizer.add_param_group({{'params': model.get_submodule('{site}').parameters()}})\n"
        "# or, if they shall stay: model.get_submodule('{site}').requires_grad_(False)",
        source="by definition: torch.optim steps what it holds and what has a gradient",
        read=affine_not_optimized,
    ),
    Rule(
        id="weight-decay-on-norm",
        group=GROUP,
        severity="note",
        quantity="weight decay of a norm's weight",
        threshold=1e-8,
        applies="the gain of {site} is its weight, which decay pulls to 0 (a gain of 1 + weight it would pull to 1)",
        message="the weight of {site} decays with {value:g}",
        remedy="norms = [p for p in model.parameters() if p.ndim < 2]\nothers = [p for p in model.parameters() "
        "if p.ndim > 1]\n"
        "optimizer = torch.optim.AdamW([{{'params': norms, 'weight_decay': 0.0}}, {{'params': others}}])",
        source="Karpathy's nanoGPT and Touvron et al. 2023 leave vectors out of the decay; a convention, not a fault",
        read=norm_decay,
    ),
    Rule(
        id="redundant-bias",
        group=GROUP,
        severity="note",
        quantity="bias before a centring norm",
        threshold=1.0,
        applies="the result of {site} goes unchanged into {norm}, which subtracts every channel's mean",
        message="the bias of {site} has no effect: {norm} subtracts it",
        remedy="layer = torch.nn.Conv2d(..., bias=False)  # {site}: or Linear(..., bias=False)",
        source="Ioffe and Szegedy 2015, Batch Normalization, section 3.2",
        read=redundant_bias,
    ),
    Rule(
        id="gamma-outlier",
        group=GROUP,
        severity="note",
        quantity="largest gain in parts of the median one",
        threshold=10.0,
        applies="the weight of {site} was trained, and most of its {size} gains are alive",
        message="gain {channel} of {site} is {value:.0f} times its median gain: it sets the scale by which the result "
        "is quantized",
        remedy="# before quantizing: move the gain of {site} into the next layer, which is exact:\n"
        "ek.convert.plan(model, batch, actions=('fold_affine',)).apply(verify=batch)",
        source="Wei et al. 2022, Outlier Suppression, section 3: gains amplify the outliers of LayerNorm's results",
        read=outlying_gains,
    ),
    Rule(
        id="replicas-differ",
        group=GROUP,
        severity="critical",
        quantity="processes with other weights",
        threshold=1.0,
        applies="{processes} processes train the same modules in one group",
        message="of {processes} processes, {ranks} have other weights than the rest at step {step}: they train models "
        "of their own",
        remedy="model = torch.nn.parallel.DistributedDataParallel(model)  # call this model, and not model.module\n"
        "# by hand: broadcast the weights at the start, and average the gradients in every step",
        source="torch.nn.parallel.DistributedDataParallel: replicas start alike and take the same steps, to the bit",
        read=differing_replicas,
    ),
)
