"""save and load: statistics, scalers and image constants as safetensors or readable JSON, each with its contract."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from evenkeel._errors import EvenkeelError, InvalidArgumentError, InvalidTypeError, StateError
from evenkeel.data import _state
from evenkeel.data._contract import OnMismatch
from evenkeel.data._groups import GroupStatistics
from evenkeel.data._images import ImageNormalize, ImageStatistics
from evenkeel.data._statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenkeel.data._base import Scaler

__all__ = ["load", "save"]

FORMAT = "evenkeel/data"
VERSION = 1
SCALERS = ("MaxAbsScaler", "MinMaxScaler", "RobustScaler", "StandardScaler")
LEARNED = ("_sparse_only", "_exact")  # the private attributes that a file may set
IMAGE_OPTIONS = ("mean", "std", "layout", "max_value", "channel_order", "definition", "on_mismatch")
Array = np.ndarray[Any, Any]


def save(item: Statistics | GroupStatistics | Scaler | ImageNormalize, path: str | os.PathLike[str]) -> Path:
    """Write statistics, a fitted scaler or image constants to a file, with the input contract.

    Args:
        item: `Statistics`, `GroupStatistics`, a fitted scaler or an `ImageNormalize`.
        path: ending in ``.json`` (readable) or ``.safetensors``; both hold the same, to the last bit.

    Returns:
        The path written; the file appears whole or not at all.

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
    from evenkeel._files import replace_file

    target = Path(path)
    _check_suffix(target)
    settings, arrays = _describe(item)
    if target.suffix == ".json":
        plain = {name: _state._plain(array) for name, array in arrays.items()}
        content = {"format": FORMAT, "version": VERSION, "settings": settings, "state": plain}
        data = (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
    else:
        data = _state.pack(FORMAT, VERSION, arrays, settings)
    try:
        replace_file(target, data)
    except OSError as error:
        raise EvenkeelError(
            f"cannot write {target}: {error.strerror or error}; choose a folder that exists and is writable"
        ) from error
    return target


def load(
    path: str | os.PathLike[str], *, on_mismatch: OnMismatch = "raise"
) -> Statistics | GroupStatistics | Scaler | ImageNormalize:
    """Read what `save` wrote.

    Args:
        path: the file.
        on_mismatch: what the scaler or image constants do from now on with data that contradicts the contract:
            ``raise``, ``warn`` or ``ignore``.

    Returns:
        An object of the kind that was saved.

    Raises:
        StateError: the file is truncated, foreign or of a newer version.
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
    source = Path(path)
    _check_suffix(source)
    if on_mismatch not in get_args(OnMismatch):
        raise InvalidArgumentError(f"on_mismatch must be raise, warn or ignore, but got {on_mismatch!r}")
    try:
        data = source.read_bytes()
    except OSError as error:
        raise EvenkeelError(f"cannot read {source}: {error.strerror or error}; check the path") from error
    try:
        settings, arrays = _from_json(data) if source.suffix == ".json" else _from_container(data)
        return _rebuild(settings, arrays, on_mismatch)
    except StateError as error:
        raise StateError(f"{source}: {error}") from error
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateError(f"{source}: incomplete or damaged ({error}); write it again") from error


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".json", ".safetensors"):
        raise InvalidArgumentError(f"expected a path ending in .json or .safetensors, but got {path}")


def _from_json(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise StateError(f"not whole JSON ({error}); write it again") from error
    if not isinstance(content, dict):
        raise StateError(f"expected an {FORMAT} state, but this is {type(content).__name__}; check the file")
    _state.check_header(content.get("format"), content.get("version"), FORMAT, VERSION)
    return content["settings"], {
        name: _state._array(name.rpartition(".")[2], value) for name, value in content["state"].items()
    }


def _from_container(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    arrays, settings = _state.unpack(data, FORMAT, VERSION)
    return settings, arrays


def _describe(item: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Settings (plain data) and arrays that say everything about an object."""
    if isinstance(item, Statistics):
        return {"kind": "Statistics", "statistics": _state._settings(item)}, _state._arrays(item)
    if isinstance(item, GroupStatistics):
        return _describe_groups(item)
    if isinstance(item, ImageNormalize):
        return _describe_images(item)
    if type(item).__name__ not in SCALERS or not hasattr(item, "statistics_"):
        raise InvalidTypeError(
            f"save: expected Statistics, GroupStatistics, a fitted scaler ({', '.join(SCALERS)}) or an ImageNormalize, "
            f"but got {item!r}"
        )
    parameters = {name: _plain(value) for name, value in item.get_params().items()}
    learned = item._learned_options()
    settings = {
        "kind": type(item).__name__,
        "parameters": parameters,
        "learned": {name: value for name, value in learned.items() if not isinstance(value, np.ndarray)},
        "contract": _finite(item.contract_.to_dict()),
        "notes": getattr(item, "_notes", {}),
        "statistics": _state._settings(item.statistics_),
    }
    extra = {f"learned.{name}": value for name, value in learned.items() if isinstance(value, np.ndarray)}
    return settings, _state._arrays(item.statistics_) | extra


def _describe_groups(item: GroupStatistics) -> tuple[dict[str, Any], dict[str, Array]]:
    groups = [item[key] for key in item]
    settings = {
        "kind": "GroupStatistics",
        "options": item.options,
        "keys": list(item),
        "groups": [_state._settings(group) for group in groups],
    }
    arrays = {f"{i}.{name}": a for i, group in enumerate(groups) for name, a in _state._arrays(group).items()}
    return settings, arrays


def _describe_images(item: ImageNormalize) -> tuple[dict[str, Any], dict[str, Array]]:
    settings: dict[str, Any] = {
        "kind": "ImageNormalize",
        "options": {name: getattr(item, name) for name in IMAGE_OPTIONS},
    }
    settings["options"]["dtype"] = str(item.dtype).removeprefix("torch.")
    arrays: dict[str, Array] = {}
    if item.statistics_ is not None:
        for part in ("pooled", "per_image"):
            statistics = getattr(item.statistics_, part)
            settings[part] = _state._settings(statistics)
            arrays |= {f"{part}.{name}": array for name, array in _state._arrays(statistics).items()}
    return settings, arrays


def _rebuild(settings: dict[str, Any], arrays: Mapping[str, Array], on_mismatch: OnMismatch) -> Any:
    """The object that `_describe` described."""
    kind = settings["kind"]
    if kind == "Statistics":
        return _state._restore(Statistics, arrays, settings["statistics"])
    if kind == "GroupStatistics":
        groups = GroupStatistics(**settings["options"])
        for i, (key, own) in enumerate(zip(settings["keys"], settings["groups"], strict=True)):
            groups._add(key, _state._restore(Statistics, _own_arrays(arrays, str(i)), own))
        return groups
    if kind == "ImageNormalize":
        return _rebuild_images(settings, arrays, on_mismatch)
    if kind not in SCALERS:
        raise StateError(f"holds a {kind!r}, which this evenkeel does not know; upgrade evenkeel")
    from evenkeel import data

    parameters = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings["parameters"].items()
    }
    statistics = _state._restore(Statistics, arrays, settings["statistics"])
    found = {**settings["learned"], **{name.removeprefix("learned."): array for name, array in arrays.items()}}
    learned = {name: found[name] for name in LEARNED if name in found}
    scaler = getattr(data, kind)._restore(statistics, parameters | {"on_mismatch": on_mismatch}, learned)
    if settings["notes"]:
        scaler.annotate(**settings["notes"])
    return scaler


def _rebuild_images(settings: dict[str, Any], arrays: Mapping[str, Array], on_mismatch: OnMismatch) -> ImageNormalize:
    options = dict(settings["options"]) | {"on_mismatch": on_mismatch}
    options["dtype"] = {str(d): d for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}[
        f"torch.{options['dtype']}"
    ]
    item = ImageNormalize(options.pop("mean"), options.pop("std"), **options)
    if "pooled" in settings:
        item.statistics_ = ImageStatistics()
        for part in ("pooled", "per_image"):
            setattr(item.statistics_, part, _state._restore(Statistics, _own_arrays(arrays, part), settings[part]))
    return item


def _own_arrays(arrays: Mapping[str, Array], part: str) -> dict[str, Array]:
    """The arrays of one of several states, by their names in it."""
    return {name.removeprefix(f"{part}."): a for name, a in arrays.items() if name.startswith(f"{part}.")}


def _plain(value: Any) -> Any:
    """A constructor's argument as JSON data."""
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def _finite(value: Any) -> Any:
    """Plain data with numbers that JSON lacks as text."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, tuple | list) else _state._plain_numbers(value)
