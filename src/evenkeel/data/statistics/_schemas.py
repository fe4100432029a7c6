"""What saved statistics hold, as types that msgspec compares a state with; imported with the first state read."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

# The most that float64 counts exactly: sums of counts that files give cannot overflow.
MOST = 1 << 53
MOST_FEATURES = 1 << 40

Count = Annotated[int, Meta(ge=0, le=MOST)]
Integer = Annotated[int, Meta(ge=-MOST, le=MOST)]
Features = Annotated[int, Meta(ge=0, le=MOST_FEATURES)]
Axis = Annotated[int, Meta(ge=-64, le=63)]
Axes = Annotated[list[Axis], Meta(min_length=1)]
# The dtypes of real numbers as NumPy and torch spell them.
DtypeName = Annotated[
    str, Meta(pattern=r"^(bool|u?int(8|16|32|64)|bfloat16|float(16|32|64|96|128)|float8_\w{1,16}|>[iuf](2|4|8|12|16))$")
]
Numbers = list[int | float | Literal["inf", "-inf", "nan"]]

# The arrays of a state in JSON by their names; those that are not listed are `Numbers`.
PLAIN_ARRAYS: dict[str, Any] = {
    "_exact": list[Numbers],
    "count": list[Count | float],
    "exponent": list[Integer],
    "histogram": list[list[Count]],
    "histogram_offset": list[Integer],
    "infinite": list[Count],
    "missing": list[Count],
    "sketch": str,
    "sketch_bytes": list[Count],
}


class Metadata(Struct):
    """The metadata of a safetensors container; others than ours lack the key."""

    evenkeel: str = "{}"


class Container(Struct):
    """The header of a safetensors container, without its tensors."""

    metadata: Metadata = field(name="__metadata__")


class Header(Struct):
    """The whole of a state's JSON, once format and version are known to be ours."""

    settings: dict[str, Any]
    state: dict[str, Any] = {}


class StatisticsSettings(Struct, forbid_unknown_fields=True):
    """All of a `Statistics` but its arrays."""

    features: Features | None
    names: list[str] | None
    axis: Axes
    quantiles: bool
    sketch_size: int
    nan_policy: str
    dtypes: list[DtypeName]
    rows: Count


class GroupOptions(Struct, forbid_unknown_fields=True):
    """The arguments of `GroupStatistics`."""

    features: Features | UnsetType | None = UNSET
    names: list[str] | UnsetType | None = UNSET
    axis: Axis | Axes | UnsetType = UNSET
    quantiles: bool | UnsetType = UNSET
    sketch_size: int | UnsetType = UNSET
    nan_policy: str | UnsetType = UNSET


class GroupSettings(Struct, forbid_unknown_fields=True):
    """All of a `GroupStatistics` but its groups' arrays."""

    options: GroupOptions
    keys: list[str | int]
    groups: list[dict[str, Any]] = []
    kind: str = ""
