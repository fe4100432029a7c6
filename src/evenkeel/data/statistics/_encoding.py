"""Saved states: settings and named arrays, as bytes (safetensors) or as plain data for JSON."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evenkeel._errors import StateError

if TYPE_CHECKING:
    from evenkeel.data.statistics._schemas import Header

Array = np.ndarray[Any, Any]
INTEGERS = ("missing", "exponent", "infinite", "sketch_bytes", "histogram", "histogram_offset")
TABLES = ("histogram", "_exact")
DTYPES = {"F64": np.float64, "I64": np.int64, "U8": np.uint8}  # by their names in safetensors
METADATA_KEY = "evenkeel"
LONGEST = 300  # of what a message quotes


class State(NamedTuple):
    """Everything about an object: settings (plain data for JSON) and named arrays."""

    settings: dict[str, Any]
    arrays: dict[str, Array]

    def parts(self) -> dict[str, dict[str, Array]]:
        """The arrays of the states that `joined` joined, by their states' names; those of no state under ""."""
        parts: dict[str, dict[str, Array]] = {}
        for key, array in self.arrays.items():
            part, _, name = key.rpartition(".")
            parts.setdefault(part, {})[name] = array
        return parts


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
        """Decode what `to_bytes` wrote; StateError where it is truncated, foreign, newer or damaged."""
        from msgspec import convert
        from safetensors import SafetensorError, deserialize

        from evenkeel.data.statistics._schemas import Container

        data = bytes(data)
        with self.decoding(f"these {len(data)} bytes are not a whole {self.name} state"):
            end = 8 + int.from_bytes(data[:8], "little")
            content = json.loads(convert(json.loads(data[8:end]), Container).metadata.evenkeel)
            settings = self._header_of(content).settings
            try:
                parts = dict(deserialize(data))
            except SafetensorError as error:
                raise ValueError(error) from error
            return State(settings, {name: array_from_part(name, part) for name, part in parts.items()})

    def to_plain(self, state: State, **notes: Any) -> dict[str, Any]:
        """Encode a state as plain data for JSON, with notes for the reader's eyes."""
        arrays = {name: plain_array(array) for name, array in state.arrays.items()}
        header = {"format": self.name, "version": self.version, "settings": state.settings}
        return {**header, **notes, "state": arrays}

    def from_plain(self, data: Any) -> State:
        """Decode what `to_plain` wrote; StateError where it is foreign, newer or damaged."""
        with self.decoding():
            header = self._header_of(data)
            arrays = {name: array_from_plain(name.rpartition(".")[2], value) for name, value in header.state.items()}
            return State(header.settings, arrays)

    def from_json(self, text: bytes) -> State:
        """Decode what `to_plain` gave and JSON holds."""
        with self.decoding("not whole JSON"):
            content = json.loads(text)
        return self.from_plain(content)

    @contextlib.contextmanager
    def decoding(self, problem: str = "") -> Iterator[None]:
        """Turn errors about the parts of a state, which may come from anywhere, into `StateError`."""
        try:
            yield
        except StateError:
            raise
        except (RecursionError, ValueError) as error:
            problem = problem or f"this {self.name} state is incomplete or damaged"
            raise StateError(f"{problem}: {one_line(error)}; write it again") from error

    def _header_of(self, content: Any) -> Header:
        """The settings and arrays of a state; StateError unless it has this format in a version that can be read."""
        from msgspec import convert

        from evenkeel.data.statistics._schemas import Header

        name, version = (content.get(key) for key in ("format", "version")) if isinstance(content, dict) else (None, 0)
        if name != self.name:
            seen = one_line(name) if isinstance(name, str) else "something else"
            raise StateError(f"expected an {self.name} state, but this is {seen}; check the file")
        if type(version) is not int or version < 1:
            raise StateError(
                f"an {self.name} state needs a version, but this one has {one_line(repr(version))}; write it again"
            )
        if version > self.version:
            raise StateError(
                f"this {self.name} state has version {version}, but this evenkeel reads up to {self.version}; "
                "upgrade evenkeel"
            )
        return convert(content, Header)


def one_line(text: object) -> str:
    """A message that may quote a file, on one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


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
    from msgspec import convert

    from evenkeel.data.statistics._schemas import PLAIN_ARRAYS, Numbers

    value = convert(value, PLAIN_ARRAYS.get(name, Numbers))
    if name == "sketch":
        return np.frombuffer(base64.b64decode(value, validate=True), np.uint8)
    if name == "count":
        return np.array(value, np.float64 if any(isinstance(number, float) for number in value) else np.int64)
    array = np.array(value, np.int64 if name in INTEGERS else np.float64)
    return array.reshape(len(value), -1 if array.size else 0) if name in TABLES else array


def array_from_part(name: str, part: Mapping[str, Any]) -> Array:
    """The array of a part of a safetensors container."""
    if part["dtype"] not in DTYPES:
        raise ValueError(f"{name} has the dtype {part['dtype']}, which no state has")
    return np.frombuffer(part["data"], DTYPES[part["dtype"]]).reshape(part["shape"])


def take_array(arrays: dict[str, Array], name: str, dtype: str, shape: tuple[int | None, ...]) -> Array:
    """Remove an array of a state and return it; ValueError where it has another dtype or shape (None: any size)."""
    array = arrays.pop(name, None)
    if array is None:
        raise ValueError(f"{name} is missing")
    fits = array.ndim == len(shape) and all(want in (None, size) for size, want in zip(array.shape, shape, strict=True))
    if array.dtype != dtype or not fits:
        raise ValueError(f"expected {name} of dtype {dtype} and shape {shape}, but got {array.dtype} {array.shape}")
    return array


def refuse_rest(arrays: Mapping[str, Any]) -> None:
    """Raise ValueError where arrays are left that nothing in a state speaks of."""
    if arrays:
        raise ValueError(f"nothing speaks of the arrays {', '.join(map(repr, arrays))}")
