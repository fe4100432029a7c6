"""What a study or experiment gives: its table, figures and page, and how they are shown."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from evenkeel._display import Displayed
from evenkeel._errors import InvalidArgumentError
from evenkeel._options.names import nearest
from evenkeel.report import Figure, Finding, Page, Table, plotly_figure, write_page


@dataclass(frozen=True, repr=False)
class Result(Displayed, ABC):
    """The result of a run.

    Attributes:
        summary: everything measured, as in summary.json.
        directory: where the run keeps its files, or None where it kept none.
    """

    summary: Mapping[str, Any]
    directory: Path | None = None
    views = "evenkeel.lab.views"
    findings_tell_all: ClassVar[bool] = False

    @abstractmethod
    def page(self) -> Page:
        """Return the page."""

    @abstractmethod
    def table(self) -> Table:
        """Return the table that says most."""

    @abstractmethod
    def findings(self) -> list[Finding]:
        """Return what the measurements say, the most important first."""

    def figures(self) -> dict[str, str]:
        """Return the names of the figures that there are, each with its message."""
        return {name: figure.title for name, figure in self._figures().items()}

    def figure(self, name: str) -> Any:
        """Return a figure as Plotly's own, to show, change or save.

        Args:
            name: one of `figures`.

        Raises:
            InvalidArgumentError: there is no such figure.
            EvenkeelError: plotly is not installed.
        """
        figures = self._figures()
        if name not in figures:
            raise InvalidArgumentError(f"there is no figure {name!r}; did you mean {nearest(name, figures)}?")
        return plotly_figure(figures[name])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to an HTML file, whole or not at all, and return its path."""
        return write_page(self.page(), path)

    def _figures(self) -> dict[str, Figure]:
        return {figure.name: figure for figure in self.page().figures()}
