"""The state of `Statistics` as bytes and as plain data for JSON."""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from evenkeel._errors import StateError
from evenkeel.data._moments import Moments
from evenkeel.data._quantiles import quantiles_from_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenkeel.data._statistics import Statistics

__all__ = ["from_bytes", "from_dict", "pack", "to_bytes", "to_dict", "unpack"]

Array = np.ndarray[Any, Any]
FORMAT = "evenkeel/statistics"
VERSION = 1
INTEGERS = ("count", "missing", "infinite", "sketch_bytes")
METADATA_KEY = "evenkeel"
S = TypeVar("S", bound="Statistics")


def pack(format_name: str, version: int, arrays: Mapping[str, Array], settings: Mapping[str, Any]) -> bytes:
    """Arrays and settings as a safetensors container whose metadata names its format and version."""
    from safetensors.numpy import save

    # One key: safetensors writes several in an order that differs from run to run.
    metadata = json.dumps({"format": format_name, "version": version, "settings": settings})
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {METADATA_KEY: metadata})


def unpack(data: bytes, format_name: str, version: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read what `pack` wrote; StateError where it is truncated, foreign or newer."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(json.loads(bytes(data[8 : 8 + size]))["__metadata__"].get(METADATA_KEY, "{}"))
        check_header(metadata.get("format"), metadata.get("version"), format_name, version)
        return load(bytes(data)), metadata["settings"]
    except StateError:
        raise
    except (SafetensorError, ValueError, KeyError, AttributeError, TypeError, MemoryError, OverflowError) as error:
        raise StateError(
            f"these {len(data)} bytes are not a whole {format_name} state: {error}; write them again"
        ) from error


def check_header(found: object, found_version: object, format_name: str, version: int) -> None:
    """Raise `StateError` unless a header names this format in a version that can be read."""
    if found != format_name:
        raise StateError(f"expected an {format_name} state, but this is {found or 'something else'}; check the file")
    number = int(str(found_version)) if str(found_version).isdigit() else 0
    if number < 1:
        raise StateError(f"an {format_name} state needs a version, but this one has {found_version!r}; write it again")
    if number > version:
        raise StateError(
            f"this {format_name} state has version {number}, but this evenkeel reads up to {version}; upgrade evenkeel"
        )


def to_bytes(statistics: Statistics) -> bytes:
    """The whole state as a safetensors container."""
    return pack(FORMAT, VERSION, _arrays(statistics), _settings(statistics))


def from_bytes(cls: type[S], data: bytes) -> S:
    """Read what `to_bytes` wrote."""
    arrays, settings = unpack(data, FORMAT, VERSION)
    return _restore(cls, arrays, settings)


def to_dict(statistics: Statistics) -> dict[str, Any]:
    """Plain data: the state, and beside it the mean and deviation for the reader's eyes."""
    state = {name: _plain(array) for name, array in _arrays(statistics).items()}
    shown = {}
    if statistics._moments is not None:
        shown = {"mean": _plain(statistics.mean), "std": _plain(statistics.std())}
    return {"format": FORMAT, "version": VERSION, "settings": _settings(statistics), "shown": shown, "state": state}


def from_dict(cls: type[S], data: Mapping[str, Any]) -> S:
    """Read what `to_dict` wrote."""
    if not isinstance(data, dict):
        raise StateError(f"expected an {FORMAT} state, but this is {type(data).__name__}; check the file")
    check_header(data.get("format"), data.get("version"), FORMAT, VERSION)
    try:
        arrays = {name: _array(name, value) for name, value in data["state"].items()}
        settings = data["settings"]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateError(f"this {FORMAT} state is incomplete or damaged: {error}; write it again") from error
    return _restore(cls, arrays, settings)


def _settings(statistics: Statistics) -> dict[str, Any]:
    return {
        "features": statistics.features,
        "names": None if statistics.names is None else list(statistics.names),
        "axis": list(statistics.axis),
        "quantiles": statistics.keeps_quantiles,
        "sketch_size": statistics.sketch_size,
        "nan_policy": statistics.nan_policy,
        "dtypes": list(statistics.dtypes),
        "rows": statistics.rows,
    }


def _arrays(statistics: Statistics) -> dict[str, Array]:
    arrays = {} if statistics._moments is None else dict(statistics._moments._asdict())
    return arrays | ({} if statistics._quantiles is None else statistics._quantiles.to_arrays())


def _restore(cls: type[S], arrays: Mapping[str, Array], settings: Mapping[str, Any]) -> S:
    """An object from its parts, each checked: the parts may come from anywhere."""
    try:
        names = settings["names"]
        statistics = cls(
            settings["features"],
            names=names,
            axis=tuple(int(axis) for axis in settings["axis"]),
            quantiles=bool(settings["quantiles"]),
            sketch_size=int(settings["sketch_size"]),
            nan_policy=settings["nan_policy"],
        )
        statistics.rows = int(settings["rows"])
        statistics.dtypes = tuple(str(name) for name in settings["dtypes"])
        if statistics.features is not None:
            statistics._moments = _checked_moments(arrays, statistics.features)
            statistics._quantiles = quantiles_from_arrays(arrays, statistics.features, statistics.sketch_size)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateError(f"this {FORMAT} state is incomplete or damaged: {error}; write it again") from error
    return statistics


def _checked_moments(arrays: Mapping[str, Array], features: int) -> Moments:
    """The moments, with the dtypes and shapes they need and no negative count."""
    integers = ("missing", "infinite", *(["count"] if arrays["count"].dtype.kind == "i" else []))
    moments = Moments(
        **{name: arrays[name].astype(np.int64 if name in integers else np.float64) for name in Moments._fields}
    )
    if any(part.shape != (features,) for part in moments):
        raise ValueError(f"expected {features} numbers in each part")
    if any((part < 0).any() for part in (moments.count, moments.missing, moments.infinite, moments.m2)):
        raise ValueError("a count or a sum of squares is negative")
    return moments


def _plain(array: Array) -> Any:
    """An array as JSON data: bytes as base64, numbers that JSON lacks as text."""
    if array.dtype == np.uint8:
        return base64.b64encode(array.tobytes()).decode()
    return _plain_numbers(array.tolist())


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _array(name: str, value: Any) -> Array:
    """An array from what `_plain` wrote."""
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), np.uint8)
    found = np.array(value)
    if name == "histogram" and found.size == 0:
        return found.reshape(len(value), 0).astype(np.int64)
    if found.size == 0:
        return found.astype(np.int64 if name in INTEGERS else np.float64)
    return found.astype(np.float64) if found.dtype.kind in "UO" else found
