"""One table for page, download and terminal."""

import base64
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from evenkeel._errors import InvalidArgumentError
from evenkeel.report._text import format_number

Cell = str | float | None

TERMINAL_WIDTH = 100
NAME_WIDTH = 16  # the least that a name is folded to
NUMBER = re.compile(r"[+\-−]?[\d,]+(\.\d+)?")


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under named columns.

    Args:
        columns: the column names.
        rows: one sequence of cells a row, as long as `columns`; None is an empty cell.
        title: a heading, or empty.

    Raises:
        InvalidArgumentError: a row has more or fewer cells than there are columns.

    Example:
        >>> print(Table(["arm", "loss"], [["pre-rms", 1.25]]).csv())
        arm,loss
        pre-rms,1.25
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InvalidArgumentError(
                    f"row {index} of the table has {len(row)} cells for {len(self.columns)} columns; "
                    "give one cell for every column, None where there is no value"
                )

    def csv(self) -> str:
        """The table as comma-separated values with full precision, one header line."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return stream.getvalue()

    def data_uri(self) -> str:
        """The CSV as a `data:` address, so that a page can offer it without another file."""
        return "data:text/csv;charset=utf-8;base64," + base64.b64encode(self.csv().encode()).decode()

    def numeric_columns(self) -> list[bool]:
        """For every column whether it is set flush right."""
        return [self.numeric(index) for index in range(len(self.columns))]

    def name_column(self) -> int | None:
        """The first column that holds words, by which a reader knows the rows; None if there is none."""
        columns = range(len(self.columns))
        return next((index for index in columns if self._filled(index) and not self.numeric(index)), None)

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers only, as such or written out (and at least one), so it is set flush right."""
        cells = self._filled(column)
        return bool(cells) and all(not isinstance(cell, str) or NUMBER.fullmatch(cell) for cell in cells)

    def _filled(self, column: int) -> list[Cell]:
        return [row[column] for row in self.rows if row[column] not in (None, "", "–")]


def cell_text(cell: Cell) -> str:
    """A cell as a reader sees it: four significant digits, whole numbers in full, nothing for None."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    return format_number(cell, digits=4)


def print_table(table: Table, *, file: IO[str] | None = None) -> None:
    """Print a table at most 100 columns wide; where there is no terminal, in all of them and without colour.

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
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=file)
    console.width = min(console.width, TERMINAL_WIDTH) if console.is_terminal else TERMINAL_WIDTH
    rich = RichTable(
        box=box.SIMPLE_HEAD, title=Text(table.title) if table.title else None, title_justify="left", pad_edge=False
    )
    widths = [max((len(cell_text(row[i])) for row in table.rows), default=0) for i in range(len(table.columns))]
    numbers = sum(w + 2 for w, numeric in zip(widths, table.numeric_columns(), strict=True) if numeric)
    room = console.width - numbers
    for index, name in enumerate(table.columns):
        # A name is easiest to find in one piece, but one that would fill the table must fold: unwrapped, it is cut off.
        # Beside numbers it is the name that gives way, for a number broken over lines cannot be read.
        whole = widths[index] <= console.width // 2 and (widths[index] <= room or room < NAME_WIDTH)
        rich.add_column(
            Text(name),
            justify="right" if table.numeric(index) else "left",
            overflow="fold",
            no_wrap=index == table.name_column() and whole,
            min_width=widths[index] if table.numeric(index) and room >= NAME_WIDTH else None,
        )
    for row in table.rows:
        # Text, not str: square brackets in a name must not be read as Rich markup.
        rich.add_row(*(Text(cell_text(cell)) for cell in row))
    console.print(rich)
