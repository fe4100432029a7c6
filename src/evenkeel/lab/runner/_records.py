"""Files that survive interruption: JSON replaced as a whole and append-only JSON Lines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from evenkeel._errors import StudyError
from evenkeel._files import replace_file


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a value as JSON."""
    replace_file(path, json_text(value).encode())


def json_text(value: Any) -> str:
    """Return a value as the JSON that runs write; numbers that are not finite become null."""
    return json.dumps(finite(value), indent=1, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Return the value with None in place of every number that is not finite, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Records:
    """An append-only JSON Lines file that can be cut back to where a checkpoint was taken.

    Args:
        path: the file, created when missing.
        keep: how many of its first bytes to keep; None keeps every whole line.
    """

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        if keep is None:
            keep = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        self._file = path.open("ab")
        self._file.truncate(keep)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one record."""
        self._file.write(json.dumps(finite({"kind": kind, **fields}), allow_nan=False).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Make sure that the file is on the disk, and return its size."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def read_records(path: Path, kind: Any = dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, without an unfinished last line.

    Args:
        path: the file; none is like an empty one.
        kind: what a record holds, as a type that msgspec compares it with.

    Raises:
        StudyError: a line is no such record.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                msgspec.convert(record, kind)
            except (RecursionError, ValueError) as error:
                raise StudyError(
                    f"{path} is damaged at line {number}; delete the directory {path.parent} to run this arm again"
                ) from error
            yield record
