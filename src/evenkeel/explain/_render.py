"""An explanation as terminal text, Markdown and JSON."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING

import numpy as np

from evenkeel.explain._mathtext import plain_text
from evenkeel.explain._view import DOTS, shorten

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from evenkeel.explain._data import Explanation, Step

__all__ = ["print_explanation", "to_json", "to_markdown", "write_page"]

WIDTH = 100
LIMIT = 4096  # numbers of one value that JSON gives unless all are asked for
ROWS = 4  # rows of a table of numbers that a shortened rendering shows


def list_text(values: np.ndarray, *, full: bool) -> str:
    """A vector as text, such as `[0.146, 0.108, …, 0.11]`, or the whole of it."""
    flat = values.reshape(-1)
    if full:
        return f"[{', '.join(f'{v:.17g}' if v != round(v, 6) else f'{v:.6g}' for v in flat.tolist())}]"
    if flat.size > 2 * ROWS:
        flat = np.concatenate([flat[: 2 * ROWS], flat[-1:]])
    return f"[{', '.join('…' if t == DOTS else t for t in shorten([f'{v:.6g}' for v in flat.tolist()]))}]"


def value_lines(step: Step, *, full: bool) -> list[str]:
    """A step's value as lines: one for a vector, one for each row of a tensor."""
    value = step.value
    if value.ndim <= 1:
        return [list_text(value, full=full)]
    rows = value.reshape(-1, value.shape[-1])
    # One row left out would take the line that says so.
    if full or len(rows) <= ROWS + 1:
        return [list_text(row, full=full) for row in rows]
    shown = [list_text(row, full=False) for row in rows[: ROWS - 1]]
    return [*shown, f"… {len(rows) - ROWS:,} more rows", list_text(rows[-1], full=False)]


def print_explanation(explanation: Explanation, *, full: bool = False, file: IO[str] | None = None) -> None:
    """Print an explanation for a terminal, at most 100 columns wide; without colour where there is no terminal.

    Args:
        explanation: what to print.
        full: print every number of every value rather than the first two and the last.
        file: where to print; standard output by default.

    Example:
        >>> import evenkeel as ek
        >>> ek.explain.print_explanation(ek.explain.walk([1.0, 2.0, 3.0, 4.0]))
        LayerNorm of 4 numbers
        ...
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(file=file, highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    console.print(Text(explanation.title, style="bold"))
    for note in explanation.notes:
        console.print(Text(f"Note: {note}", style="yellow"))
    for number, step in enumerate(explanation.steps, start=1):
        console.print()
        console.print(Text(f"{number}. {step.title}", style="bold"))
        for line in step_lines(step, full=full):
            console.print(Padding.indent(Text(line, overflow="fold"), 4))
        console.print(Padding.indent(Text(step.meaning, style="dim"), 4))
    console.print()
    console.print(Text("Checks", style="bold"))
    for check in explanation.checks:
        mark = Text("ok    ", style="green") if check.passed else Text("FAILED", style="red bold")
        told = Text.assemble(mark, f" {check.title}: {check.value:.6g} ({check.note})")
        console.print(Padding.indent(told, 4))


def step_lines(step: Step, *, full: bool) -> list[str]:
    """The formula, the numbers and the value of a step, as plain text."""
    formula, numbers = plain_text(step.formula), plain_text(step.substituted)
    lines = [numbers] if numbers.startswith(formula) and "=" not in formula else [formula, numbers]
    lines = list(dict.fromkeys(lines))
    if full or step.value.ndim > 1 or (step.value.size > 1 and step.id in GROUP_LISTS):
        lines += value_lines(step, full=full)
    return lines


GROUP_LISTS = {
    *("groups", "mean", "variance", "sample_variance", "std", "sample_std", "mean_square", "rms", "minimum", "maximum"),
    *("range", "denominator", "eps_effect", "mean_g", "mean_g_xhat", "share_one", "share_xhat", "share_kept"),
    *("sum_at_max", "sum_at_min"),
}


def to_markdown(explanation: Explanation, *, full: bool = False) -> str:
    """An explanation as Markdown with LaTeX formulas.

    Args:
        explanation: what to write.
        full: write every number of every value rather than the first two and the last.

    Returns:
        The text, which ends in a line feed.

    Example:
        >>> import evenkeel as ek
        >>> ek.explain.to_markdown(ek.explain.walk([1.0, 2.0, 3.0, 4.0])).splitlines()[0]
        '# LayerNorm of 4 numbers'
    """
    parts = [f"# {explanation.title}", *(f"> {note}" for note in explanation.notes)]
    for number, step in enumerate(explanation.steps, start=1):
        formula = step.formula if step.formula == step.substituted else f"{step.formula}\n$$\n\n$$\n{step.substituted}"
        parts += [f"## {number}. {step.title}", f"$$\n{formula}\n$$", step.meaning]
        if full or step.value.ndim > 1 or (step.value.size > 1 and step.id in GROUP_LISTS):
            parts.append("\n".join(["```text", *value_lines(step, full=full), "```"]))
    parts.append("## Checks")
    rows = ["| check | value | expected | passed | note |", "| --- | ---: | ---: | --- | --- |"]
    rows += [
        f"| {c.title} | {c.value:.6g} | {c.expected:.6g} | {'yes' if c.passed else 'NO'} | {c.note} |"
        for c in explanation.checks
    ]
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def to_json(explanation: Explanation, *, full: bool = True) -> str:
    """An explanation as JSON, which `Explanation.from_dict` reads again.

    Args:
        explanation: what to write.
        full: every number of every value; otherwise, values of more than 4096 numbers are given by their shape,
            their extremes and their two ends, and cannot be read again.

    Returns:
        The text, which ends in a line feed; NaN and infinities are strings.

    Example:
        >>> import json, evenkeel as ek
        >>> json.loads(ek.explain.to_json(ek.explain.walk([1.0, 2.0])))["norm"]
        'layer'
    """
    return json.dumps(explanation.to_dict(limit=None if full else LIMIT), ensure_ascii=False, allow_nan=False) + "\n"


def write_page(explanation: Explanation, path: str | os.PathLike[str]) -> Path:
    """Write an explanation as one interactive HTML page that needs nothing else, also offline.

    Args:
        explanation: what the page starts from; its fields and sliders change the numbers in the browser.
        path: the file to write; its directory must exist.

    Returns:
        The path written.

    Raises:
        EvenkeelError: the file cannot be written.

    Example:
        >>> import evenkeel as ek, tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     ek.explain.write_page(ek.explain.walk([1.0, 2.0]), f"{directory}/page.html").name
        'page.html'
    """
    from evenkeel.explain import _page

    return _page.write_page(explanation, path)
