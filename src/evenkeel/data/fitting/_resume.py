"""The states of finished fragments in a file, so that an interrupted fit continues and a killed one loses nothing.

A line of JSON for the fit, then for each fragment a line of JSON and the bytes of its state. Records are appended, with
a checksum: what a kill cut short is recognised and written again.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evenkeel._errors import SourceError, StateError
from evenkeel._files import reason_of
from evenkeel._threads import side_by_side
from evenkeel.data.fitting._engines import Outcome, Recipe
from evenkeel.data.sources import Fragment, Skip
from evenkeel.data.statistics import Statistics, one_line

if TYPE_CHECKING:
    from evenkeel.data.fitting._schemas import Record

FORMAT = "interrupted evenkeel fit"
VERSION = 1
ASKED_AT_ONCE = 32  # objects of a store
LONGEST_LINE = 1 << 24  # bytes that are read in search of its end


class ResumeFile:
    """The file of one fit.

    Args:
        path: the file; made when missing.
        recipe: of the fit; the states of a fit with another one must not be used.
        fragments: of the source as it is now.

    Raises:
        SourceError: the source or the settings changed since the file was begun, or it cannot be written.
        StateError: the file is none of ours, or has a whole record that is not.
    """

    def __init__(self, path: Path, recipe: Recipe, fragments: Iterable[Fragment]) -> None:
        self.path, self.kept = path, 0
        self.places: dict[str, tuple[int, int, list[Skip]]] = {}
        self.header = {
            "format": FORMAT,
            "version": VERSION,
            "columns": recipe.names and list(recipe.names),
            "quantiles": recipe.quantiles and recipe.sketch_size,
            "nan_policy": recipe.nan_policy,
        }
        self._begun = json.dumps(self.header).encode() + b"\n"
        try:
            keep = self._index({fragment.key: fragment for fragment in fragments}) if path.exists() else 0
            path.touch()
            self.file, self.kept = path.open("r+b"), len(self.places)
        except OSError as error:
            raise self._unwritable(error) from error
        self.file.truncate(keep)
        self.file.seek(keep)
        try:
            self._append(b"" if keep else self._begun)
        except SourceError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; the states stay in it, and where there are none it goes."""
        with contextlib.suppress(OSError):  # what a full disk did not take
            self.file.close()
        if not self.kept and self.path.is_file():
            self.path.unlink()

    def _append(self, data: bytes) -> None:
        try:
            self.file.write(data)
            self.file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> SourceError:
        remedy = "what it holds is kept for resume (--resume)" if self.kept else "name a file that can be written"
        return SourceError(f"cannot keep an interrupted fit in {self.path}: {reason_of(error)}; {remedy}")

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def read(self, key: str) -> Outcome:
        """The kept outcome of a fragment."""
        start, size, skipped = self.places[key]
        with self.path.open("rb") as file:
            file.seek(start)
            try:
                return Outcome(Statistics.from_bytes(file.read(size)), skipped)
            except StateError as error:
                raise StateError(f"{self.path}: {error}; delete that file to start afresh") from error

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
        if outcome.version:
            record["version"] = outcome.version
        self._append(json.dumps(record).encode() + b"\n" + data)
        self.kept += 1

    def _index(self, fragments: Mapping[str, Fragment]) -> int:
        """Find the kept states, compare them with the source, and return where the whole records end."""
        versions: list[tuple[Fragment, str]] = []
        with self.path.open("rb") as file:
            size, first = os.fstat(file.fileno()).st_size, file.readline(LONGEST_LINE)
            if self._begun.startswith(first) and first != self._begun:
                return 0  # nothing, or a header that a kill cut short
            self._check_header(first)
            while True:
                end = file.tell()
                record = self._record(file.readline(LONGEST_LINE))
                start = file.tell()
                if (
                    record is None
                    or record.size > size - start
                    or zlib.crc32(file.read(record.size)) != record.checksum
                ):
                    break
                self._check_fragment(record, fragments)
                if record.version:
                    versions.append((fragments[record.key], record.version))
                self.places[record.key] = (start, record.size, [Skip(*skip) for skip in record.skipped])
        self._check_versions(versions)
        return end

    def _record(self, line: bytes) -> Record | None:
        """The record of a line, or None where a kill cut it short; StateError where it is whole, but none of ours."""
        from msgspec import ValidationError, convert

        from evenkeel.data.fitting._schemas import Record

        if not line.endswith(b"\n"):
            return None
        try:
            return convert(json.loads(line), Record)
        except ValidationError as error:
            raise StateError(
                f"{self.path} has a record that no fit writes: {one_line(error)}; delete that file to start afresh"
            ) from error
        except (ValueError, RecursionError):
            return None

    def _check_header(self, line: bytes) -> None:
        try:
            header = json.loads(line)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise StateError(f"{self.path} holds no interrupted fit; name another file to resume from")
        for name, value in self.header.items():
            if header.get(name) != value:
                raise SourceError(
                    f"the fit in {self.path} was begun with {name} {one_line(header.get(name))}, but now it is "
                    f"{one_line(value)}; use the same options and data, or delete that file to start afresh"
                )

    def _check_fragment(self, record: Record, fragments: Mapping[str, Fragment]) -> None:
        """Raise `SourceError` where a part is gone or, unless a version tells, has another size or time."""
        if record.key not in fragments:
            change = f"{one_line(record.key)} is gone"
        elif not record.version and tuple(record.signature) != tuple(fragments[record.key].signature):
            change = f"{one_line(record.key)} was written again (other size or time)"
        else:
            return
        raise self._changed(change)

    def _check_versions(self, versions: Sequence[tuple[Fragment, str]]) -> None:
        """Raise `SourceError` where a store has another version of an object now than the one that was read."""
        if not versions:
            return
        current = side_by_side(lambda kept: kept[0].version(), versions, ASKED_AT_ONCE)
        for (fragment, version), now in zip(versions, current, strict=True):
            if version != now:
                raise self._changed(f"{one_line(fragment.key)} was replaced (other version in the store)")

    def _changed(self, change: str) -> SourceError:
        return SourceError(
            f"the source changed since the fit in {self.path} was interrupted: {change}; "
            "delete that file to start afresh"
        )
