"""Checks of the numbers that options take."""

from __future__ import annotations

import json
import math
from numbers import Integral, Real
from typing import Any

from evenkeel._errors import InvalidArgumentError, InvalidInputError

MOST_THREADS = 1024
COUNT = f"a whole number from 1 to {MOST_THREADS}"  # of threads or workers
LARGEST = 2**1023  # of whole numbers: a double holds no larger ones


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, which a double can hold."""
    return type(value) is int and abs(value) < LARGEST


def is_real(value: Any) -> bool:
    """Whether a value is a number, which a double can hold."""
    return isinstance(value, float) or is_whole(value)


def is_count(value: Any) -> bool:
    """Whether a value can be a number of threads or workers."""
    return is_whole(value) and 1 <= value <= MOST_THREADS


def check_number(name: str, value: Any, *, least: float, most: float = math.inf, hint: str = "") -> None:
    """Raise `InvalidArgumentError` unless a value is a number from `least` to `most`; NaN is none."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if real and least <= value <= most:
        return
    expected = f"at least {least:g}" if most == math.inf else f"finite and at least {least:g}"
    if most <= 1:
        expected = f"between {least:g} and {most:g}"
    raise InvalidArgumentError(f"{name} must be {expected}, but got {value!r}{hint and f'; {hint}'}")


def check_integer(name: str, value: Any, *, least: int, most: int | None = None) -> None:
    """Raise `InvalidArgumentError` unless a value is an integer from `least` to `most`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and least <= value <= (value if most is None else most):
        return
    expected = f"at least {least}" if most is None else f"between {least} and {most}"
    raise InvalidArgumentError(f"{name} must be {expected}, a whole number, but got {value!r}")


def ends_of(name: str, value: Any) -> tuple[float, float]:
    """The two numbers of an option, as they are; NaN is none."""
    try:
        low, high = value
        if not (math.isnan(low) or math.isnan(high)):
            return low, high
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise InvalidArgumentError(f"{name} must be two numbers, but got {value!r}")


def typed_rows(text: str, name: str = "the input") -> list[list[str]]:
    """Return the cells of typed numbers: separated by spaces or commas, rows by semicolons or line feeds."""
    lines = [line for line in text.replace(";", "\n").splitlines() if line.strip()]
    rows = [line.replace(",", " ").split() for line in lines]
    if not rows:
        raise InvalidInputError(f"explain: {name} is empty; give at least one number")
    check_rows(rows, name)
    return rows


def nested_lists(text: str, name: str) -> tuple[Any, tuple[int, ...]]:
    """Return nested lists of numbers, which are typed as JSON, and their shape."""
    try:
        data = json.loads(text)
        return data, shape_of(data, name)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInputError(f"explain: {name} is not JSON: {error}") from error


def shape_of(data: Any, name: str) -> tuple[int, ...]:
    """Return the shape of nested lists of numbers; raise for what is none."""
    if is_real(data):
        return ()
    if not isinstance(data, list):
        raise InvalidInputError(f"explain: {name} must be a number or nested lists of numbers, nothing else")
    shapes = {shape_of(item, name) for item in data}
    if len(shapes) > 1:
        raise InvalidInputError(f"explain: the rows of {name} have different lengths; give every row as many numbers")
    return (len(data), *(shapes.pop() if shapes else ()))


def typed_cells(text: str, name: str = "the input") -> tuple[list[float], tuple[int, ...]]:
    """Return typed numbers in a row, and the shape that they have; raise for what is none."""
    if text.lstrip().startswith("["):
        data, shape = nested_lists(text, name)
        for _ in shape[1:]:
            data = [item for row in data for item in row]
        if not data:
            raise InvalidInputError(f"explain: {name} is empty; give at least one number")
        return data, shape
    rows = typed_rows(text, name)
    cells = [float(cell) for row in rows for cell in row]
    return cells, (len(cells),) if len(rows) == 1 else (len(rows), len(rows[0]))


def check_rows(rows: list[list[str]], name: str) -> None:
    """Raise unless a table's rows have one length and its cells are numbers."""
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise InvalidInputError(
                f"explain: the rows of {name} have different lengths: row 1 has {len(rows[0])}, row {number} "
                f"has {len(row)}; give every row as many"
            )
        for cell in row:
            if not is_number(cell):
                raise InvalidInputError(
                    f"explain: {cell[:40]!r} in {name} is not a number; give numbers such as 1, -2.5 or 1e-3"
                )


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
