"""Statistics of many parts, merged in a balanced tree."""

from __future__ import annotations

from collections.abc import Iterable

from evenkeel._errors import InvalidArgumentError, InvalidTypeError
from evenkeel.data.statistics._statistics import Statistics


def merge_all(parts: Iterable[Statistics]) -> Statistics:
    """Merge several objects in a balanced tree, in their order; the parts themselves are used up.

    Holds no more than about log2(parts) of them at a time, so that an iterator over many parts needs little memory.

    Args:
        parts: the objects to merge, at least one.

    Returns:
        One that has seen what all of them have.

    Raises:
        InvalidArgumentError: there is no part.
        InvalidTypeError: a part is something else.
        InvalidInputError: two parts do not fit together.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import Statistics, merge_all
        >>> merge_all(Statistics().update(np.full((2, 1), float(i))) for i in range(5)).mean
        array([2.])
    """
    waiting: list[tuple[int, Statistics]] = []  # like the digits of a binary counter: sizes fall from left to right
    for part in parts:
        if not isinstance(part, Statistics):
            raise InvalidTypeError(f"merge_all: expected Statistics, but got {type(part).__name__}; fit each part")
        waiting.append((1, part))
        while len(waiting) > 1 and waiting[-1][0] == waiting[-2][0]:
            size, right = waiting.pop()
            waiting[-1] = (2 * size, waiting[-1][1].merge(right))
    if not waiting:
        raise InvalidArgumentError("merge_all: expected at least one Statistics, but got none")
    while len(waiting) > 1:
        size, right = waiting.pop()
        waiting[-1] = (size + waiting[-1][0], waiting[-1][1].merge(right))
    return waiting[0][1]
