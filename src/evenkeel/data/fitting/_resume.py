"""The states of finished fragments in a file, so that an interrupted fit continues and a killed one loses nothing.

A line of JSON for the fit, then for each fragment a line of JSON and the bytes of its state. Records are appended, with
a checksum: what a kill cut short is recognised and written again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evenkeel._errors import SourceError, StateError
from evenkeel.data.fitting._engines import Outcome, Recipe
from evenkeel.data.sources import Fragment, Skip
from evenkeel.data.statistics import Statistics

FORMAT = "interrupted evenkeel fit"
VERSION = 1


class ResumeFile:
    """The file of one fit.

    Args:
        path: the file; made when missing.
        recipe: of the fit; the states of a fit with another one must not be used.
        fragments: of the source as it is now.

    Raises:
        SourceError: the source or the settings changed since the file was begun.
        StateError: the file is none of ours.
    """

    def __init__(self, path: Path, recipe: Recipe, fragments: Iterable[Fragment]) -> None:
        self.path = path
        self.places: dict[str, tuple[int, int, list[Skip]]] = {}
        self.header = {
            "format": FORMAT,
            "version": VERSION,
            "columns": recipe.names and list(recipe.names),
            "quantiles": recipe.quantiles and recipe.sketch_size,
            "nan_policy": recipe.nan_policy,
        }
        keep = self._index({fragment.key: fragment for fragment in fragments}) if path.exists() else 0
        path.touch()
        self.file = path.open("r+b")
        self.file.truncate(keep)
        self.file.seek(keep)
        if not keep:
            self.file.write(json.dumps(self.header).encode() + b"\n")
            self.file.flush()

    def close(self) -> None:
        """Close the file; the states stay in it."""
        self.file.close()

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def read(self, key: str) -> Outcome:
        """The kept outcome of a fragment."""
        start, size, skipped = self.places[key]
        with self.path.open("rb") as file:
            file.seek(start)
            return Outcome(Statistics.from_bytes(file.read(size)), skipped)

    def write(self, fragment: Fragment, outcome: Outcome) -> None:
        """Append the outcome of a fragment; one that could not be read is tried again next time."""
        if outcome.statistics is None:
            return
        data = outcome.data or outcome.statistics.to_bytes()
        record = {
            "key": fragment.key,
            "signature": fragment.signature,
            "size": len(data),
            "checksum": zlib.crc32(data),
            "skipped": [(skip.label, skip.error) for skip in outcome.skipped],
        }
        self.file.write(json.dumps(record).encode() + b"\n" + data)
        self.file.flush()

    def _index(self, fragments: Mapping[str, Fragment]) -> int:
        """Find the kept states, compare them with the source, and return where the whole records end."""
        with self.path.open("rb") as file:
            first = file.readline()
            if not first:
                return 0
            self._check_header(first)
            while True:
                end = file.tell()
                try:
                    record = json.loads(file.readline())
                    start, data = file.tell(), file.read(record["size"])
                except (ValueError, TypeError, KeyError):
                    return end
                if len(data) != record["size"] or zlib.crc32(data) != record["checksum"]:
                    return end
                self._check_fragment(record, fragments)
                skipped = [Skip(*skip) for skip in record["skipped"]]
                self.places[record["key"]] = (start, len(data), skipped)

    def _check_header(self, line: bytes) -> None:
        try:
            header = json.loads(line)
        except ValueError:
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise StateError(f"{self.path} holds no interrupted fit; name another file to resume from")
        for name, value in self.header.items():
            if header.get(name) != value:
                raise SourceError(
                    f"the fit in {self.path} was begun with {name} {header.get(name)}, but now it is {value}; "
                    "use the same options and data, or delete that file to start afresh"
                )

    def _check_fragment(self, record: Mapping[str, Any], fragments: Mapping[str, Fragment]) -> None:
        key = record["key"]
        if key not in fragments:
            change = f"{key} is gone"
        elif tuple(record["signature"]) != tuple(fragments[key].signature):
            change = f"{key} was written again (other size or time)"
        else:
            return
        raise SourceError(
            f"the source changed since the fit in {self.path} was interrupted: {change}; "
            "delete that file to start afresh"
        )
