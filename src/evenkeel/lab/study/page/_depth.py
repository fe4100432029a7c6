"""The figures of a study that look inside the network: by block, by layer and around a norm."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenkeel.lab.study.page._arms import (
    Arm,
    Probe,
    Stage,
    by_layer,
    finite,
    opening,
    over_seeds,
    percent,
    seeds_sentence,
    sentences,
    spoken,
    stages,
    times,
)
from evenkeel.report import MUTED, Axis, Figure, Histogram, Series, Style, format_number, histograms, lines
from evenkeel.report import join_words as join

BLOCK = Axis("block (1 is next to the embedding)", integer=True)
LAYER = Axis("blocks passed (0 is after the embedding)", integer=True)
# The mean of a centred float32 vector is rounding noise: shares of 1e-15 say nothing and would fill the axis.
SHARE_FLOOR = 1e-6
# Ratios within 5 % of 1 are called equal: a reader cannot see less on the page.
EVEN = 1.05

Styles = Mapping[str, Style]


def gradient_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Gradient norm of each block at the first probe."""
    moments = stages(arms, "gradients")
    if not moments:
        return None
    first = moments[0]
    series = _curves(arms, first, block_gradients)
    measured = [item for item in series if any(finite(value) for value in item.y)]
    if not measured:
        return None
    axis = Axis("gradient norm", log=True)
    panel = lines(series, x=BLOCK, y=axis, styles=styles)
    extremes = {item.name: found for item in measured if (found := extremes_of(item))}
    caption = sentences(
        "Attention and feed-forward weights of a block together.",
        _evenness(extremes),
        _zero_gradients(measured),
        first.absent(arms),
        seeds_sentence(arms),
    )
    return Figure(name="gradients", title=_gradient_title(extremes, first), caption=caption, panels=[panel])


def block_gradients(probe: Probe | None) -> dict[float, float | None]:
    """Root of the summed squares of a block's attention and feed-forward gradient norms, by block counted from 1."""
    squares: dict[float, float | None] = {}
    for row in (probe or {}).get("gradients", ()):
        if row.get("block") is None or not str(row["group"]).endswith((".attention", ".feed_forward")):
            continue
        block, norm = row["block"] + 1, row.get("norm")
        before = squares.get(block, 0.0)
        squares[block] = before + norm**2 if before is not None and finite(norm) else None
    return {block: None if square is None else math.sqrt(square) for block, square in squares.items()}


def residual_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """RMS of the residual stream by depth, at the first and the last probe."""
    return _by_depth(arms, styles, "rms", Axis("RMS of the residual stream"), "residual", _residual_text)


def centring_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Share of the residual stream's mean square that its mean makes up, by depth."""
    axis = Axis("mean² / RMS²", floor=SHARE_FLOOR)
    return _by_depth(arms, styles, "mean2_over_rms2", axis, "centring", _centring_text)


def histogram_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Values before and after a norm, for each kind of norm the one with the widest input."""
    moments = stages(arms, "histograms")
    widest: dict[str, tuple[float, Arm, Mapping[str, Any]]] = {}
    for arm in arms if moments else ():
        for record in (moments[-1].pick(arm.shown[0]) or {}).get("histograms", ()):
            width = _histogram("before", record).spread()[1]
            kind = str(arm.shown[0].get("norm"))
            if math.isfinite(width) and (kind not in widest or width > widest[kind][0]):
                widest[kind] = (width, arm, record)
    if not widest:
        return None
    panels, spreads = [], []
    for width, arm, record in widest.values():
        pair = [_histogram("before", record), _histogram("after", record)]
        after = pair[1].spread()[1]
        spreads.append((width, after, f"{arm.name}, {record['norm']}"))
        panels.append(
            histograms(
                pair, x=Axis("value"), styles={"before": MUTED, "after": styles[arm.name]}, heading=spreads[-1][2]
            )
        )
    title, caption = _histogram_text(spreads, moments[-1])
    return Figure(name="distribution", title=title, caption=caption, panels=panels)


def update_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Size of an update relative to its weights, by parameter group."""
    moments = stages(arms, "updates")
    if not moments:
        return None
    last = moments[-1]
    axis = Axis("|update| / |weight|")
    panels = []
    for heading, suffix in (("Attention", ".attention"), ("Feed-forward", ".feed_forward"), ("Norms", ".norm")):
        series = _curves(arms, last, functools.partial(_block_updates, suffix=suffix))
        if any(item.x for item in series):
            panels.append(lines(series, x=BLOCK, y=axis, styles=styles, heading=heading))
    outside = list(dict.fromkeys(row["group"] for arm in arms for run in arm.shown for row in _outside(last.pick(run))))
    if outside:
        names = Axis("parameter group", ticks=[group.replace("_", " ") for group in outside])
        series = _curves(arms, last, functools.partial(_outside_updates, groups=outside))
        panels.append(lines(series, x=names, y=axis, styles=styles, heading="Outside the blocks"))
    ratios = [
        (row["ratio"], f"{_group_text(row)} in {arm.name}")
        for arm in arms
        for run in arm.shown
        for row in (last.pick(run) or {}).get("updates", ())
        if finite(row.get("ratio"))
    ]
    if not ratios:
        return None
    (low, lowest), (high, highest) = min(ratios), max(ratios)
    title = f"Updates {last.heading} are at most {format_number(high)} of the weights they change ({highest})"
    smallest = f"The smallest ratio is {format_number(low)} ({lowest})."
    caption = sentences(smallest, last.absent(arms), seeds_sentence(arms))
    return Figure(name="updates", title=title, caption=caption, panels=panels)


def _curves(
    arms: Sequence[Arm], stage: Stage, measure: Callable[[Probe | None], Mapping[float, float | None]]
) -> list[Series]:
    """One curve an arm of a measurement that a probe at this moment holds."""
    return [over_seeds(arm, lambda run: measure(stage.pick(run))) for arm in arms]


def _by_depth(
    arms: Sequence[Arm],
    styles: Styles,
    key: str,
    axis: Axis,
    name: str,
    text: Callable[[list[tuple[Stage, list[Series]]]], tuple[str, str]],
) -> Figure | None:
    """A measurement of the residual stream by layer, one panel a moment, on one scale."""
    curves: list[tuple[Stage, list[Series]]] = []
    for stage in stages(arms, "residual"):
        series = _curves(arms, stage, functools.partial(by_layer, key=key))
        if any(finite(value) for item in series for value in item.y):
            curves.append((stage, series))
    if not curves:
        return None
    # One scale for both moments, so that growth during training is seen too.
    values = [v for _, series in curves for item in series for v in (*item.y, *(item.high or ())) if finite(v)]
    shared = dataclasses.replace(axis, include=values)
    panels = [
        lines(series, x=LAYER, y=shared, styles=styles, heading=stage.heading.capitalize()) for stage, series in curves
    ]
    title, caption = text(curves)
    gaps = [stage.absent(arms) for stage, _ in curves]
    return Figure(name=name, title=title, caption=sentences(caption, *gaps, seeds_sentence(arms)), panels=panels)


def extremes_of(item: Series) -> tuple[float, float, float] | None:
    """Largest over smallest positive value of a curve, and where they are; None without two positive values."""
    points = [(value, x) for x, value in zip(item.x, item.y, strict=True) if value is not None and value > 0]
    if len(points) < 2:
        return None
    (low, at_low), (high, at_high) = min(points), max(points)
    return high / low, at_high, at_low


def _gradient_title(extremes: Mapping[str, tuple[float, float, float]], first: Stage) -> str:
    when = first.heading
    if not extremes:
        return f"Gradient norm by block, {when}"
    name = max(extremes, key=lambda key: extremes[key][0])
    ratio, high, low = extremes[name]
    if ratio < EVEN:
        return f"The gradient is nearly even across blocks in every arm, {when}"
    return opening(
        f"{spoken(name)} has the most uneven gradient {when}: block {high}'s is {times(ratio)} block {low}'s"
    )


def _evenness(extremes: Mapping[str, tuple[float, float, float]]) -> str:
    if len(extremes) < 2:
        return ""
    name = min(extremes, key=lambda key: extremes[key][0])
    ratio, high, low = extremes[name]
    return f"The most even is {spoken(name)}, where block {high}'s gradient is {times(ratio)} block {low}'s."


def _zero_gradients(series: Sequence[Series]) -> str:
    names = [spoken(item.name) for item in series if any(value == 0 for value in item.y)]
    return f"Exactly zero gradients, which a logarithmic axis cannot show, occur in {join(names)}." if names else ""


def growth_of(series: Sequence[Series]) -> dict[str, float]:
    """RMS at the last layer over RMS at the first, by arm."""
    ratios = {}
    for item in series:
        if len(item.y) < 2:
            continue
        first, last = item.y[0], item.y[-1]
        if finite(first) and finite(last) and first > 0:
            ratios[item.name] = last / first
    return ratios


def _range_text(ratios: Mapping[str, float], show: Callable[[float], str]) -> str:
    low, high = min(ratios, key=lambda n: ratios[n]), max(ratios, key=lambda n: ratios[n])
    if show(ratios[low]) == show(ratios[high]):
        return f"is {show(ratios[low])} in {join([spoken(name) for name in ratios])}"
    return f"ranges from {show(ratios[low])} ({low}) to {show(ratios[high])} ({high})"


def _residual_text(curves: list[tuple[Stage, list[Series]]]) -> tuple[str, str]:
    growth = [(stage, growth_of(series)) for stage, series in curves]
    known = [(stage, ratios) for stage, ratios in growth if ratios]
    if not known:
        return "Size of the residual stream by depth", ""
    stage, ratios = known[-1]
    name = max(ratios, key=lambda key: abs(math.log(ratios[key])) if ratios[key] > 0 else math.inf)
    change = f"{spoken(name)} changes the RMS of the residual stream most, to {times(ratios[name])} what enters block 1"
    title = opening(f"{change}, {stage.heading}")
    if all(1 / EVEN < ratio < EVEN for ratio in ratios.values()):
        title = f"The residual stream keeps its RMS through the blocks of every arm, {stage.heading}"
    parts = [f"{stage.heading} the ratio {_range_text(r, format_number)}" for stage, r in known]
    return title, f"RMS after the last block over RMS after the embedding: {'; '.join(parts)}."


def _centring_text(curves: list[tuple[Stage, list[Series]]]) -> tuple[str, str]:
    stage, series = curves[-1]
    shares = [
        (value, item.name, int(x))
        for item in series
        for x, value in zip(item.x, item.high or item.y, strict=True)
        if value is not None and math.isfinite(value)
    ]
    if not shares:
        return "What centring would remove, by depth", ""
    value, name, layer = max(shares)
    place = f"after block {layer}" if layer else "after the embedding"
    title = (
        f"The mean carries at most {percent(value)} of the residual stream's power, {stage.heading} ({name}, {place})"
    )
    ordered = sorted(share for share, _, _ in shares)
    middle = percent(ordered[len(ordered) // 2])
    caption = (
        "This is the part that LayerNorm's centring removes and RMSNorm keeps. "
        f"{stage.heading.capitalize()} half of the arms' layers are at {middle} or less."
    )
    if any(finite(share) and share < SHARE_FLOOR for _, moment in curves for item in moment for share in item.y):
        caption += f" Shares below {SHARE_FLOOR:g} are drawn at that value."
    return title, caption


def _histogram(which: str, record: Mapping[str, Any]) -> Histogram:
    data = record[which]
    return Histogram(which, data["edges"], data["counts"])


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


def _block_updates(probe: Probe | None, suffix: str) -> dict[float, float | None]:
    rows = (probe or {}).get("updates", ())
    return {r["block"] + 1: r.get("ratio") for r in rows if r.get("block") is not None and r["group"].endswith(suffix)}


def _outside(probe: Probe | None) -> list[Mapping[str, Any]]:
    return [row for row in (probe or {}).get("updates", ()) if row.get("block") is None]


def _outside_updates(probe: Probe | None, groups: Sequence[str]) -> dict[float, float | None]:
    return {groups.index(row["group"]): row.get("ratio") for row in _outside(probe)}
