"""What `evenkeel._display.Displayed` shows of an explanation."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from evenkeel.explain._page import render_page
from evenkeel.explain._render import print_explanation, to_markdown

if TYPE_CHECKING:
    from evenkeel.explain._data import Explanation

HEIGHT = 900  # of the frame: the page is long


def text(explanation: Explanation) -> str:
    """Return what the terminal shows."""
    stream = io.StringIO()
    print_explanation(explanation, file=stream)
    return "\n".join(map(str.rstrip, stream.getvalue().splitlines()))


def markdown(explanation: Explanation) -> str:
    """Return the steps as Markdown with LaTeX."""
    return to_markdown(explanation)


def html(explanation: Explanation) -> str:
    """Return the interactive page in a frame."""
    from evenkeel.report import frame_page

    return frame_page(render_page(explanation), height=HEIGHT)
