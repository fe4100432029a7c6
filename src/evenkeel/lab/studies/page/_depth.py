"""The figures of a study that look inside the network: by block, by layer and around a norm."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenkeel.lab.studies.page._arms import Arm, Curve, finite
from evenkeel.lab.studies.page._outcome import seeds_sentence
from evenkeel.lab.studies.page._probed import Stage, block_gradients, by_layer, growth_of, stages, unevenness
from evenkeel.lab.studies.page._words import opening, percent, sentences, spoken, times
from evenkeel.report import (
    MUTED,
    Axis,
    Figure,
    Histogram,
    Panel,
    Series,
    Style,
    format_number,
    histograms,
    join_words,
    lines,
)

BLOCK = Axis("block (1 is next to the embedding)", integer=True)
LAYER = Axis("blocks passed (0 is after the embedding)", integer=True)
# The mean of a centred float32 vector is rounding noise: shares of 1e-15 say nothing and would fill the axis.
SHARE_FLOOR = 1e-6
# Ratios within 5 % of 1 are called equal: a reader cannot see less on the page.
EVEN = 1.05

Styles = Mapping[str, Style]
Rows = Sequence[Mapping[str, Any]]
Moments = list[tuple[Stage, list[Series]]]


def gradient_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Gradient norm of each block at the first probe."""
    first = next(iter(stages(arms, "gradients")), None)
    series = first.curves(arms, block_gradients) if first else []
    measured = [curve for curve in series if any(map(finite, curve.y))]
    if first is None or not measured:
        return None
    extremes = unevenness(measured)
    zeros = [spoken(curve.name) for curve in measured if 0 in curve.y]
    hidden = f"Exactly zero gradients, which a logarithmic axis cannot show, occur in {join_words(zeros)}."
    caption = sentences(
        "Attention and feed-forward weights of a block together.",
        _evenness(extremes),
        hidden if zeros else "",
        first.absent(arms),
        seeds_sentence(arms),
    )
    panel = lines(series, x=BLOCK, y=Axis("gradient norm", log=True), styles=styles)
    return Figure(name="gradients", title=_gradient_title(extremes, first), caption=caption, panels=[panel])


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


def histogram_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Values before and after a norm, for each kind of norm the one with the widest input."""
    last = next(reversed(stages(arms, "histograms")), None)
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
        place = f"{arm.name}, {row['norm']}"
        spreads.append((width, after.spread()[1], place))
        colours = {"before": MUTED, "after": styles[arm.name]}
        panels.append(histograms([before, after], x=Axis("value"), styles=colours, heading=place))
    title, caption = _histogram_text(spreads, last)
    return Figure(name="distribution", title=title, caption=caption, panels=panels)


def update_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Size of an update relative to its weights, by parameter group."""
    last = next(reversed(stages(arms, "updates")), None)
    rows = [(row, arm) for arm in arms for run in arm.typical_runs for row in last.rows(run)] if last else []
    ratios = [(row["ratio"], f"{_group_text(row)} in {arm.name}") for row, arm in rows if finite(row.get("ratio"))]
    if last is None or not ratios:
        return None
    (low, lowest), (high, highest) = min(ratios), max(ratios)
    smallest = f"The smallest ratio is {format_number(low)} ({lowest})."
    outside = list(dict.fromkeys(row["group"] for row, _ in rows if row.get("block") is None))
    return Figure(
        name="updates",
        title=f"Updates {last.heading} are at most {format_number(high)} of the weights they change ({highest})",
        caption=sentences(smallest, last.absent(arms), seeds_sentence(arms)),
        panels=_update_panels(arms, styles, last, outside),
    )


def _update_panels(arms: Sequence[Arm], styles: Styles, last: Stage, outside: Sequence[str]) -> list[Panel]:
    """A panel for each kind of parameter group in the blocks, and one for the groups outside them."""
    axis, panels = Axis("|update| / |weight|"), []
    for heading, suffix in (("Attention", ".attention"), ("Feed-forward", ".feed_forward"), ("Norms", ".norm")):
        series = last.curves(arms, functools.partial(_block_updates, suffix=suffix))
        if any(curve.x for curve in series):
            panels.append(lines(series, x=BLOCK, y=axis, styles=styles, heading=heading))
    if outside:
        names = Axis("parameter group", ticks=[group.replace("_", " ") for group in outside])
        series = last.curves(arms, functools.partial(_outside_updates, groups=outside))
        panels.append(lines(series, x=names, y=axis, styles=styles, heading="Outside the blocks"))
    return panels


def _gradient_title(extremes: Mapping[str, tuple[float, float, float]], first: Stage) -> str:
    if not extremes:
        return f"Gradient norm by block, {first.heading}"
    name = max(extremes, key=lambda key: extremes[key][0])
    ratio, high, low = extremes[name]
    if ratio < EVEN:
        return f"The gradient is nearly even across blocks in every arm, {first.heading}"
    uneven = f"{spoken(name)} has the most uneven gradient {first.heading}"
    return opening(f"{uneven}: block {high}'s is {times(ratio)} block {low}'s")


def _evenness(extremes: Mapping[str, tuple[float, float, float]]) -> str:
    if len(extremes) < 2:
        return ""
    name = min(extremes, key=lambda key: extremes[key][0])
    ratio, high, low = extremes[name]
    return f"The most even is {spoken(name)}, where block {high}'s gradient is {times(ratio)} block {low}'s."


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
    caption = "Each panel is the norm with the widest input among the arms with that kind of norm."
    if len(spreads) > 1:
        inputs, outputs = [item[0] for item in spreads], [item[1] for item in spreads]
        caption += (
            f" Over the panels the standard deviation before lies between {format_number(min(inputs))} and "
            f"{format_number(max(inputs))}, after between {format_number(min(outputs))} and "
            f"{format_number(max(outputs))}."
        )
    return title, caption


def _group_text(row: Mapping[str, Any]) -> str:
    """A parameter group in words, with blocks counted from 1 as on the axes."""
    name = str(row["group"]).rpartition(".")[2].replace("_", " ")
    return name if row.get("block") is None else f"{name} of block {row['block'] + 1}"


def _block_updates(rows: Rows, suffix: str) -> Curve:
    return {r["block"] + 1: r.get("ratio") for r in rows if r.get("block") is not None and r["group"].endswith(suffix)}


def _outside_updates(rows: Rows, groups: Sequence[str]) -> Curve:
    return {groups.index(row["group"]): row.get("ratio") for row in rows if row.get("block") is None}
