"""What an experiment gives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from evenkeel._errors import StudyError
from evenkeel.lab._result import Result
from evenkeel.lab.experiments._page import claim_finding, claims_table, draw, experiments_page
from evenkeel.lab.experiments._run import flat_records, read_summary
from evenkeel.lab.experiments.catalogue import EXPERIMENTS
from evenkeel.report import Finding, Page, Table


@dataclass(frozen=True, repr=False)
class ExperimentResult(Result):
    """The result of `evenkeel.lab.experiment`; a notebook shows it as the interactive page.

    Attributes:
        summary: the options, the machine, and each claim with what was measured and the verdict.
        directory: where the experiment keeps its files, or None where it kept none.
        records: an entry for each trial: what it was, and what was measured.

    Example:
        >>> from evenkeel import lab
        >>> result = lab.experiment("padding", seeds=1, lengths=(4, 8), features=3, batch=4, progress=False)
        >>> len(result.records), result.table().columns[-1]
        (2, 'verdict')
    """

    records: Sequence[Mapping[str, Any]] = ()
    findings_tell_all = True

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> Self:
        """Read what a run has measured so far.

        Args:
            directory: of the experiment: OUT/<name>.

        Raises:
            StudyError: there is none, or it is damaged.
        """
        place = Path(directory)
        if not (place / "summary.json").exists():
            raise StudyError(f"{place} holds no summary of an experiment; give the directory OUT/<name> of a run")
        return cls(read_summary(place), place, records=flat_records(place))

    def __repr__(self) -> str:
        verdicts = ", ".join(claim["verdict"] for claim in self.summary["claims"])
        return f"ExperimentResult({self.summary['name']!r}, {len(self.records)} trials, claims: {verdicts or 'none'})"

    def page(self) -> Page:
        """Return the page: claims beside what was measured, and every figure."""
        return experiments_page(
            [draw(EXPERIMENTS[self.summary["name"]], dict(self.summary), list(map(dict, self.records)))]
        )

    def findings(self) -> list[Finding]:
        """Return each claim with its verdict and what was measured."""
        return [claim_finding(claim) for claim in self.summary["claims"]]

    def table(self) -> Table:
        """Return the claims: claim, source, measured, verdict."""
        return claims_table(dict(self.summary))
