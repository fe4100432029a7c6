"""Saved states: settings and named arrays, as bytes (safetensors) or as plain data for JSON."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from evenkeel._errors import StateError

Array = np.ndarray[Any, Any]
INTEGERS = ("count", "missing", "infinite", "sketch_bytes")
METADATA_KEY = "evenkeel"
DAMAGE = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


class State(NamedTuple):
    """Everything about an object: settings (plain data for JSON) and named arrays."""

    settings: dict[str, Any]
    arrays: dict[str, Array]

    def part(self, name: str, settings: dict[str, Any]) -> State:
        """One of several states whose arrays `joined` joined, with its own settings."""
        prefix = f"{name}."
        arrays = {key.removeprefix(prefix): a for key, a in self.arrays.items() if key.startswith(prefix)}
        return State(settings, arrays)


def joined(states: Mapping[str, State]) -> dict[str, Array]:
    """The arrays of several states, each under its state's name and its own."""
    return {f"{part}.{name}": array for part, state in states.items() for name, array in state.arrays.items()}


class StateFormat(NamedTuple):
    """A format of saved states: the name in its header, and the version that is written and the newest that is read."""

    name: str
    version: int

    def to_bytes(self, state: State) -> bytes:
        """Encode a state as a safetensors container whose metadata names the format and version."""
        from safetensors.numpy import save

        # One key: safetensors writes several in an order that differs from run to run.
        metadata = json.dumps({"format": self.name, "version": self.version, "settings": state.settings})
        arrays = {name: np.ascontiguousarray(array) for name, array in state.arrays.items()}
        return save(arrays, {METADATA_KEY: metadata})

    def from_bytes(self, data: bytes) -> State:
        """Decode what `to_bytes` wrote; StateError where it is truncated, foreign or newer."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            size = int.from_bytes(data[:8], "little")
            metadata = json.loads(json.loads(bytes(data[8 : 8 + size]))["__metadata__"].get(METADATA_KEY, "{}"))
            self._check_header(metadata)
            return State(metadata["settings"], load(bytes(data)))
        except StateError:
            raise
        except (SafetensorError, MemoryError, *DAMAGE) as error:
            raise StateError(
                f"these {len(data)} bytes are not a whole {self.name} state: {error}; write them again"
            ) from error

    def to_plain(self, state: State, **notes: Any) -> dict[str, Any]:
        """Encode a state as plain data for JSON, with notes for the reader's eyes."""
        arrays = {name: plain_array(array) for name, array in state.arrays.items()}
        header = {"format": self.name, "version": self.version, "settings": state.settings}
        return {**header, **notes, "state": arrays}

    def from_plain(self, data: Any) -> State:
        """Decode what `to_plain` wrote; StateError where it is foreign or newer, an error of `DAMAGE` where damaged."""
        if not isinstance(data, dict):
            raise StateError(f"expected an {self.name} state, but this is {type(data).__name__}; check the file")
        self._check_header(data)
        arrays = {name: array_from_plain(name.rpartition(".")[2], value) for name, value in data["state"].items()}
        return State(data["settings"], arrays)

    @contextlib.contextmanager
    def decoding(self) -> Iterator[None]:
        """Turn errors about the parts of a state, which may come from anywhere, into `StateError`."""
        try:
            yield
        except StateError:
            raise
        except DAMAGE as error:
            raise StateError(f"this {self.name} state is incomplete or damaged: {error}; write it again") from error

    def _check_header(self, header: Mapping[str, Any]) -> None:
        """Raise `StateError` unless a header names this format in a version that can be read."""
        name, version = header.get("format"), header.get("version")
        if name != self.name:
            raise StateError(f"expected an {self.name} state, but this is {name or 'something else'}; check the file")
        number = int(str(version)) if str(version).isdigit() else 0
        if number < 1:
            raise StateError(f"an {self.name} state needs a version, but this one has {version!r}; write it again")
        if number > self.version:
            raise StateError(
                f"this {self.name} state has version {number}, but this evenkeel reads up to {self.version}; "
                "upgrade evenkeel"
            )


def plain_array(array: Array) -> Any:
    """Encode an array as JSON data: bytes as base64, numbers that JSON lacks as text."""
    if array.dtype == np.uint8:
        return base64.b64encode(array.tobytes()).decode()
    return plain_numbers(array.tolist())


def plain_numbers(value: Any) -> Any:
    """Nested lists and dicts of numbers with those that JSON lacks as text."""
    if isinstance(value, dict):
        return {name: plain_numbers(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def array_from_plain(name: str, value: Any) -> Array:
    """Decode what `plain_array` wrote."""
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), np.uint8)
    array = np.array(value)
    if name == "histogram" and array.size == 0:
        return array.reshape(len(value), 0).astype(np.int64)
    if array.size == 0:
        return array.astype(np.int64 if name in INTEGERS else np.float64)
    return array.astype(np.float64) if array.dtype.kind in "UO" else array
