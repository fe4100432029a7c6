"""One group's numbers as LaTeX: what the substituted formulas are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenkeel.explain._setup import Setup

__all__ = ["View", "latex_list", "latex_number", "short", "shorten"]

WHOLE = 6  # lists up to this length are written out
DIGITS = 6
DOTS = r"\dots"  # in lists that `shorten` shortened


def latex_number(value: float) -> str:
    """A number with six significant digits in LaTeX."""
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


def short(value: float) -> str:
    """A number in prose: 1e-5, not 1e-05."""
    return f"{value:.6g}".replace("e-0", "e-").replace("e+0", "e+")


def shorten(items: list[str]) -> list[str]:
    """Long lists by their first two items, dots and the last."""
    return items if len(items) <= WHOLE else [*items[:2], DOTS, items[-1]]


def few(values: np.ndarray) -> np.ndarray:
    """The first and the last values only, where `shorten` drops those between anyway."""
    return values if len(values) <= WHOLE else np.concatenate([values[:WHOLE], values[-1:]])


def latex_list(values: np.ndarray) -> str:
    """A vector in LaTeX, shortened."""
    return f"[{', '.join(shorten([latex_number(v) for v in few(values).tolist()]))}]"


def bracketed(value: float) -> str:
    """A number that may follow an operator."""
    text = latex_number(value)
    return f"({text})" if text.startswith("-") else text


@dataclass(frozen=True, kw_only=True)
class View:
    """The group that the formulas show.

    Attributes:
        setup: the options.
        group: its number.
        groups: how many there are.
        n: its valid members.
        values: the steps by id, its valid members or its one number.
    """

    setup: Setup
    group: int
    groups: int
    n: int
    values: dict[str, np.ndarray]

    def value(self, step: str) -> float:
        """A step's number for this group."""
        return float(self.values[step][0])

    def num(self, step: str) -> str:
        """A step's number for this group in LaTeX."""
        return latex_number(self.value(step))

    def signed(self, step: str) -> str:
        """The same, in brackets where it is negative."""
        return bracketed(self.value(step))

    def vec(self, step: str) -> str:
        """A step's members in LaTeX, shortened."""
        return latex_list(self.values[step])

    def terms(self, term: Callable[..., str], *steps: str) -> str:
        """A sum over the members, written out and shortened."""
        columns = [few(self.values[step]).tolist() for step in steps]
        return " + ".join(shorten([term(*numbers) for numbers in zip(*columns, strict=True)]))

    def plain_sum(self, step: str) -> str:
        """Σ of a step's members."""
        return self.terms(bracketed, step)

    def square_sum(self, step: str) -> str:
        """Σ of a step's squares."""
        return self.terms(lambda v: f"{bracketed(v)}^2", step)

    def product_sum(self, first: str, second: str) -> str:
        """Σ of the products of two steps."""
        return self.terms(lambda a, b: rf"{bracketed(a)} \cdot {bracketed(b)}", first, second)
