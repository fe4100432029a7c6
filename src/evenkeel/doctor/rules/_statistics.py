"""Readings of remembered statistics, and of how much a batch's say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading
from evenkeel.doctor.rules._rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements

__all__ = ["RULES"]

GROUP = "Running statistics"

SETTLED = 10  # updates before remembered statistics can be expected to be near the batch's
ENOUGH = 16  # independent elements of a batch whose statistics count as evidence
LEAST_STEPS = 20  # of watching before statistics that stand still say something
FOLLOWED = 0.5  # of the way of the model's weights, that an average of them has gone


def unset_statistics(measured: Measurements) -> Iterator[Reading]:
    """1 for a trained model's norm whose remembered statistics are the ones that it was made with."""
    for n in measured.norms:
        if n.shares in ("channel", "sample_channel") and (n.updates is not None or n.default_statistics):
            trained = bool(n.bias_moved) or (n.size > 0 and n.at_start < 1) or others_trained(measured, n.site)
            unused = n.training is True and not n.frozen
            if trained and not unused:
                yield Reading(site=n.site, value=float(n.default_statistics), evidence={"updates": n.updates})


def others_trained(measured: Measurements, site: str) -> bool:
    """Whether another norm's statistics have seen batches."""
    return any(n.updates for n in measured.norms if n.site != site)


def lag_of_statistics(measured: Measurements) -> Iterator[Reading]:
    """How far remembered statistics are from a batch's, in its deviations or as the logarithm of their ratio."""
    for s in measured.signals:
        shift, ratio = s.values.get("shift", math.nan), s.values.get("ratio", math.nan)
        counted = s.updates is None or s.updates >= SETTLED
        enough = s.values.get("effective", 0.0) >= ENOUGH and s.values.get("elements", 0.0) >= 2 * ENOUGH
        if not (math.isnan(shift) or s.frozen) and measured.trained and counted and enough:
            evidence = {"shift": shift, "ratio": ratio, "updates": s.updates}
            yield Reading(site=s.site, value=max(shift, math.log2(ratio)), evidence=evidence)


def statistics_left_behind(measured: Measurements) -> Iterator[Reading]:
    """How far an average's statistics are from those of the model that it averages; 1 where they stood still."""
    for a in measured.averages:
        numbers = {"updates": a.updates, "shift": a.shift, "ratio": a.ratio}
        if a.stayed is not None and measured.steps and measured.steps[-1].step >= LEAST_STEPS:
            how = f"have the same bits after {measured.steps[-1].step} steps, in which those of {a.other} moved"
            why = "the weights of the average moved"
            yield Reading(site=a.site, value=float(a.stayed), evidence={"how": how, "why": why, **numbers})
        elif a.stayed is None and a.updates is not None and a.others is not None:
            how = (
                f"have seen {a.updates} of {a.others} batches, and are {a.shift:.2g} deviations and a factor of "
                f"{a.ratio:.2g} off those of {a.other}"
            )
            why = f"its weight and bias have gone {a.followed:.0%} of the way of the model's"
            behind = a.updates < a.others and a.followed >= FOLLOWED
            off = max(a.shift, math.log2(a.ratio)) if behind else 0.0
            yield Reading(site=a.site, value=off, evidence={"how": how, "why": why, **numbers})


def tiny_variance(measured: Measurements) -> Iterator[Reading]:
    """The share of remembered variances below eps."""
    for n in measured.norms:
        if n.remembers and n.updates != 0 and not n.default_statistics and n.shares != "token":
            yield Reading(site=n.site, value=n.tiny, evidence={"eps": n.eps if n.eps is not None else 1e-5})


def not_finite(measured: Measurements) -> Iterator[Reading]:
    """How many numbers of a norm are NaN, infinite or negative variances."""
    for n in measured.norms:
        yield Reading(site=n.site, value=float(n.not_finite), evidence={"dtype": n.dtype})


def frozen_but_updating(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm whose parameters are frozen while its statistics follow the batches."""
    trains = any(n.trainable for n in measured.norms) or any(r.others_held > 0 for r in measured.optimizer)
    for n in measured.norms:
        if n.trainable is False and n.updates is not None and (trains or measured.depths):
            yield Reading(site=n.site, value=float(bool(n.training) and not n.frozen), evidence={"updates": n.updates})


def small_batch(measured: Measurements) -> Iterator[Reading]:
    """How many independent elements the statistics of a training batch stand on."""
    for s in measured.signals:
        uses_batch = s.shares == "channel" and not s.frozen and (s.training or not s.remembers)
        if uses_batch and "effective" in s.values and s.values["collapsed"] < 1:
            evidence = {"samples": int(s.values["samples"]), "elements": int(s.values["elements"])}
            yield Reading(site=s.site, value=s.values["effective"], evidence=evidence)


RULES: tuple[Rule, ...] = (
    Rule(
        id="statistics-not-finite",
        group=GROUP,
        severity="critical",
        quantity="numbers that are NaN, infinite or a negative variance",
        threshold=1.0,
        applies="{site} is a norm",
        message="{value:.0f} of the numbers that {site} holds are NaN, infinite or a negative variance ({dtype})",
        remedy="module.reset_running_stats()  # {site}; then load a checkpoint from before, and skip batches "
        "with NaN:\n"
        "if not loss.isfinite():\n    continue",
        source="by definition: a norm with such a number gives NaN or infinity",
        read=not_finite,
    ),
    Rule(
        id="statistics-unset",
        group=GROUP,
        severity="critical",
        quantity="statistics as they were made",
        threshold=1.0,
        applies="{site} normalizes by remembered statistics, and the model was trained",
        message="the statistics of {site} are exactly 0 and 1: no batch was ever taken in ({updates} updates)",
        remedy="model.train()\nwith torch.no_grad():\n    for batch in loader:  # some hundred batches of "
        "training data\n"
        "        model(batch)",
        source="by definition: evaluation then normalizes by mean 0 and variance 1",
        read=unset_statistics,
    ),
    Rule(
        id="statistics-lag",
        group=GROUP,
        severity="critical",
        quantity="distance of remembered from batch statistics",
        threshold=1.0,
        applies="{site} has taken in {updates} batches, and this batch has enough independent elements",
        message="what {site} remembers is {shift:.2g} deviations off the batch's mean, and the deviation by a "
        "factor of "
        "{ratio:.2g}: evaluation computes something else than training",
        remedy="for module in model.modules():\n    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):\n"
        "        module.reset_running_stats()\n        module.momentum = None  # a plain average\nmodel.train()\n"
        "with torch.no_grad():\n    for batch in loader:\n        model(batch)",
        source="Wu and Johnson 2021, Rethinking 'Batch' in BatchNorm, section 3: recompute with PreciseBN",
        read=lag_of_statistics,
    ),
    Rule(
        id="statistics-not-averaged",
        group=GROUP,
        severity="critical",
        quantity="distance of an average's statistics from its model's",
        threshold=0.5,
        applies="{site} belongs to an average whose weights went on without its statistics: {why}",
        message="the statistics of {site} {how}: weights were averaged, and their buffers forgotten",
        remedy="torch.optim.swa_utils.update_bn(loader, average)  # once, at the end\n"
        "for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):  # or after every update\n"
        "    mine.copy_(theirs)",
        source="Izmailov et al. 2018, Averaging Weights Leads to Wider Optima, section 3.2: averaged weights need "
        "statistics of their own; averages that have them stay below 0.2 in the tests' programs",
        read=statistics_left_behind,
    ),
    Rule(
        id="statistics-tiny-variance",
        group=GROUP,
        severity="warning",
        quantity="share of remembered variances below ε",
        threshold=0.5,
        applies="{site} has taken in batches",
        message="{value:.0%} of the variances that {site} remembers are below ε = {eps:g}: these channels carry "
        "ε, not signal",
        remedy="# the layer before {site} gives constants: look at its learning rate and activation, or remove "
        "the channels",
        source="by definition of ε: below it the result shrinks by more than 1/√2",
        read=tiny_variance,
    ),
    Rule(
        id="frozen-but-updating",
        group=GROUP,
        severity="warning",
        quantity="statistics that move in a frozen norm",
        threshold=1.0,
        applies="the parameters of {site} do not require gradients, others of the model do",
        message="{site} is frozen, but its statistics follow the batches: it is in training mode",
        remedy="model.train()\nmodel.get_submodule('{site}').eval()  # after every model.train()",
        source="torch.nn.BatchNorm2d: statistics follow in training mode, whatever requires_grad says",
        read=frozen_but_updating,
    ),
    Rule(
        id="batch-too-small",
        group=GROUP,
        severity="warning",
        quantity="independent elements per statistic",
        threshold=8.0,
        above=False,
        applies="{site} normalizes by this batch's statistics",
        message="the statistics of {site} stand on {value:.2g} independent elements: {samples} samples, whose "
        "positions go "
        "together ({elements} elements)",
        remedy="norm = torch.nn.GroupNorm(32, channels)  # instead of {site}; or a larger batch, or SyncBatchNorm",
        source="Wu and He 2018, Group Normalization, figure 1: errors rise steeply below 8 samples a device",
        read=small_batch,
    ),
)
