"""How the page and the findings put things: names within sentences, losses, ratios and shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel.report import format_number


@dataclass(frozen=True)
class Text:
    """What is learned: bytes or tokens, and the loss that their frequencies alone give."""

    unit: str = "byte"
    baseline: float | None = None

    @property
    def nats(self) -> str:
        """The unit of losses."""
        return f"nats per {self.unit}"

    @property
    def frequencies(self) -> str:
        """What the baseline is made of."""
        return f"{self.unit} frequencies"

    def loss(self, value: float) -> str:
        """A loss with its unit."""
        return f"{loss_text(value)} {self.nats}"


def text_of(corpus: Mapping[str, Any] | None) -> Text:
    """The text of a summary, which is one of bytes where it does not say."""
    corpus = corpus or {}
    return Text(corpus.get("unit", "byte"), corpus.get("frequency_loss"))


def spoken(name: str) -> str:
    """An arm's name within a sentence: "none diverged" would say the opposite of what is meant."""
    return "the arm without norm" if name == "none" else name


def opening(text: str) -> str:
    """Text that starts a sentence: only the article gets a capital, names are kept as they are."""
    return f"The{text[3:]}" if text.startswith("the ") else f"In{text[2:]}" if text.startswith("in ") else text


def sentences(*parts: str) -> str:
    """The non-empty parts as one paragraph."""
    return " ".join(opening(part) for part in parts if part)


def loss_text(value: float) -> str:
    """A loss with three decimals, or three digits where it is large."""
    return f"{value:.3f}" if abs(value) < 100 else format_number(value)


def rounded_gap(low: float, high: float) -> float:
    """The difference of two losses as a reader would compute it from their three decimals."""
    return round(high, 3) - round(low, 3)


def gap_text(low: float, high: float) -> str:
    """The difference of two losses in words; never zero for losses that differ."""
    gap = loss_text(rounded_gap(low, high))
    return "less than 0.001" if gap == "0.000" and high != low else gap


def times(ratio: float) -> str:
    """A ratio in words."""
    return f"{format_number(ratio)} times"


def about(ratio: float) -> str:
    """A ratio to two digits, for a headline."""
    return (
        format_number(ratio, digits=2) if ratio < 100 or not math.isfinite(ratio) else f"{float(f'{ratio:.2g}'):,.0f}"
    )


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{format_number(100 * share)} %"


def rate_range(rates: Sequence[float]) -> str:
    """Learning rates from the lowest to the highest."""
    ends = dict.fromkeys((min(rates), max(rates)))
    return " to ".join(f"{rate:g}" for rate in ends)
