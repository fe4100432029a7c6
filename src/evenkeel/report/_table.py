"""One table for page, download and terminal."""

import base64
import csv
import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from evenkeel._errors import InvalidArgumentError
from evenkeel.report._cells import Intervals, Sparkline
from evenkeel.report._text import format_number

Cell = str | float | None | Sparkline | Intervals

DIGITS = 4  # significant digits of a number, unless a step asks for more
TERMINAL_WIDTH = 100
NAME_WIDTH = 16  # the least that a name is folded to
NUMBER = re.compile(r"[+\-−]?([\d,]+(\.\d+)?|inf|nan)")


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under named columns.

    Args:
        columns: the column names.
        rows: one sequence of cells a row, as long as `columns`; None is an empty cell.
        title: a heading, or empty.
        steps: for every row the difference between numbers that a reader has to see, such as a part of their standard
            deviation; 0 shows all digits, NaN and no steps at all show four.

    Raises:
        InvalidArgumentError: a row has more or fewer cells than there are columns, or there is not one step a row.

    Example:
        >>> print(Table(["arm", "loss"], [["pre-rms", 1.25]]).csv())
        arm,loss
        pre-rms,1.25
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    steps: Sequence[float] = ()

    def __post_init__(self) -> None:
        if self.steps and len(self.steps) != len(self.rows):
            raise InvalidArgumentError(
                f"the table has {len(self.rows)} rows, but {len(self.steps)} steps; give one for every row, or none"
            )
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InvalidArgumentError(
                    f"row {index} of the table has {len(row)} cells for {len(self.columns)} columns; "
                    "give one cell for every column, None where there is no value"
                )

    def __str__(self) -> str:
        stream = io.StringIO()
        print_table(self, file=stream)
        return "\n".join(map(str.rstrip, stream.getvalue().splitlines())).strip("\n")

    def __repr__(self) -> str:
        return f"Table({list(self.columns)}, {len(self.rows)} rows)"

    def markdown(self) -> str:
        """Return the table as Markdown, numbers flush right."""
        marks = ["---:" if numeric else "---" for numeric in self.numeric_columns()]
        lines = [list(self.columns), marks, *self.texts()]
        cells = [
            [html.escape(cell, quote=False).replace("|", "\\|").replace("\n", " ") for cell in row] for row in lines
        ]
        return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"

    def _repr_markdown_(self) -> str:
        return self.markdown()

    def html(self) -> str:
        """Return the table as HTML.

        Example:
            >>> Table(["arm"], [["<rms>"]]).html()
            '<table><tr><th>arm</th></tr><tr><td>&lt;rms&gt;</td></tr></table>'
        """
        rows = [("th", self.columns), *(("td", row) for row in self.texts())]
        lines = ("".join(f"<{mark}>{html.escape(cell)}</{mark}>" for cell in row) for mark, row in rows)
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"

    def csv(self) -> str:
        """Return comma-separated values with full precision and one header line."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return stream.getvalue()

    def texts(self) -> list[list[str]]:
        """Return the cells as text: whole numbers in full, others to four digits or the step, None as nothing."""
        steps = self.steps or [math.nan] * len(self.rows)
        return [[cell_text(cell, step) for cell in row] for row, step in zip(self.rows, steps, strict=True)]

    def select(self, columns: Sequence[int]) -> "Table":
        """Return a table of some of the columns."""
        rows = [[row[index] for index in columns] for row in self.rows]
        return Table([self.columns[index] for index in columns], rows, self.title, self.steps)

    def data_uri(self) -> str:
        """Return the CSV as a `data:` address, so that a page can offer it without another file."""
        return "data:text/csv;charset=utf-8;base64," + base64.b64encode(self.csv().encode()).decode()

    def numeric_columns(self) -> list[bool]:
        """Return for every column whether it is set flush right."""
        return [self.numeric(index) for index in range(len(self.columns))]

    def name_column(self) -> int | None:
        """Return the first column of words, by which a reader knows the rows; None if there is none."""
        columns = range(len(self.columns))
        return next((index for index in columns if self._filled(index) and not self.numeric(index)), None)

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers only, as such or written out (and at least one), so it is set flush right."""
        cells = self._filled(column)
        return bool(cells) and all(
            NUMBER.fullmatch(cell) if isinstance(cell, str) else not isinstance(cell, Sparkline | Intervals)
            for cell in cells
        )

    def _filled(self, column: int) -> list[Cell]:
        return [row[column] for row in self.rows if row[column] not in (None, "", "–")]


def cell_text(cell: Cell, step: float = math.nan) -> str:
    """Write a cell: whole numbers in full, others to four digits or the step, nothing for None."""
    if cell is None:
        return ""
    if isinstance(cell, str | Sparkline | Intervals):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return format_number(cell, digits=digits_to(step, cell))


def digits_to(step: float, value: float) -> int:
    """Return a value's significant digits down to the step's, as far as it has any; four at least."""
    if not (value and math.isfinite(value) and step >= 0):
        return DIGITS
    own, _, exponent = f"{value:.14e}".lstrip("-").replace(".", "").partition("e")
    needed = int(exponent) - math.floor(math.log10(step)) + 1 if step else len(own)
    return max(DIGITS, min(needed, len(own.rstrip("0"))))


def print_table(table: Table, *, file: IO[str] | None = None) -> None:
    """Print a table at most 100 columns wide; where there is no terminal, in all of them and without colour.

    Where the numbers leave no room for the names, the columns are printed in several tables, each with the names.

    Args:
        table: what to print.
        file: where to print; standard output by default.

    Example:
        >>> import sys
        >>> print_table(Table(["arm", "loss"], [["pre-rms", 1.25]]), file=sys.stdout)
        arm       loss
        ───────────────
        pre-rms  1.250
    """
    from rich.console import Console

    # a file has no colours, even where the environment forces them as in a notebook, and none of a notebook's tags
    console = Console(file=file, force_terminal=file.isatty() if file else None, force_jupyter=False)
    console.width = min(console.width, TERMINAL_WIDTH) if console.is_terminal else TERMINAL_WIDTH
    for part in _parts(table, console.width):
        console.print(_rich_table(part, console.width))


def _widths(table: Table) -> list[int]:
    """Return the width of every column's widest cell."""
    texts = table.texts()
    return [max((len(row[index]) for row in texts), default=0) for index in range(len(table.columns))]


def _parts(table: Table, width: int) -> list[Table]:
    """Split a table that is too wide into tables of about one width; each has the names."""
    # beside a column stand two blanks, and its heading is broken between words only
    heads = [max(map(len, name.split()), default=0) for name in table.columns]
    needed = [
        2 + max(head, cells if number else min(cells, NAME_WIDTH))
        for head, cells, number in zip(heads, _widths(table), table.numeric_columns(), strict=True)
    ]
    names = [index for index in (table.name_column(),) if index is not None]
    others = [index for index in range(len(needed)) if index not in names]
    room = width + 2 - sum(needed[index] for index in names)
    fewest = len(_groups(needed, others, room))
    if fewest <= 1:
        return [table]
    widest = max(needed[index] for index in others)
    while room > widest and len(_groups(needed, others, room - 1)) == fewest:
        room -= 1
    return [table.select(sorted([*names, *group])) for group in _groups(needed, others, room)]


def _groups(needed: Sequence[int], columns: Sequence[int], room: int) -> list[list[int]]:
    """Group columns in their order, as many as there is room for; one at least."""
    groups: list[list[int]] = []
    for index in columns:
        if groups and sum(needed[i] for i in [*groups[-1], index]) <= room:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _rich_table(table: Table, width: int) -> Any:
    """Convert a table for Rich, to print it within a width."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(
        box=box.SIMPLE_HEAD, title=Text(table.title) if table.title else None, title_justify="left", pad_edge=False
    )
    widths = _widths(table)
    room = width - sum(w + 2 for w, numeric in zip(widths, table.numeric_columns(), strict=True) if numeric)
    for index, name in enumerate(table.columns):
        # A name is easiest to find in one piece, but one that would fill the table must fold: unwrapped, it is cut off.
        # Beside numbers it is the name that gives way, for a number broken over lines cannot be read.
        whole = widths[index] <= min(width // 2, room)
        rich.add_column(
            Text(name),
            justify="right" if table.numeric(index) else "left",
            overflow="fold",
            no_wrap=index == table.name_column() and whole,
            min_width=widths[index] if table.numeric(index) and room >= 0 else None,
        )
    for row in table.texts():
        # Text, not str: square brackets in a name must not be read as Rich markup.
        rich.add_row(*map(Text, row))
    return rich
