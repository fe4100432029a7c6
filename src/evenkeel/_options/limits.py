"""From where on a difference between two data sets counts as drift."""

from __future__ import annotations

from dataclasses import dataclass

from evenkeel._options.numbers import check_number


@dataclass(frozen=True, kw_only=True)
class DriftLimits:
    """From where on a difference counts as drift; an infinite limit is never exceeded.

    Attributes:
        shift: of the mean, in standard deviations of the reference.
        spread: ratio of the standard deviations, either way.
        outside: how far values leave the range seen, as a share of that range.
        missing: difference of the shares of missing values.
        psi: population stability index over the reference's tenths (0.1 is customarily a small change, 0.25 a large).

    Raises:
        InvalidArgumentError: a limit is negative or NaN, a ratio below 1, or a difference of shares above 1.

    Example:
        >>> from evenkeel.data import DriftLimits
        >>> DriftLimits(shift=0.25).psi
        0.2
    """

    shift: float = 0.5
    spread: float = 2.0
    outside: float = 0.5
    missing: float = 0.05
    psi: float = 0.2

    def __post_init__(self) -> None:
        for name in ("shift", "outside", "psi"):
            check_number(f"the limit {name}", getattr(self, name), least=0)
        check_number("the limit spread", self.spread, least=1, hint="it is the larger deviation over the smaller")
        check_number("the limit missing", self.missing, least=0, most=1, hint="divide percentages by 100")
