"""What commands print and open, alike everywhere."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from evenkeel._files import path_as_text
from evenkeel._packages import check_packages


def print_json(value: Any) -> None:
    """Print one JSON object; numbers that JSON cannot hold are the words nan, inf and -inf."""
    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return path_as_text(value) if isinstance(value, Path) else value


@dataclass(frozen=True)
class Output:
    """What a command shows beside its result, by the options that all commands share.

    Attributes:
        html: the page to write, or None.
        open_page: whether to open the page; without a path it is a temporary one.
        as_json: whether stdout is for programs, with one JSON object, so that lines for the user go to stderr.
    """

    html: Path | None = None
    open_page: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.html is not None or self.open_page:
            check_packages("jinja2")

    def say(self, text: str) -> None:
        """Print a line for the user."""
        typer.echo(text, err=self.as_json)

    def write(self, name: str, write: Callable[[Path], object]) -> bool:
        """Write a page by a function of its path and announce it, if there is to be one; return whether there is."""
        path = self.html
        if path is None and self.open_page:
            path = Path(tempfile.mkdtemp(prefix="evenkeel-")) / f"{name}.html"
        if path is None:
            return False
        write(path)
        self.announce("page", path)
        return True

    def announce(self, kind: str, path: Path) -> None:
        """Say where a page is, and open it if asked."""
        self.say(f"{kind}: {path_as_text(path)}")
        if self.open_page:
            import webbrowser

            webbrowser.open(path.resolve().as_uri())
