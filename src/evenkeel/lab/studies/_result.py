"""What a study gives."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from evenkeel._errors import StudyError
from evenkeel.lab._result import Result
from evenkeel.lab.studies.page import ranking_table, study_page
from evenkeel.report import Finding, Page, Table


@dataclass(frozen=True, repr=False)
class StudyResult(Result):
    """The result of `evenkeel.lab.study`; a notebook shows it as the interactive page.

    Attributes:
        summary: the settings, the text, the machine, an entry for each arm and seed, and the findings.
        directory: where the study keeps its files, or None where it kept none.

    Example:
        >>> from evenkeel.lab import StudyResult
        >>> StudyResult({"format": 2, "arms": []}).table().rows
        []
    """

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> Self:
        """Read what a study has measured so far.

        Args:
            directory: of the study.

        Raises:
            StudyError: there is none, or it is damaged.
        """
        path = Path(directory) / "summary.json"
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            ranking_table(summary)
        except OSError as error:
            raise StudyError(f"cannot read {path}: {error.strerror}; give the directory of a study") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StudyError(f"{path} is damaged; resume the study, which writes it again") from error
        return cls(summary, Path(directory))

    def __repr__(self) -> str:
        place = "" if self.directory is None else f", directory={str(self.directory)!r}"
        return f"StudyResult({len(self.table().rows)} arms{place})"

    def page(self) -> Page:
        """Return the page: findings, ranking, and every figure."""
        return study_page(self.summary)

    def findings(self) -> list[Finding]:
        """Return the findings."""
        return [Finding(item["title"].rstrip("."), item["text"]) for item in self.summary.get("findings") or ()]

    def table(self) -> Table:
        """Return the ranking: comparable arms by mean final validation loss, then the others with the reason."""
        return ranking_table(self.summary)
