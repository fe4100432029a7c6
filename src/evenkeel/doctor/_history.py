"""What is kept of the measured steps of a training: the steps and the readings of rules by step, in bounded memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenkeel.doctor.probes import Curve
from evenkeel.doctor.rules import worst_readings

if TYPE_CHECKING:
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
        """The readings by rule, where there are two and more."""
        found = []
        for rule in dict.fromkeys(rule for readings in self._readings for rule in readings):
            pairs = [(s.step, r[rule]) for s, r in zip(self.steps, self._readings, strict=True) if rule in r]
            pairs = [(step, value) for step, value in pairs if math.isfinite(value)]
            if len(pairs) > 1:
                found.append(Curve(rule=rule, steps=tuple(s for s, _ in pairs), values=tuple(v for _, v in pairs)))
        return tuple(found)
