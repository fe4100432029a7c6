"""What the final losses of a study say: who learns at which rates, who ends lowest, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel.lab.studies.page._arms import Arm, mean, named, ranked
from evenkeel.lab.studies.page._words import Text, gap_text, loss_text, opening
from evenkeel.lab.training import t95
from evenkeel.report import join_words

LEARNED = 0.1  # of the best arm's gain over frequencies alone


@dataclass(frozen=True)
class Noise:
    """How far the losses of one arm's seeds lie apart, pooled over arms."""

    deviation: float
    degrees: int

    def threshold(self, one: Arm, other: Arm) -> float:
        """The difference of two means that chance exceeds in 5 % of cases; infinite where nothing was repeated."""
        counts = len(one.final_losses), len(other.final_losses)
        if not self.degrees:
            return math.inf
        return t95(self.degrees) * self.deviation * math.sqrt(sum(1 / count for count in counts))

    def level(self, one: Arm, other: Arm) -> bool:
        """Whether no difference is seen between two arms."""
        return abs(one.loss - other.loss) <= self.threshold(one, other)


def noise_of(order: Sequence[Arm]) -> Noise:
    """The noise between seeds, from the arms that have several finished ones and end within twice the best loss."""
    groups = [arm.final_losses for arm in order if len(arm.final_losses) > 1 and arm.loss <= 2 * order[0].loss]
    squares = math.fsum((loss - mean(group)) ** 2 for group in groups for loss in group)
    degrees = sum(len(group) - 1 for group in groups)
    return Noise(math.sqrt(squares / degrees) if degrees else math.nan, degrees)


def front(order: Sequence[Arm]) -> list[Arm]:
    """The best arm and those that differ from it by no more than noise, or read the same in three decimals."""
    noise = noise_of(order)
    best = order[0]
    same = [loss_text(arm.loss) == loss_text(best.loss) for arm in order]
    measured = noise.degrees > 0
    return [arm for arm, equal in zip(order, same, strict=True) if equal or (measured and noise.level(best, arm))]


def loss_title(arms: Sequence[Arm], text: Text) -> str:
    """Which arm ends lowest, or why none does."""
    order = ranked(arms)
    if not order:
        diverged = all(arm.broken for arm in arms)
        return (
            "Every arm diverged before the end of training"
            if diverged
            else "No arm has finished with a comparable loss"
        )
    names, loss = front(order), text.loss(order[0].loss)
    if len(order) == 1:
        return opening(f"{names[0].spoken} ends at a validation loss of {loss}")
    if len(names) > 1:
        return opening(f"no difference seen between {named(names)}, which end lowest").replace("no", "No", 1)
    return opening(f"{names[0].spoken} ends at the lowest validation loss, {loss}")


def verdict(arms: Sequence[Arm]) -> str:
    """What the final losses can and cannot tell apart, from the seeds that were run."""
    order = ranked(arms)
    if len(order) < 2:
        return "There are not two finished arms whose losses can be compared." if len(arms) > 1 else ""
    survivors = [arm for arm in order[:2] if arm.with_status("diverged")]
    if survivors:
        counts = [f"{len(arm.final_losses)} of {len(arm.runs)} seeds of {arm.spoken}" for arm in survivors]
        return f"Only {join_words(counts)} finished, the others diverged: a mean over survivors flatters an arm."
    noise = noise_of(order)
    if not noise.degrees:
        return (
            "One seed an arm gives no uncertainty: differences smaller than the spread between seeds, "
            "which was not measured, cannot be judged."
        )
    first, *others = front(order)
    spread = f"Seeds of one arm differ by a standard deviation of {loss_text(noise.deviation)}"
    if others:
        gap = gap_text(first.loss, others[-1].loss)
        return f"{spread}, so the {gap} between {first.spoken} and {others[-1].spoken} is no difference seen."
    needed, gap = noise.threshold(first, order[1]), gap_text(first.loss, order[1].loss)
    return f"{spread}: the {gap} to {order[1].spoken} is more than the {loss_text(needed)} that chance explains."


def learning_bar(best: Sequence[Arm], baseline: float | None) -> float:
    """The loss below which a run has learned: a tenth of the way from frequencies alone to the best arm.

    A model that gives the frequencies and nothing else ends a hundredth below or above their loss.
    """
    if baseline is None:
        return math.inf
    lowest = min((arm.loss for arm in ranked(best)), default=baseline)
    return baseline - LEARNED * max(0.0, baseline - lowest)


def training_rates(arm: Arm, bar: float) -> list[float]:
    """The learning rates at which every run of an arm finished below the bar."""
    cells = {rate: arm.at(rate) for rate in arm.rates}
    return [rate for rate, cell in cells.items() if cell.complete and max(cell.final_losses) < bar]


def fate_sentence(arms: Sequence[Arm]) -> str:
    """Which arms did not finish."""
    parts = [_fate_of(arm) for arm in arms if arm.fate()]
    return f"{join_words(parts)}." if parts else ""


def _fate_of(arm: Arm) -> str:
    fate = arm.fate()
    if fate.startswith("unfinished: "):
        return f"{arm.spoken} has not finished ({fate.removeprefix('unfinished: ')})"
    return f"{arm.spoken} {fate}" if fate.startswith("diverged") else f"in {arm.spoken} {fate}"


def seeds_sentence(arms: Sequence[Arm]) -> str:
    """What a line and a band stand for, where there are several seeds."""
    counts = sorted({len(arm.typical_runs) for arm in arms})
    if counts[-1:] == [1] or not counts:
        return ""
    return f"Lines are means over {' to '.join(map(str, counts))} seeds, bands their range."


def leak_sentence(arms: Sequence[Arm]) -> str:
    """The warning that belongs with the loss of every arm whose norm shares statistics over a causal sequence."""
    leaking = [arm for arm in arms if arm.leaks]
    if not leaking:
        return ""
    possessive = "its loss is" if len(leaking) == 1 else "their losses are"
    return (
        f"{named(leaking)}: BatchNorm in a causal model leaks information across positions and examples, "
        f"so {possessive} not comparable with the others."
    )
