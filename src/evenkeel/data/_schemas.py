"""What saved scalers and image constants hold, as types that msgspec compares a file with; imported by `load`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

if TYPE_CHECKING:
    from evenkeel.data.scalers import Scaler

Finite = Annotated[float, Meta(ge=-1.7976931348623157e308, le=1.7976931348623157e308)]
# What a file may hold for an argument with a type: 0 and 1 stand for truth values, and no number is infinite.
STORED: dict[Any, Any] = {
    bool: bool | Literal[0, 1],
    float: Finite,
    tuple[float, float]: tuple[Finite, Finite],
}
# Levels of a note: copying and writing it takes some calls for each.
DEPTH = 32


class StatisticsFile(Struct, forbid_unknown_fields=True):
    """The settings of a file with a `Statistics`."""

    kind: str
    statistics: dict[str, Any]


class ImageOptions(Struct, forbid_unknown_fields=True):
    """The arguments of an `ImageNormalize`."""

    mean: list[float]
    std: list[float]
    layout: str | None
    max_value: float
    channel_order: str
    definition: str
    on_mismatch: str
    dtype: Literal["float16", "bfloat16", "float32", "float64"]


class ImageFile(Struct, forbid_unknown_fields=True):
    """The settings of a file with an `ImageNormalize`, with its statistics if it was fitted."""

    kind: str
    options: ImageOptions
    pooled: dict[str, Any] | UnsetType = UNSET
    per_image: dict[str, Any] | UnsetType = UNSET


class Notes(Struct, forbid_unknown_fields=True):
    """What `Scaler.annotate` was given."""

    units: dict[str, str] | str | None = None
    source: Any = None

    def __post_init__(self) -> None:
        if deeper(self.source, DEPTH):
            raise ValueError(f"source is nested deeper than {DEPTH} levels")


class ScalerFile(Struct, forbid_unknown_fields=True):
    """The settings of a file with a scaler; its contract is for the reader's eyes, and made again from the rest."""

    kind: str
    parameters: dict[str, Any]
    learned: dict[Literal["_sparse_only"], bool]
    contract: dict[str, Any]
    notes: Notes
    statistics: dict[str, Any]


def deeper(value: Any, levels: int) -> bool:
    """Whether plain data is nested in more than so many levels."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not levels or any(deeper(part, levels - 1) for part in parts)


def parameters_of(scaler: type[Scaler]) -> type[Struct]:
    """The arguments of a scaler's constructor."""
    hints = get_type_hints(scaler.__init__)
    del hints["return"]
    fields = [(name, STORED.get(hint, hint)) for name, hint in hints.items()]
    return defstruct(scaler.__name__, fields, forbid_unknown_fields=True)
