"""Readings of the model's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Measurements

__all__ = ["constant_features", "raw_input", "unequal_scales"]

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
