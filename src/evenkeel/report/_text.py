"""Numbers and lists as readable text."""

import math
import re
from collections.abc import Sequence


def format_number(value: float | None, *, digits: int = 3) -> str:
    """Write a number with the given significant digits, plainly where that is short or takes no more than the digits.

    Args:
        value: the number; None and non-finite values give an en dash, the sign for "no value".
        digits: significant digits, at least 1.

    Returns:
        Text such as `0.0123`, `1,234` or `1.23e-07`.

    Example:
        >>> [format_number(value) for value in (0.0123456, 1234.5, 1.23456e-7, None)]
        ['0.0123', '1,234', '1.23e-07', '–']
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    exponent = math.floor(math.log10(abs(rounded)))
    if -4 <= exponent < max(6, digits):
        return f"{value:,.{max(0, digits - 1 - exponent)}f}"
    return f"{value:.{digits - 1}e}"


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence lists them.

    Args:
        words: the items in order.

    Returns:
        `a`, `a and b`, or `a, b and c`.

    Example:
        >>> join_words(["none", "layer", "rms"])
        'none, layer and rms'
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def slug(text: str) -> str:
    """Reduce text to lower-case letters, digits and hyphens, for a file name or an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "data"
