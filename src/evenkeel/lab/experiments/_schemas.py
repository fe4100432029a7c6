"""What the files of an experiment hold, as types that msgspec compares them with."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from evenkeel.lab.experiments._experiment import Claim


class FrozenExperiment(Struct):
    """The content of experiment.json."""

    name: str
    evenkeel: str
    torch: str
    created: str
    machine: str
    options: dict[str, Any]
    ray: str = ""


class TrialRecord(Struct, tag_field="kind", tag="trial"):
    """A trial; what it lacks is named where it is missed."""

    trial: dict[str, str | float | bool | None] | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    measured: dict[str, Any] | UnsetType = UNSET


class Summary(Struct):
    """The content of summary.json."""

    name: str
    evenkeel: str | None
    torch: str | None
    machine: str | None
    options: dict[str, Any]
    trials: int
    complete: bool
    seconds: float
    claims: list[Claim]
