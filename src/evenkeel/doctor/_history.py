"""What is kept of the measured steps of a training: the steps and the readings of rules by step, in bounded memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenkeel.doctor.probes import Curve
from evenkeel.doctor.rules import RULES, worst_readings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from evenkeel.doctor.probes import Measurements, Step

__all__ = ["History"]

MOST = 512  # steps: of more, every second one is left out


class History:
    """The measured steps of a training, and what each rule that reads single steps said at each."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._readings: list[dict[str, float]] = []

    def add(self, measured: Measurements) -> None:
        """Keep the last step of some measurements, and the rules' readings of them."""
        self.steps.append(measured.steps[-1])
        self._readings.append(worst_readings(measured))
        if len(self.steps) > MOST:  # an odd number: the first and the last stay
            self.steps, self._readings = self.steps[::2], self._readings[::2]

    def curves(self) -> tuple[Curve, ...]:
        """The readings by rule, and the steps that weights of 16 bits are asked for, where there are two and more."""
        requested = ((s.step, min(s.half_ulps.values())) for s in self.steps if s.half_ulps)
        found = [curve("gamma-frozen", "largest step in parts of half an ulp", 1.0, requested, above=False)]
        for rule in RULES:
            read = zip(self.steps, self._readings, strict=True)
            pairs = ((s.step, r[rule.id]) for s, r in read if rule.id in r)
            found.append(curve(rule.id, rule.quantity, rule.threshold, pairs, above=rule.above))
        return tuple(curve for curve in found if len(curve.steps) > 1)


def curve(rule: str, quantity: str, threshold: float, pairs: Iterable[tuple[int, float]], *, above: bool) -> Curve:
    """A curve through the finite values of pairs of a step and a value."""
    finite = [(step, value) for step, value in pairs if math.isfinite(value)]
    return Curve(
        rule=rule,
        quantity=quantity,
        threshold=threshold,
        above=above,
        steps=tuple(step for step, _ in finite),
        values=tuple(value for _, value in finite),
    )
