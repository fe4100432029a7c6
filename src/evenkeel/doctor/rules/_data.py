"""Readings of the model's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading
from evenkeel.doctor.rules._rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements

__all__ = ["RULES"]

GROUP = "Data"

FEWEST_ROWS = 16
IS_TABLE = 2


def raw_input(measured: Measurements) -> Iterator[Reading]:
    """How far the size of the input is from 1: its RMS, or the inverse of that."""
    given = measured.inputs
    if given is not None and given.rms > 0:
        yield Reading(
            site=given.site, value=max(given.rms, 1 / given.rms), evidence={"rms": given.rms, "shape": given.shape}
        )


def unequal_scales(measured: Measurements) -> Iterator[Reading]:
    """The largest over the smallest deviation of a table's features."""
    given = measured.inputs
    if given is not None and len(given.shape) == IS_TABLE and given.rows >= FEWEST_ROWS:
        yield Reading(site=given.site, value=given.scales, evidence={"features": given.shape[1]})


def constant_features(measured: Measurements) -> Iterator[Reading]:
    """The share of a table's features that are constant."""
    given = measured.inputs
    if given is not None and len(given.shape) == IS_TABLE and given.rows >= FEWEST_ROWS:
        evidence = {"features": given.shape[1], "rows": given.rows}
        yield Reading(site=given.site, value=given.constant, evidence=evidence)


RULES: tuple[Rule, ...] = (
    Rule(
        id="input-not-normalized",
        group=GROUP,
        severity="warning",
        quantity="size of the input, from 1 either way",
        threshold=12.0,
        applies="the model's own input reaches {site} without a norm before",
        message="{site} is given the raw input of RMS {rms:.3g}",
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
)
