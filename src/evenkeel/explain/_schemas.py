"""What the data of an explanation holds, as types that msgspec compares it with; imported to read one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from evenkeel.explain._words import NORM_ROWS, STEPS

Number = float | Literal["NaN", "Infinity", "-Infinity"]
Finite = Annotated[float, Meta(ge=-1.7976931348623157e308, le=1.7976931348623157e308)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Nested = list[Any] | None


class StepData(Struct, forbid_unknown_fields=True):
    """A step; its value is a number, or nested lists of numbers."""

    id: str
    title: str
    formula: str
    substituted: str
    value: Number | list[Any] | dict[str, Any]
    meaning: str

    def __post_init__(self) -> None:
        if self.id not in STEPS:
            raise ValueError(f"there is no step {self.id!r}")
        if isinstance(self.value, dict):
            raise ValueError("its values were shortened")


class CheckData(Struct, forbid_unknown_fields=True):
    """A check."""

    id: str
    title: str
    value: Number
    expected: Number
    passed: bool
    note: str


class Options(Struct, forbid_unknown_fields=True):
    """The options, without what `default_upstream` gives."""

    shape: list[Natural]
    dtype: str
    shared: list[Natural]
    parameter_axes: list[Natural]
    sample_axis: Natural | None
    channel_axis: Natural | None
    num_groups: Positive | None
    eps: Finite | None
    eps_mode: str | None
    weight_offset: Finite | None
    correction: int | None
    feature_range: tuple[Finite, Finite] | None
    scale: Finite | None
    alpha: Finite | None
    weight: Nested
    bias: Nested
    mask: Nested
    mean: Nested
    variance: Nested
    std: Nested
    backward: bool
    upstream: Nested

    def __post_init__(self) -> None:
        axes = (*self.shared, *self.parameter_axes, self.sample_axis or 0, self.channel_axis or 0)
        if self.shape and max(axes) >= len(self.shape):
            raise ValueError(f"there is no axis {max(axes)}")


class ExplanationData(Struct):
    """All of an explanation."""

    norm: str
    title: str
    options: Options
    shown: Natural
    steps: list[StepData]
    checks: list[CheckData]
    notes: list[str]

    def __post_init__(self) -> None:
        if self.norm not in NORM_ROWS:
            raise ValueError(f"there is no norm {self.norm!r}")
        if "input" not in [step.id for step in self.steps]:
            raise ValueError("the step input is missing")
