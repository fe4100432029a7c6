"""Readings of the model's input."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading
from evenkeel.doctor.rules._rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements, Rescaling

__all__ = ["RULES"]

GROUP = "Data"

FEWEST_ROWS = 16
IS_TABLE = 2
LEAST_SPREAD, MOST_SPREAD = 0.1, 3.0  # of an input that is normalized already
QUIET = 0.1  # an RMS that is not small yet


def raw_input(measured: Measurements) -> Iterator[Reading]:
    """How far the size of the input is above 1, or below 0.1: its RMS, or a tenth over that."""
    given, scaled = measured.inputs, measured.rescaling
    if given is not None and given.rms > 0:
        yield of_size(given.site, given.rms, "raw input")
    elif scaled is not None and not is_normalized(scaled):
        size = math.hypot(scaled.mean_after, scaled.spread_after)
        if size > 0:
            yield of_size(scaled.site, size, f"input, of RMS {math.hypot(scaled.mean, scaled.spread):.3g}, scaled")


def of_size(site: str, rms: float, what: str) -> Reading:
    """The reading of an input of a size; waveforms within 1 have an RMS of a few hundredths."""
    return Reading(site=site, value=max(rms, QUIET / rms), evidence={"rms": rms, "what": what})


def is_normalized(scaled: Rescaling) -> bool:
    """Whether an input is normalized before the model scales it."""
    return LEAST_SPREAD <= scaled.spread <= MOST_SPREAD and abs(scaled.mean) <= MOST_SPREAD


def unequal_scales(measured: Measurements) -> Iterator[Reading]:
    """The largest over the smallest deviation of a table's features."""
    given = measured.inputs
    if given is not None and given.scales > 0 and len(given.shape) == IS_TABLE and given.rows >= FEWEST_ROWS:
        yield Reading(site=given.site, value=given.scales, evidence={"features": given.shape[1]})


def constant_features(measured: Measurements) -> Iterator[Reading]:
    """The share of a table's features that are constant."""
    given = measured.inputs
    if given is not None and len(given.shape) == IS_TABLE and given.rows >= FEWEST_ROWS:
        evidence = {"features": given.shape[1], "rows": given.rows}
        yield Reading(site=given.site, value=given.constant, evidence=evidence)


def unscaled_target(measured: Measurements) -> Iterator[Reading]:
    """How far the size of the targets of a regression is from 1 and from the size of the output, either way."""
    target = measured.target
    if target is not None and target.size > 0:
        large, small = target.size / max(1.0, target.output), min(1.0, target.output) / target.size
        evidence = {"size": target.size, "output": target.output, "power": target.power}
        yield Reading(site="loss", value=max(large, small), evidence=evidence)


def rescaled_twice(measured: Measurements) -> Iterator[Reading]:
    """The deviation of the first layer's input, from 1 either way, where the model scales an input of about that."""
    r = measured.rescaling
    if r is not None and is_normalized(r) and r.spread_after > 0:
        evidence = {"before": r.spread, "after": r.spread_after, "mean": r.mean_after}
        yield Reading(site=r.site, value=max(r.spread_after, 1 / r.spread_after), evidence=evidence)


def skewed_features(measured: Measurements) -> Iterator[Reading]:
    """How far a feature's mean, in deviations, or the doublings of its deviation, are beyond what chance does."""
    for skew in measured.skew:
        if skew.rows >= FEWEST_ROWS:
            # a batch of one value says nothing of the deviation: the rare values of the data may be elsewhere
            turns = abs(math.log2(skew.spread)) - skew.chance_of_spread if skew.spread > 0 else 0.0
            evidence = {"shift": skew.shift, "spread": skew.spread, "rows": skew.rows}
            yield Reading(site=skew.feature, value=max(skew.shift - skew.chance, turns), evidence=evidence)


RULES: tuple[Rule, ...] = (
    Rule(
        id="input-not-normalized",
        group=GROUP,
        severity="warning",
        quantity="RMS of the input above 1, or 0.1 over it",
        threshold=12.0,
        applies="the model's own input reaches {site} without a norm before, as it is or scaled by the model",
        message="{site} is given the {what} with an RMS of {rms:.3g}",
        remedy="scaler = ek.data.StandardScaler().fit(train)\nmodel = torch.nn.Sequential(scaler.to_module(), model)",
        source="LeCun et al. 1998, Efficient BackProp, section 4.3: inputs of mean 0 and deviation 1",
        read=raw_input,
    ),
    Rule(
        id="unequal-scales",
        group=GROUP,
        severity="warning",
        quantity="largest over smallest deviation of features",
        threshold=1000.0,
        applies="a table of {features} features reaches {site} as it is",
        message="the deviations of the features that {site} is given differ {value:,.0f}-fold",
        remedy="scaler = ek.data.StandardScaler().fit(train)\nmodel = torch.nn.Sequential(scaler.to_module(), model)",
        source="LeCun et al. 1998, Efficient BackProp, section 4.3",
        read=unequal_scales,
    ),
    Rule(
        id="constant-input-feature",
        group=GROUP,
        severity="note",
        quantity="share of constant features",
        threshold=1e-9,
        applies="a table of {features} features reaches {site}, {rows} rows of it were seen",
        message="{value:.0%} of the features of {site} are constant in this batch",
        remedy="features = [k for k in range(x.shape[1]) if x[:, k].std() > 0]",
        source="by definition: a constant carries no information",
        read=constant_features,
    ),
    Rule(
        id="target-not-normalized",
        group=GROUP,
        severity="warning",
        quantity="size of the targets, from 1 either way",
        threshold=20.0,
        applies="the loss grows with the distance of the output from its targets, as its power {power}",
        message="the targets have a size of {size:.3g}, the output one of {output:.3g}: the model has to grow or "
        "shrink {value:,.0f}-fold first",
        remedy="scaler = ek.data.StandardScaler().fit(targets)\nloss = mse(model(x), scaler.transform(targets))\n"
        "prediction = scaler.inverse_transform(model(x))",
        source="LeCun et al. 1998, Efficient BackProp, section 4.5: targets within the range that the output has",
        read=unscaled_target,
    ),
    Rule(
        id="normalized-twice",
        group=GROUP,
        severity="warning",
        quantity="deviation of the scaled input, from 1 either way",
        threshold=4.0,
        applies="the model scales its input before {site}, and the input has a deviation of {before:.2g} already",
        message="the input has a deviation of {before:.2g}; the model scales it once more, and {site} gets one of "
        "{after:.2g} and a mean of {mean:.2g}",
        remedy="report = ek.doctor.examine(model, raw_batch)  # scale in one place: in the model, or in the loader",
        source="by definition: what scales raw values takes normalized ones apart from the data of the fit; ImageNet's "
        "constants, taken twice, give a deviation of 4.4",
        read=rescaled_twice,
    ),
    Rule(
        id="train-serve-skew",
        group=GROUP,
        severity="warning",
        quantity="shift of a feature, beyond chance",
        threshold=0.5,
        applies="statistics of the data of the fit were given, and the batch has {rows} rows",
        message="feature {site} lies {shift:.2g} deviations from its mean in the data of the fit, with {spread:.2g} of "
        "its deviation",
        remedy="report = ek.data.compare(fitted, ek.data.Statistics().update(served))  # every feature, in full",
        source="Breck et al. 2019, Data Validation for Machine Learning, section 3; chance: standard errors "
        "of mean and deviation, for the largest of all features",
        read=skewed_features,
    ),
)
