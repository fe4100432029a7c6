"""Format numbers: in LaTeX for formulas, plain for sentences, exactly as `assets/words.js` does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

__all__ = ["DOTS", "FORMATS", "latex_number", "shorten"]

WHOLE = 6  # lists up to this length are written out
DIGITS = 6
DOTS = r"\dots"  # in lists that `shorten` shortened


def latex_number(value: float) -> str:
    """Write a number with six significant digits in LaTeX."""
    if math.isnan(value):
        return r"\text{NaN}"
    if math.isinf(value):
        return r"\infty" if value > 0 else r"-\infty"
    text = f"{value:.{DIGITS}g}"
    if "e" not in text:
        return "0" if text == "-0" else text
    mantissa, exponent = text.split("e")
    power = f"10^{{{int(exponent)}}}"
    return {"1": power, "-1": f"-{power}"}.get(mantissa, rf"{mantissa} \times {power}")


def bracketed(value: float) -> str:
    """Write a number, in brackets where it is negative: it follows an operator."""
    text = latex_number(value)
    return f"({text})" if text.startswith("-") else text


def shorten(items: list[str]) -> list[str]:
    """Shorten a long list to its first two items, dots and the last."""
    return items if len(items) <= WHOLE else [*items[:2], DOTS, items[-1]]


def terms(write: Callable[..., str], *columns: np.ndarray) -> list[str]:
    """Write each member that `shorten` keeps."""
    few = (c if len(c) <= WHOLE else np.concatenate([c[:WHOLE], c[-1:]]) for c in columns)
    return shorten([write(*numbers) for numbers in zip(*(c.tolist() for c in few), strict=True)])


def plain(value: float, digits: int = DIGITS) -> str:
    """Write a number for a sentence."""
    return f"{value:.{digits}g}"


# The formats of placeholders; vec, sum, squares and products take arrays.
FORMATS: dict[str, Callable[..., str]] = {
    "num": latex_number,
    "signed": bracketed,
    "vec": lambda values: f"[{', '.join(terms(latex_number, values))}]",
    "sum": lambda values: " + ".join(terms(bracketed, values)),
    "squares": lambda values: " + ".join(terms(lambda v: f"{bracketed(v)}^2", values)),
    "products": lambda *columns: " + ".join(terms(lambda a, b: rf"{bracketed(a)} \cdot {bracketed(b)}", *columns)),
    "count": lambda value: f"{value:,}",
    "short": lambda value: plain(value).replace("e-0", "e-").replace("e+0", "e+"),  # 1e-5, not 1e-05
    "g": plain,
    **{f"g{digits}": partial(plain, digits=digits) for digits in (2, 3, 4)},
}
