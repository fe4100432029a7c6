"""save and load: statistics, scalers and image constants as safetensors or readable JSON, each with its contract."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenkeel._errors import EvenkeelError, InvalidArgumentError, InvalidTypeError, StateError
from evenkeel.data._contract import OnMismatch, check_on_mismatch
from evenkeel.data._images import ImageNormalize
from evenkeel.data.scalers import SCALERS, scaler_class
from evenkeel.data.sources import Place, locate, opened, write_bytes
from evenkeel.data.statistics import (
    GroupStatistics,
    State,
    StateFormat,
    Statistics,
    group_state,
    image_state,
    one_line,
    plain_numbers,
    refuse_rest,
    restore,
    restore_groups,
    restore_images,
    state_of,
    take_array,
)

if TYPE_CHECKING:
    from evenkeel.data.scalers import Scaler


FORMAT = StateFormat("evenkeel/data", 1)
KINDS = sorted(SCALERS.values())  # of scalers
IMAGE_OPTIONS = ("mean", "std", "layout", "max_value", "channel_order", "definition", "on_mismatch")


def save(
    item: Statistics | GroupStatistics | Scaler | ImageNormalize,
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Path | str:
    """Write statistics, a fitted scaler or image constants to a file, with the input contract.

    Args:
        item: `Statistics`, `GroupStatistics`, a fitted scaler or an `ImageNormalize`.
        path: ending in ``.json`` (readable) or ``.safetensors``; both hold the same, to the last bit. A URL too.
        storage_options: for the client of the store that a URL names; see `evenkeel.data.fit`.

    Returns:
        The path or URL written; the file appears whole or not at all.

    Raises:
        InvalidArgumentError: the path ends otherwise.
        EvenkeelError: the file cannot be written.

    Example:
        >>> import tempfile, numpy as np
        >>> from evenkeel.data import Statistics, load, save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load(save(Statistics().update(np.eye(2)), f"{folder}/stats.json")).mean
        array([0.5, 0.5])
    """
    target = locate(path, storage_options)
    _check_suffix(target)
    state = _describe(item)
    if target.suffix == ".json":
        data = (json.dumps(FORMAT.to_plain(state), indent=1, allow_nan=False) + "\n").encode()
    else:
        data = FORMAT.to_bytes(state)
    write_bytes(target, data)
    return target if isinstance(target, Path) else str(target)


def load(
    path: str | os.PathLike[str],
    *,
    on_mismatch: OnMismatch = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Statistics | GroupStatistics | Scaler | ImageNormalize:
    """Read what `save` wrote, in no more memory than 64 times the file's size, whatever the file says.

    Args:
        path: the file, or its URL.
        on_mismatch: what the scaler or image constants do from now on with data that contradicts the contract:
            ``raise``, ``warn`` or ``ignore``.
        storage_options: for the client of the store that a URL names; see `evenkeel.data.fit`.

    Returns:
        An object of the kind that was saved.

    Raises:
        StateError: the file is truncated, foreign, damaged or of a newer version.
        EvenkeelError: the file cannot be read.
        InvalidArgumentError: the path ends neither in ``.json`` nor in ``.safetensors``.

    Example:
        >>> import tempfile, numpy as np
        >>> from evenkeel.data import StandardScaler, load, save
        >>> scaler = StandardScaler().fit(np.arange(512.0).reshape(-1, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     served = load(save(scaler, f"{folder}/scaler.safetensors"))
        >>> served.transform(np.arange(512.0).reshape(-1, 2) / 255)
        Traceback (most recent call last):
        evenkeel._errors.ContractError: ...the values look divided by 255...
    """
    source = locate(path, storage_options)
    _check_suffix(source)
    check_on_mismatch(on_mismatch)
    try:
        with opened(source) as item:
            data = item.read_bytes()
    except OSError as error:
        raise EvenkeelError(f"cannot read {source}: {error.strerror or error}; check the path") from error
    try:
        with FORMAT.decoding():
            return _rebuild((FORMAT.from_json if source.suffix == ".json" else FORMAT.from_bytes)(data), on_mismatch)
    except StateError as error:
        raise StateError(f"{source}: {error}") from error


def _check_suffix(path: Place) -> None:
    if path.suffix not in (".json", ".safetensors"):
        raise InvalidArgumentError(f"expected a path ending in .json or .safetensors, but got {path}")


def _describe(item: Any) -> State:
    """The state from which `_rebuild` makes an equal object."""
    if isinstance(item, Statistics):
        state = state_of(item)
        return State({"kind": "Statistics", "statistics": state.settings}, state.arrays)
    if isinstance(item, GroupStatistics):
        state = group_state(item)
        return State({"kind": "GroupStatistics", **state.settings}, state.arrays)
    if isinstance(item, ImageNormalize):
        options = {name: getattr(item, name) for name in IMAGE_OPTIONS}
        options["dtype"] = str(item.dtype).removeprefix("torch.")
        state = State({}, {}) if item.statistics_ is None else image_state(item.statistics_)
        return State({"kind": "ImageNormalize", "options": options, **state.settings}, state.arrays)
    if type(item).__name__ not in KINDS or not hasattr(item, "statistics_"):
        raise InvalidTypeError(
            f"save: expected Statistics, GroupStatistics, a fitted scaler ({', '.join(KINDS)}) or an ImageNormalize, "
            f"but got {item!r}"
        )
    return _describe_scaler(item)


def _describe_scaler(scaler: Scaler) -> State:
    learned, state = scaler._learned_options(), state_of(scaler.statistics_)
    arrays = {name: value for name, value in learned.items() if isinstance(value, np.ndarray)}
    settings = {
        "kind": type(scaler).__name__,
        "parameters": {name: _plain(value) for name, value in scaler.get_params().items()},
        "learned": {name: value for name, value in learned.items() if name not in arrays},
        "contract": plain_numbers(scaler.contract_.to_dict()),
        "notes": plain_numbers(getattr(scaler, "_notes", {})),
        "statistics": state.settings,
    }
    return State(settings, state.arrays | {f"learned.{name}": array for name, array in arrays.items()})


def _plain(value: Any) -> Any:
    """A constructor's argument as JSON data."""
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def _rebuild(state: State, on_mismatch: OnMismatch) -> Any:
    """The object that `_describe` described; ValueError where the state is damaged."""
    from msgspec import convert

    from evenkeel.data._schemas import StatisticsFile

    kind = str(state.settings.get("kind"))
    if kind == "Statistics":
        return restore(Statistics, State(convert(state.settings, StatisticsFile).statistics, state.arrays))
    if kind == "GroupStatistics":
        return restore_groups(state)
    if kind == "ImageNormalize":
        return _rebuild_images(state, on_mismatch)
    if kind not in KINDS:
        raise StateError(f"holds a {one_line(kind)!r}, which this evenkeel does not know; upgrade evenkeel")
    return _rebuild_scaler(state, scaler_class(kind), on_mismatch)


def _rebuild_images(state: State, on_mismatch: OnMismatch) -> ImageNormalize:
    from msgspec import UNSET, convert, structs

    from evenkeel.data._schemas import ImageFile

    file = convert(state.settings, ImageFile)
    options = structs.asdict(file.options) | {"on_mismatch": on_mismatch, "dtype": getattr(torch, file.options.dtype)}
    item = ImageNormalize(**options)
    if (file.pooled is UNSET) != (file.per_image is UNSET):
        raise ValueError("one of its two statistics is missing")
    if file.pooled is not UNSET:
        item.statistics_ = restore_images(state, len(item.mean))
    return item


def _rebuild_scaler(state: State, kind: type[Scaler], on_mismatch: OnMismatch) -> Scaler:
    from msgspec import convert

    from evenkeel.data._schemas import ScalerFile, parameters_of

    file, parts = convert(state.settings, ScalerFile), state.parts()
    convert(file.parameters, parameters_of(kind))
    parameters = {name: tuple(v) if isinstance(v, list) else v for name, v in file.parameters.items()}
    statistics = restore(Statistics, State(file.statistics, parts.pop("", {})))
    arrays = parts.pop("learned", {})
    refuse_rest(parts)
    exact = {name: take_array(arrays, name, "f8", (3, statistics.features)) for name in list(arrays)}
    scaler = kind._restore(statistics, parameters | {"on_mismatch": on_mismatch}, file.learned | exact)
    if scaler._learned_options().keys() != file.learned.keys() | exact.keys():
        raise ValueError(f"a {kind.__name__} learns something else than {', '.join(file.learned | exact)}")
    return scaler.annotate(**state.settings["notes"]) if state.settings["notes"] else scaler
