"""How results show themselves: as text in a terminal, as Markdown and as an interactive page in a notebook."""

from __future__ import annotations

import importlib
from html import escape
from typing import Any, ClassVar

from evenkeel._errors import EvenkeelError


class Displayed:
    """Base of results that show themselves.

    Attributes:
        views: the module that draws them, by its functions `text`, `markdown` and `html`. It is imported when a result
            is shown: who computes needs no packages that draw.
    """

    views: ClassVar[str]

    def __str__(self) -> str:
        text: str = self._view("text")
        return text

    def _repr_markdown_(self) -> str:
        markdown: str = self._view("markdown")
        return markdown

    def _repr_html_(self) -> str | None:
        """Return the page in a frame, or None where its packages are missing: a notebook then shows the Markdown."""
        try:
            html: str = self._view("html")
        except EvenkeelError:
            return None
        return html

    def _view(self, kind: str) -> Any:
        return getattr(importlib.import_module(self.views), kind)(self)


class Summarised(Displayed):
    """Base of results that show themselves as a line and a table: the functions `lead` and `table` of their views."""

    def __str__(self) -> str:
        return f"{self._view('lead')}\n{self._view('table')}"

    def _repr_markdown_(self) -> str:
        return f"{self._view('lead')}\n\n{self._view('table').markdown()}"

    def _repr_html_(self) -> str | None:
        """Return the same as HTML."""
        return f"<p>{escape(self._view('lead'))}</p>{self._view('table').html()}"
