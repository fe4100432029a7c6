"""The picture that the page of a study opens with: loss by learning rate, gradients by layer, the stream by depth."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from evenkeel.lab.studies.page._arms import Arm, all_rates, finite, over_seeds, without_twins
from evenkeel.lab.studies.page._loss import STEP, loss_axis, validation_curve
from evenkeel.lab.studies.page._outcome import leak_sentence
from evenkeel.lab.studies.page._probed import block_gradients, by_layer, growth_of, stages
from evenkeel.lab.studies.page._words import Text, about, loss_text, rate_range, sentences
from evenkeel.report import Axis, Figure, Panel, Series, Style, lines

BLOCK = Axis("block (1 is next to the embedding)", integer=True)
LAYER = Axis("blocks passed", integer=True)

Styles = Mapping[str, Style]


def opening_picture(arms: Sequence[Arm], styles: Styles, text: Text, message: str) -> Figure | None:
    """The small multiples that carry the message of a study, or None where nothing was measured."""
    best = [arm.best for arm in arms]
    rates = all_rates(arms)
    first = rate_panel(arms, styles, text) if len(rates) > 1 else curve_panel(best, styles, text)
    inner = without_twins(best)
    panels = [panel for panel in (first, gradient_panel(inner, styles), stream_panel(inner, styles)) if panel]
    if first is None:
        return None
    marks = "Crosses are diverged trainings, arrows losses beyond the axis." if len(rates) > 1 else ""
    several = len({run.get("seed") for arm in arms for run in arm.runs}) > 1
    seeds = "Lines are means over seeds, bands their range." if several else ""
    return Figure(name="map", title=message, caption=sentences(marks, seeds, leak_sentence(arms)), panels=panels)


def rate_panel(arms: Sequence[Arm], styles: Styles, text: Text) -> Panel | None:
    """Final validation loss by learning rate, diverged trainings as crosses."""
    series = [rate_series(arm) for arm in arms]
    comparable = [arm.best.loss for arm in arms if arm.best.final_losses and not arm.leaks]
    if not any(curve.x for curve in series):
        return None
    x = Axis("highest learning rate", log=True, at=all_rates(arms))
    rates = rate_range(all_rates(arms))
    heading = f"Final validation loss at learning rates from {rates}"
    return lines(series, x=x, y=loss_axis(text, comparable), styles=styles, heading=heading)


def rate_series(arm: Arm) -> Series:
    """An arm's mean final loss by rate, with the range over seeds, and the rates at which a seed diverged."""
    cells = {rate: arm.at(rate) for rate in arm.rates}
    finished = {rate: cell for rate, cell in cells.items() if cell.final_losses and not cell.with_status("diverged")}
    lost = [rate for rate, cell in cells.items() if cell.with_status("diverged")]
    notes = [f"ends at {loss_text(min(cell.loss for cell in finished.values()))}"] if arm.plain and finished else []
    notes += [f"diverges at {rate_range(lost)}"] if lost else []
    return Series(
        arm.name,
        list(finished),
        [cell.loss for cell in finished.values()],
        low=[min(cell.final_losses) for cell in finished.values()],
        high=[max(cell.final_losses) for cell in finished.values()],
        note="; ".join([*notes, *(["leaks"] if arm.leaks else [])]),
        lost=lost,
    )


def curve_panel(best: Sequence[Arm], styles: Styles, text: Text) -> Panel | None:
    """Validation loss by step, where there is one learning rate."""
    series = [over_seeds(arm, validation_curve, remarks=True) for arm in best]
    losses = [value for curve in series for value in curve.y if finite(value)]
    if not losses:
        return None
    return lines(series, x=STEP, y=loss_axis(text, losses), styles=styles, heading=f"Validation loss ({text.nats})")


def gradient_panel(arms: Sequence[Arm], styles: Styles) -> Panel | None:
    """Gradient norm by block before training."""
    first = next(iter(stages(arms, "gradients")), None)
    series = first.curves(arms, block_gradients) if first and not first.step else []
    if not any(map(finite, (value for curve in series for value in curve.y))):
        return None
    ratio = gradient_ratio(arms)
    heading = "Gradient by block before training"
    if ratio is not None:
        heading = f"{heading}: {about(ratio)} times larger without norm"
    return lines(series, x=BLOCK, y=Axis("gradient norm", log=True), styles=styles, heading=heading)


def stream_panel(arms: Sequence[Arm], styles: Styles) -> Panel | None:
    """RMS of the residual stream by depth before training."""
    growth = stream_growth(arms)
    if not growth:
        return None
    first = next(iter(stages(arms, "residual")))
    series = first.curves(arms, functools.partial(by_layer, key="rms"))
    heading = "Residual stream before training"
    if (plain := growth_without_norm(arms)) is not None:
        heading += f": grows {about(plain)}-fold without norm" if plain > 1 else ""
    return lines(series, x=LAYER, y=Axis("RMS of the stream", log=True), styles=styles, heading=heading)


def total_gradients(arms: Sequence[Arm]) -> dict[str, float]:
    """Gradient norm over all blocks before training, by arm."""
    first = next(iter(stages(arms, "gradients")), None)
    if first is None or first.step:
        return {}
    curves = first.curves(arms, block_gradients)
    sizes = {curve.name: math.hypot(*(value for value in curve.y if finite(value))) for curve in curves}
    return {name: size for name, size in sizes.items() if size > 0}


def gradient_ratio(arms: Sequence[Arm]) -> float | None:
    """How many times the gradient without norm is that of the comparable arm with norm whose gradient is largest."""
    sizes = total_gradients(arms)
    plain = [sizes[arm.name] for arm in arms if arm.plain and arm.name in sizes]
    normed = [sizes[arm.name] for arm in arms if not arm.plain and not arm.leaks and arm.name in sizes]
    return plain[0] / max(normed) if plain and normed else None


def stream_growth(arms: Sequence[Arm]) -> dict[str, float]:
    """RMS of the stream after the last block over that after the embedding, before training, by arm."""
    first = next(iter(stages(arms, "residual")), None)
    if first is None or first.step:
        return {}
    return growth_of(first.curves(arms, functools.partial(by_layer, key="rms")))


def growth_without_norm(arms: Sequence[Arm]) -> float | None:
    """How the stream of the arm without norm grows before training."""
    growth = stream_growth(arms)
    return next((growth[arm.name] for arm in arms if arm.plain and arm.name in growth), None)
