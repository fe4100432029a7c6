"""What `evenkeel._display.Displayed` shows of the results of studies and experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel.report import frame_page, render_page

if TYPE_CHECKING:
    from evenkeel.lab._result import Result

HEIGHT = 900  # of the frame: the page is long


def text(result: Result) -> str:
    """Return the table, unless the findings say the same in lines that a terminal has room for, and the findings."""
    findings = [f"{number}. {f.title}. {f.text}" for number, f in enumerate(result.findings(), start=1)]
    return "\n".join(findings if result.findings_tell_all else [str(result.table()), *findings])


def markdown(result: Result) -> str:
    """Return the same as Markdown."""
    findings = [f"{number}. **{f.title}.** {f.text}" for number, f in enumerate(result.findings(), start=1)]
    return "\n".join([result.table().markdown(), *findings]) + "\n"


def html(result: Result) -> str:
    """Return the page in a frame."""
    return frame_page(render_page(result.page()), height=HEIGHT)
