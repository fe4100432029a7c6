"""The figures of a study that look inside the network: by block, at every norm and around one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenkeel.lab.studies.page._arms import Arm, finite
from evenkeel.lab.studies.page._outcome import seeds_sentence
from evenkeel.lab.studies.page._probed import Stage, around_norms, by_layer, growth_of, stages
from evenkeel.lab.studies.page._words import opening, percent, sentences, spoken, times
from evenkeel.report import MUTED, Axis, Figure, Histogram, Series, Style, format_number, histograms, join_words, lines

LAYER = Axis("blocks passed (0 is after the embedding)", integer=True)
NORM = Axis("norm, in the order of the forward pass", integer=True)
# The mean of a centred float32 vector is rounding noise: shares of 1e-15 say nothing and would fill the axis.
SHARE_FLOOR = 1e-6
# Ratios within 5 % of 1 are called equal: a reader cannot see less on the page.
EVEN = 1.05

Styles = Mapping[str, Style]
Moments = list[tuple[Stage, list[Series]]]


def residual_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """RMS of the residual stream by depth, at the first and the last probe."""
    return _by_depth(arms, styles, "rms", Axis("RMS of the residual stream"), "residual", _residual_text)


def centring_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Share of the residual stream's mean square that its mean makes up, by depth."""
    axis = Axis("mean² / RMS²", floor=SHARE_FLOOR)
    return _by_depth(arms, styles, "mean2_over_rms2", axis, "centring", _centring_text)


def _by_depth(
    arms: Sequence[Arm],
    styles: Styles,
    key: str,
    axis: Axis,
    name: str,
    text: Callable[[Moments], tuple[str, str]],
) -> Figure | None:
    """A measurement of the residual stream by layer, one panel a moment, on one scale."""
    every = [(stage, stage.curves(arms, functools.partial(by_layer, key=key))) for stage in stages(arms, "residual")]
    moments = [(stage, series) for stage, series in every if any(finite(y) for curve in series for y in curve.y)]
    if not moments:
        return None
    # One scale for both moments, so that growth during training is seen too.
    values = [y for _, series in moments for curve in series for y in (*curve.y, *(curve.high or ())) if finite(y)]
    shared = dataclasses.replace(axis, include=values)
    panels = [
        lines(series, x=LAYER, y=shared, styles=styles, heading=stage.heading.capitalize()) for stage, series in moments
    ]
    title, caption = text(moments)
    gaps = [stage.absent(arms) for stage, _ in moments]
    return Figure(name=name, title=title, caption=sentences(caption, *gaps, seeds_sentence(arms)), panels=panels)


def norms_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """The size of the values before and after every norm."""
    last = next(reversed(stages(arms, "norms")), None)
    normed = [arm for arm in arms if not arm.plain]
    if last is None or not normed:
        return None
    panels, spans = [], []
    for key, heading in (("before", "Before the norms"), ("after", "After the norms")):
        series = last.curves(normed, functools.partial(around_norms, key=key))
        values = [value for curve in series for value in curve.y if finite(value)]
        if not values:
            return None
        spans.append((min(values), max(values)))
        panels.append(lines(series, x=NORM, y=Axis("RMS of the values", log=True), styles=styles, heading=heading))
    before, after = (f"{format_number(low)} to {format_number(high)}" for low, high in spans)
    caption = sentences("Every norm of every arm is shown.", last.absent(normed), seeds_sentence(normed))
    title = f"Norms bring values of RMS {before} to {after} ({last.heading})"
    return Figure(name="around-norms", title=title, caption=caption, panels=panels)


def histogram_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Values before and after a norm, for each kind of norm the one with the widest input."""
    last = next(reversed(stages(arms, "widest")), None)
    if last is None:
        return None
    widest: dict[str, tuple[float, Arm, Mapping[str, Any]]] = {}
    for arm in arms:
        run = arm.typical_runs[0]
        for row in last.rows(run):
            width, kind = _histogram("before", row).spread()[1], str(run.get("norm"))
            if math.isfinite(width) and (kind not in widest or width > widest[kind][0]):
                widest[kind] = (width, arm, row)
    if not widest:
        return None
    panels, spreads = [], []
    for width, arm, row in widest.values():
        before, after = (_histogram(which, row) for which in ("before", "after"))
        place = f"{arm.name}, {_norm_text(row)}"
        spreads.append((width, after.spread()[1], place))
        colours = {"before": MUTED, "after": styles[arm.name]}
        panels.append(histograms([before, after], x=Axis("value"), styles=colours, heading=place))
    title, caption = _histogram_text(spreads, last)
    return Figure(name="distribution", title=title, caption=caption, panels=panels)


def _norm_text(row: Mapping[str, Any]) -> str:
    """A norm in words, with blocks counted from 1 as on the axes."""
    if row.get("block") is None:
        return "final norm"
    which = str(row["norm"]).partition(".")[2].partition(".")[2].replace("_", " ").replace(".", ", ")
    return f"block {row['block'] + 1}, {which}"


def _residual_text(moments: Moments) -> tuple[str, str]:
    growth = [(stage, ratios) for stage, series in moments if (ratios := growth_of(series))]
    if not growth:
        return "Size of the residual stream by depth", ""
    stage, ratios = growth[-1]
    name = max(ratios, key=lambda key: abs(math.log(ratios[key])) if ratios[key] > 0 else math.inf)
    change = f"{spoken(name)} changes the RMS of the residual stream most, to {times(ratios[name])} what enters block 1"
    title = opening(f"{change}, {stage.heading}")
    if all(1 / EVEN < ratio < EVEN for ratio in ratios.values()):
        title = f"The residual stream keeps its RMS through the blocks of every arm, {stage.heading}"
    parts = [f"{stage.heading} the ratio {_range_text(ratios)}" for stage, ratios in growth]
    return title, f"RMS after the last block over RMS after the embedding: {'; '.join(parts)}."


def _range_text(ratios: Mapping[str, float]) -> str:
    low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    smallest, largest = format_number(ratios[low]), format_number(ratios[high])
    if smallest == largest:
        return f"is {smallest} in {join_words([spoken(name) for name in ratios])}"
    return f"ranges from {smallest} ({low}) to {largest} ({high})"


def _centring_text(moments: Moments) -> tuple[str, str]:
    stage, series = moments[-1]
    shares = [
        (share, curve.name, int(layer))
        for curve in series
        for layer, share in zip(curve.x, curve.high or curve.y, strict=True)
        if finite(share)
    ]
    if not shares:
        return "What centring would remove, by depth", ""
    value, name, layer = max(shares)
    place = f"({name}, after block {layer})" if layer else f"({name}, after the embedding)"
    title = f"The mean carries at most {percent(value)} of the residual stream's power, {stage.heading} {place}"
    ordered = sorted(share for share, _, _ in shares)
    middle = percent(ordered[len(ordered) // 2])
    caption = (
        "This is the part that LayerNorm's centring removes and RMSNorm keeps. "
        f"{stage.heading.capitalize()} half of the arms' layers are at {middle} or less."
    )
    if any(finite(share) and share < SHARE_FLOOR for _, series in moments for curve in series for share in curve.y):
        caption += f" Shares below {SHARE_FLOOR:g} are drawn at that value."
    return title, caption


def _histogram(which: str, row: Mapping[str, Any]) -> Histogram:
    return Histogram(which, row[which]["edges"], row[which]["counts"])


def _histogram_text(spreads: Sequence[tuple[float, float, str]], stage: Stage) -> tuple[str, str]:
    before, after, place = max(spreads)
    title = (
        f"The widest input of a norm has standard deviation {format_number(before)}, its output {format_number(after)} "
        f"({place}; {stage.heading})"
    )
    caption = "For each kind of norm, the one with the widest input of all arms is shown."
    if len(spreads) > 1:
        inputs, outputs = [item[0] for item in spreads], [item[1] for item in spreads]
        caption += (
            f" Over the panels the standard deviation before lies between {format_number(min(inputs))} and "
            f"{format_number(max(inputs))}, after between {format_number(min(outputs))} and "
            f"{format_number(max(outputs))}."
        )
    return title, caption
