"""What the final losses of a study say: who ends lowest, who cannot be compared, how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel.lab.studies.page._arms import Arm, named, ranked
from evenkeel.lab.studies.page._words import loss_text, opening
from evenkeel.report import join_words


def lowest(order: Sequence[Arm]) -> list[str]:
    """The best arm and those whose loss reads the same in the three decimals shown, by name."""
    return [arm.spoken for arm in order if loss_text(arm.loss) == loss_text(order[0].loss)]


def loss_title(arms: Sequence[Arm]) -> str:
    """Which arm ends lowest, or why none does."""
    order = ranked(arms)
    if not order:
        diverged = all(arm.broken for arm in arms)
        return (
            "Every arm diverged before the end of training"
            if diverged
            else "No arm has finished with a comparable loss"
        )
    loss, names = f"{loss_text(order[0].loss)} nats per byte", lowest(order)
    if len(order) == 1:
        return opening(f"{names[0]} ends at a validation loss of {loss}")
    return opening(f"{join_words(names)} {'ends' if len(names) == 1 else 'end'} at the lowest validation loss, {loss}")


def verdict(arms: Sequence[Arm]) -> str:
    """What the final losses can and cannot tell apart, from the seeds that were run."""
    order = ranked(arms)
    if len(order) < 2:
        return "There are not two finished arms whose losses can be compared." if len(arms) > 1 else ""
    best, second = order[:2]
    survivors = [arm for arm in (best, second) if arm.with_status("diverged")]
    if survivors:
        counts = [f"{len(arm.final_losses)} of {len(arm.runs)} seeds of {arm.spoken}" for arm in survivors]
        return f"Only {join_words(counts)} finished, the others diverged: a mean over survivors flatters an arm."
    if min(len(best.final_losses), len(second.final_losses)) < 2:
        return (
            "One seed an arm gives no uncertainty: differences smaller than the spread between seeds, "
            "which was not measured, cannot be judged."
        )
    ranges = f"The ranges of {best.spoken} and {second.spoken} over seeds"
    if max(best.final_losses) < min(second.final_losses):
        return f"{ranges} do not overlap."
    return f"{ranges} overlap, so these runs do not tell the two apart."


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
