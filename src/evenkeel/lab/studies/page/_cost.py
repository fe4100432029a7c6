"""The figure of a study that compares what the arms cost: the time of a step and the share of it in norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenkeel.lab.studies.page._arms import Arm, costs, mean
from evenkeel.lab.studies.page._words import percent, sentences, spoken, times
from evenkeel.report import Axis, Figure, Row, Style, bars, format_number, join_words


def cost_figure(arms: Sequence[Arm], styles: Mapping[str, Style], machine: Mapping[str, object]) -> Figure | None:
    """Time of a training step and the share of it spent in norms."""
    seconds = {arm.name: values for arm in arms if (values := costs(arm, "step_seconds"))}
    if not seconds:
        return None
    shares = {arm.name: values for arm in arms if (values := costs(arm, "norm_share"))}
    typical = {name: mean(values) for name, values in seconds.items()}
    plain = [arm.name for arm in arms if arm.name in seconds and arm.plain]
    base = plain[0] if plain else min(typical, key=typical.__getitem__)
    step_rows = [
        _row(name, seconds[name], 1000, "" if name == base else f"× {format_number(value / typical[base])}")
        for name, value in typical.items()
    ]
    heading = f"Step time (×: relative to {spoken(base)})" if len(typical) > 1 else "Step time"
    panels = [bars(step_rows, x=Axis("time of a training step (ms)"), styles=styles, heading=heading, unit=" ms")]
    share_rows = [_row(name, shares[name], 100, "") for name in typical if name in shares]
    if share_rows:
        axis = Axis("share of the step spent in norms (%)")
        panels.append(bars(share_rows, x=axis, styles=styles, heading="Share of norms", unit=" %"))
    means = {name: mean(values) for name, values in shares.items()}
    timed = [arm for arm in arms if arm.name in seconds]
    caption = sentences(_caption(typical, base), _disturbed(means), _unlike(timed), _machine(machine))
    return Figure(name="cost", title=_title(typical, base, means), caption=caption, panels=panels)


def _row(name: str, values: Sequence[float], scale: float, note: str) -> Row:
    scaled = [scale * value for value in values]
    if len(scaled) == 1:
        return Row(name, mean(scaled), note=note)
    return Row(name, mean(scaled), low=min(scaled), high=max(scaled), note=note)


def _title(typical: Mapping[str, float], base: str, shares: Mapping[str, float]) -> str:
    slowest = max(typical, key=typical.__getitem__)
    if len(typical) == 1:
        title = f"A training step of {spoken(slowest)} takes {format_number(1000 * typical[slowest])} ms"
    elif slowest == base:
        title = f"No arm's step takes longer than that of {spoken(base)}"
    else:
        title = f"A step takes up to {times(typical[slowest] / typical[base])} that of {spoken(base)} ({slowest})"
    if not shares:
        return title
    largest = max(shares, key=shares.__getitem__)
    return f"{title}, and norms take up to {percent(shares[largest])} of a step ({largest})"


def _caption(typical: Mapping[str, float], base: str) -> str:
    if len(typical) < 2:
        return ""
    fastest = min(typical, key=typical.__getitem__)
    relation = "" if fastest == base else f", {times(typical[fastest] / typical[base])} that of {spoken(base)}"
    return f"The shortest step is that of {spoken(fastest)}: {format_number(1000 * typical[fastest])} ms{relation}."


def _disturbed(shares: Mapping[str, float]) -> str:
    names = [spoken(name) for name, share in shares.items() if share > 1]
    if not names:
        return ""
    return f"A share above 100 % ({join_words(names)}) means that timing was disturbed, by other load on the machine."


def _unlike(arms: Sequence[Arm]) -> str:
    names = {"feed_forward": "feed-forward", "qk_norm": "QK-norm", "parameters": "number of parameters"}
    unlike = [text for key, text in names.items() if len({run.get(key) for arm in arms for run in arm.runs}) > 1]
    return f"The arms also differ in {join_words(unlike)}, which costs time of its own." if unlike else ""


def _machine(machine: Mapping[str, object]) -> str:
    parts = [str(machine["processor"])] if machine.get("processor") else []
    if machine.get("threads"):
        parts.append(f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}")
    return f"Measured on {', '.join(parts)}." if parts else ""
