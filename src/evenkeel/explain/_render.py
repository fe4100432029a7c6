"""An explanation as terminal text, Markdown and JSON."""

from __future__ import annotations

import html
import json
from typing import IO, TYPE_CHECKING

import numpy as np

from evenkeel.explain._format import DOTS, shorten
from evenkeel.explain._mathtext import plain_text
from evenkeel.explain._words import PHRASES, STEPS, tell

if TYPE_CHECKING:
    from evenkeel.explain._data import Explanation, Step

__all__ = ["print_explanation", "to_json", "to_markdown"]

WIDTH = 100
LIMIT = 4096  # numbers of one value that JSON gives unless all are asked for
ROWS = 4  # rows of a table of numbers that a shortened rendering shows


def list_text(values: np.ndarray, *, full: bool) -> str:
    """Write a vector, such as `[0.146, 0.108, …, 0.11]`, or the whole of it."""
    flat = values.reshape(-1)
    if full:
        return f"[{', '.join(f'{v:.17g}' if v != round(v, 6) else f'{v:.6g}' for v in flat.tolist())}]"
    if flat.size > 2 * ROWS:
        flat = np.concatenate([flat[: 2 * ROWS], flat[-1:]])
    return f"[{', '.join('…' if t == DOTS else t for t in shorten([f'{v:.6g}' for v in flat.tolist()]))}]"


def value_lines(step: Step, *, full: bool) -> list[str]:
    """Write a step's value: one line for a vector, one for each row of a tensor."""
    value = step.value
    if step.id == "groups" and value.max() <= 0:
        return [tell(PHRASES["one_group"], {"members": int((value == 0).sum())}.__getitem__)]
    if value.ndim <= 1:
        return [list_text(value, full=full)]
    rows = value.reshape(-1, value.shape[-1])
    # One row left out would take the line that says so.
    if full or len(rows) <= ROWS + 1:
        return [list_text(row, full=full) for row in rows]
    first = [list_text(row, full=False) for row in rows[: ROWS - 1]]
    return [*first, f"… {len(rows) - ROWS:,} more rows", list_text(rows[-1], full=False)]


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

    forced = file.isatty() if file else None  # as in `report.print_table`
    console = Console(file=file, highlight=False, force_terminal=forced, force_jupyter=False)
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
    """Write a step's formula, numbers and value as plain text."""
    formula, numbers = plain_text(step.formula), plain_text(step.substituted)
    lines = [numbers] if numbers.startswith(formula) and "=" not in formula else [formula, numbers]
    lines = list(dict.fromkeys(lines))
    return lines + value_lines(step, full=full) if full or is_listed(step) else lines


def is_listed(step: Step) -> bool:
    """Whether the value is listed below the formula: of tensors, and of statistics of several groups."""
    of_groups = step.id == "groups" or STEPS[step.id].shape == "groups"
    return step.value.ndim > 1 or (step.value.size > 1 and of_groups)


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
    parts = [f"# {escape(explanation.title)}", *(f"> {escape(note)}" for note in explanation.notes)]
    for number, step in enumerate(explanation.steps, start=1):
        formula = step.formula if step.formula == step.substituted else f"{step.formula}\n$$\n\n$$\n{step.substituted}"
        parts += [f"## {number}. {step.title}", f"$$\n{formula}\n$$", step.meaning]
        if full or is_listed(step):
            parts.append("\n".join(["```text", *value_lines(step, full=full), "```"]))
    parts.append("## Checks")
    rows = ["| check | value | expected | passed | note |", "| --- | ---: | ---: | --- | --- |"]
    rows += [
        f"| {escape(c.title)} | {c.value:.6g} | {c.expected:.6g} | {'yes' if c.passed else 'NO'} | {escape(c.note)} |"
        for c in explanation.checks
    ]
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def escape(text: str) -> str:
    """Escape words for Markdown, which takes HTML for HTML and a bar for the end of a cell; names may hold both."""
    return html.escape(text, quote=False).replace("|", "\\|")


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
