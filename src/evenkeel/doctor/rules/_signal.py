"""Readings of what norms are given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading
from evenkeel.doctor.rules._rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements

__all__ = ["RULES"]

GROUP = "Signal"

HALF_LARGEST = 65504.0
FEWEST = 8  # features: of fewer the mean is large by chance
TEMPORAL = 3  # axes of an input with positions


def dominating_eps(measured: Measurements) -> Iterator[Reading]:
    """The share of a norm's rows whose variance is below eps."""
    for s in measured.signals:
        if not (s.remembers and not s.training) and s.values["elements"] > 1:
            yield Reading(site=s.site, value=s.values["below_eps"], evidence={"rms": s.values["rms"]})


def vanishing_eps(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm that computes in float16 and gives NaN for zeros: its eps is zero there."""
    for s in measured.signals:
        if s.dtype == "float16":
            yield Reading(site=s.site, value=float(s.half_refuses), evidence={"dtype": s.dtype})


def dominating_mean(measured: Measurements) -> Iterator[Reading]:
    """The share of the mean in the power of the rows of a norm that does not subtract it."""
    for s in measured.signals:
        if s.statistic in ("rms", "l2") and s.shares == "token" and s.values["elements"] >= FEWEST:
            yield Reading(site=s.site, value=s.values["mean_share"])


def collapsed_channels(measured: Measurements) -> Iterator[Reading]:
    """The share of channels without any spread over a batch."""
    for s in measured.signals:
        if "collapsed" in s.values and s.values["elements"] > 1:
            yield Reading(site=s.site, value=s.values["collapsed"], evidence={"channels": int(s.values["groups"])})


def near_overflow(measured: Measurements) -> Iterator[Reading]:
    """The largest finite size of a float16 result, in parts of the largest that there is."""
    for layer in measured.layers:
        if layer.dtype == "float16":
            value = layer.largest / HALF_LARGEST
            yield Reading(site=layer.site, value=value, evidence={"largest": layer.largest})


def strange_numbers(measured: Measurements) -> Iterator[Reading]:
    """The share of NaN and infinities in the result of the first layer that has some."""
    first = next((layer for layer in measured.layers if layer.not_finite > 0), None)
    if first is not None:
        made = "made by it" if first.input_finite else "already in its input"
        yield Reading(site=first.site, value=first.not_finite, evidence={"made": made, "dtype": first.dtype})
    elif measured.loss is not None:
        strange = not math.isfinite(measured.loss)
        made = "made after the last layer, in the loss" if strange else "nowhere"
        yield Reading(site="loss", value=float(strange), evidence={"made": made, "dtype": "the loss"})


def double_norm(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm that is given the unchanged result of another norm."""
    for s in measured.signals:
        yield Reading(site=s.site, value=float(s.source_kind == "norm"), evidence={"other": s.source})


def wrong_axis(measured: Measurements) -> Iterator[Reading]:
    """1 for a norm of one axis straight after a layer whose features lie on another."""
    for s in measured.signals:
        if len(s.shape) < TEMPORAL or s.source_kind not in ("linear", "conv"):
            continue
        features = "the last axis" if s.source_kind == "linear" else "axis 1"
        if s.shares == "channel":
            wrong, taken = s.source_kind == "linear" and s.axis == 1, "each index of axis 1 as a channel"
        elif s.last_only:
            # tried out: a norm may move the channels to the last axis itself
            wrong, taken = s.values.get("over_channels") == 0, "the last axis alone"
        else:
            continue
        yield Reading(
            site=s.site, value=float(wrong), evidence={"layer": s.source, "features": features, "taken": taken}
        )


def idle_centring(measured: Measurements) -> Iterator[Reading]:
    """The share of the mean in the power of the rows of a norm that subtracts it."""
    for s in measured.signals:
        subtracts = s.statistic == "moments" and s.shares == "token" and s.values["elements"] >= FEWEST
        if subtracts and measured.trained and s.values["rms"] > 0:
            yield Reading(site=s.site, value=s.values["mean_share"], evidence={"off": s.values["mean_share"] ** 0.5})


def massive_activations(measured: Measurements) -> Iterator[Reading]:
    """The part of a result that is lost beside values a hundred times as large as the mean one."""
    for layer in measured.layers:
        if not math.isnan(layer.lost):
            how = "computes in float16" if layer.kind == "norm" else "rounds its input to 8 bits"
            yield Reading(site=layer.site, value=layer.lost, evidence={"how": how})


RULES: tuple[Rule, ...] = (
    Rule(
        id="eps-dominates",
        group=GROUP,
        severity="warning",
        quantity="share of rows whose variance is below ε",
        threshold=0.9,
        applies="{site} normalizes by the statistics of its input",
        message="{value:.0%} of the rows that {site} gets have a variance below ε (RMS {rms:.2g}): it shrinks "
        "them by more "
        "than 1/√2 instead of normalizing",
        remedy="module.eps = 1e-12  # {site}; or scale its input: x * (1 / rms)",
        source="by definition: at a variance of ε the result has a deviation of 1/√2",
        read=dominating_eps,
    ),
    Rule(
        id="eps-vanishes-in-half",
        group=GROUP,
        severity="critical",
        quantity="a row of zeros gives NaN",
        threshold=1.0,
        applies="{site} gets float16",
        message="{site} divides by zero for a row of zeros: its ε is below the smallest float16, 6e-8, in which "
        "it computes",
        remedy="y = norm(x.float()).to(x.dtype)  # in {site}; or ε of 1e-5, or evenkeel's norms, which compute "
        "in float32",
        source="IEEE 754: the smallest subnormal of binary16 is 2⁻²⁴",
        read=vanishing_eps,
    ),
    Rule(
        id="mean-dominates",
        group=GROUP,
        severity="warning",
        quantity="mean² in parts of RMS²",
        threshold=0.7,
        applies="{site} divides by the root mean square and does not subtract the mean",
        message="{value:.0%} of the power that {site} normalizes is the mean of the row: what differs between "
        "features is "
        "scaled down with it",
        remedy="norm = torch.nn.LayerNorm(features)  # instead of {site}; or centre the layer before it",
        source="Zhang and Sennrich 2019, RMSNorm, section 3: it assumes that re-centring does not matter",
        read=dominating_mean,
    ),
    Rule(
        id="collapsed-channels",
        group=GROUP,
        severity="warning",
        quantity="share of channels without spread",
        threshold=0.5,
        applies="{site} normalizes channels over the batch",
        message="{value:.0%} of the {channels} channels that {site} gets are constant over the whole batch",
        remedy="torch.nn.init.kaiming_normal_(layer.weight)  # before {site}; lower the learning rate, or LeakyReLU",
        source="Lu et al. 2019, Dying ReLU and Initialization",
        read=collapsed_channels,
    ),
    Rule(
        id="overflow-near",
        group=GROUP,
        severity="warning",
        quantity="largest size in parts of float16's largest",
        threshold=0.25,
        applies="{site} computes in float16",
        message="{site} gives {largest:,.0f} in float16, whose largest number is 65,504",
        remedy="with torch.autocast(device.type, torch.bfloat16):  # the range of float32\n    loss = "
        "step(model, batch)",
        source="IEEE 754: the largest binary16 is 65504; two bits are left from a quarter of it",
        read=near_overflow,
    ),
    Rule(
        id="not-finite",
        group=GROUP,
        severity="critical",
        quantity="share of results that are NaN or infinite",
        threshold=1e-12,
        applies="the model ran, and {site} is the first with such a number",
        message="{site} gives NaN or infinity ({value:.2%} of its results, {dtype}): {made}",
        remedy="torch.autograd.set_detect_anomaly(True)  # and look at the input of {site}",
        source="by definition",
        read=strange_numbers,
    ),
    Rule(
        id="double-norm",
        group=GROUP,
        severity="note",
        quantity="norm of a norm",
        threshold=1.0,
        applies="{site} is given the unchanged result of {other}",
        message="{site} normalizes what {other} has just normalized",
        remedy="model.set_submodule('{site}', torch.nn.Identity())",
        source="torch.nn.Transformer has a final norm after post-norm layers too; a norm of a norm does little",
        read=double_norm,
    ),
    Rule(
        id="wrong-axis",
        group=GROUP,
        severity="critical",
        quantity="statistics over an axis that is not the features'",
        threshold=1.0,
        applies="{layer} has just put its features on {features}",
        message="{site} takes {taken}, while the features of {layer} lie on {features}",
        remedy="y = norm(x.movedim(1, -1)).movedim(-1, 1)  # {site}",
        source="torch.nn: BatchNorm takes axis 1 as channels, LayerNorm the last axes as features",
        read=wrong_axis,
    ),
    Rule(
        id="centring-idle",
        group=GROUP,
        severity="note",
        quantity="mean² in parts of RMS²",
        threshold=0.002,
        above=False,
        applies="{site} subtracts the mean, and the model was trained",
        message="the mean is {value:.1g} of the power that {site} normalizes: without centring its result would be off "
        "by {off:.1%}",
        remedy="ek.convert.plan(model, batch, actions=('to_rms_norm',)).apply(verify=batch)  # exact, where it applies",
        source="Zhang and Sennrich 2019, RMSNorm, section 4: without centring models train as well, at less cost",
        read=idle_centring,
    ),
    Rule(
        id="massive-activations",
        group=GROUP,
        severity="warning",
        quantity="part of the result that is lost beside massive values",
        threshold=0.3,
        applies="{site} {how}, and was called on massive values and on the others apart",
        message="{value:.0%} of what {site} makes of ordinary values is lost beside massive ones: it {how}",
        remedy="y = layer(x.float()).to(x.dtype)  # {site}: a norm in float32, or a linear layer that takes bfloat16\n"
        "# in 8 bits: scales for groups of features, or the massive features apart (LLM.int8)",
        source="Dettmers et al. 2022, LLM.int8(), section 4; Sun et al. 2024, Massive Activations in LLMs: they are "
        "harmless elsewhere",
        read=massive_activations,
    ),
)
