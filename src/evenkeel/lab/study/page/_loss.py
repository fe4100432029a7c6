"""The figures of a study that compare arms as a whole: loss curves, ranking and cost."""

from collections.abc import Mapping, Sequence

from evenkeel.lab.study.page._arms import (
    Arm,
    Run,
    finite,
    gap_text,
    leak_sentence,
    loss_text,
    mean,
    opening,
    over_seeds,
    percent,
    rounded_gap,
    seeds_sentence,
    sentences,
    spoken,
    times,
)
from evenkeel.report import Axis, Cell, Figure, Panel, Row, Style, Table, bars, dots, format_number, join_words, lines

# A curve of more points than this is drawn as means over consecutive points; the page stays small and readable.
CURVE_POINTS = 160
STEP = Axis("training step", integer=True)
LOSS = Axis("loss (nats per byte)")

Styles = Mapping[str, Style]


def ranked(arms: Sequence[Arm]) -> list[Arm]:
    """The arms that finished with a comparable loss, lowest mean first."""
    return sorted((a for a in arms if a.final_losses and not a.leaks), key=lambda arm: mean(arm.final_losses))


def loss_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Validation and training loss over the steps."""
    panels: list[Panel] = []
    validation = [over_seeds(arm, _validation, remarks=True) for arm in arms]
    if any(series.x for series in validation):
        panels.append(lines(validation, x=STEP, y=LOSS, styles=styles, heading="Validation loss"))
    stride = max(
        (-(-len(run.get("train", {}).get("step", ())) // CURVE_POINTS) for a in arms for run in a.runs), default=1
    )
    training = [over_seeds(arm, lambda run: _training(run, stride), remarks=True) for arm in arms]
    if any(series.x for series in training):
        heading = "Training loss" if stride == 1 else f"Training loss, means of {stride} points"
        panels.append(lines(training, x=STEP, y=LOSS, styles=styles, heading=heading))
    if not panels:
        return None
    return Figure(name="loss", title=loss_title(arms), caption=_loss_caption(arms), panels=panels)


def ranking_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Final validation loss of every arm, with its range over seeds."""
    order = ranked(arms)
    leaking = [arm for arm in arms if arm.leaks and arm.final_losses]
    rest = [arm for arm in arms if not arm.final_losses]
    rows = [_loss_row(arm) for arm in [*order, *leaking, *rest]]
    if not order and not leaking:
        return None
    panel = dots(rows, x=Axis("final validation loss (nats per byte)"), styles=styles)
    caption = sentences(verdict(arms), leak_sentence(arms), fate_sentence(arms), _whisker_sentence(arms))
    return Figure(name="ranking", title=_ranking_title(arms), caption=caption, panels=[panel])


def ranking_table(arms: Sequence[Arm]) -> Table:
    """The ranking as a table: comparable arms by mean final validation loss, then the others with the reason."""
    order = ranked(arms)
    best = mean(order[0].final_losses) if order else None
    rest = sorted((arm for arm in arms if arm not in order), key=lambda arm: not arm.final_losses)
    several = any(len(arm.runs) > 1 for arm in arms)
    rows: list[list[Cell]] = []
    for place, arm in enumerate([*order, *rest], start=1):
        losses = arm.final_losses
        loss = loss_text(mean(losses)) if losses else "–"
        above = f"+{loss_text(rounded_gap(best, mean(losses)))}" if best is not None and arm in order else "–"
        spread = f"{loss_text(min(losses))} to {loss_text(max(losses))}" if len(losses) > 1 else "–"
        seeds: list[Cell] = [spread, f"{len(losses)} of {len(arm.runs)}"] if several else []
        rows.append([str(place) if arm in order else "–", arm.name, loss, above, *seeds, arm.note()])
    columns = ["rank", "arm", "loss", "above best", *(["range", "seeds"] if several else []), "remark"]
    return Table(columns, rows, title="Final validation loss, nats per byte")


def cost_figure(arms: Sequence[Arm], styles: Styles, machine: Mapping[str, object]) -> Figure | None:
    """Time of a training step and the share of it spent in norms."""
    seconds = {arm.name: _cost(arm, "step_seconds") for arm in arms}
    shares = {arm.name: _cost(arm, "norm_share") for arm in arms}
    timed = [arm for arm in arms if seconds[arm.name]]
    if not timed:
        return None
    typical = {arm.name: mean(seconds[arm.name]) for arm in timed}
    plain = [arm.name for arm in timed if all(run.get("norm") == "none" for run in arm.runs)]
    base = plain[0] if plain else min(typical, key=lambda name: typical[name])
    step_rows = [
        _cost_row(name, seconds[name], 1000, "" if name == base else f"× {format_number(value / typical[base])}")
        for name, value in typical.items()
    ]
    heading = f"Step time (×: relative to {spoken(base)})" if len(timed) > 1 else "Step time"
    panels = [bars(step_rows, x=Axis("time of a training step (ms)"), styles=styles, heading=heading, unit=" ms")]
    share_rows = [_cost_row(arm.name, shares[arm.name], 100, "") for arm in timed if shares[arm.name]]
    if share_rows:
        axis = Axis("share of the step spent in norms (%)")
        panels.append(bars(share_rows, x=axis, styles=styles, heading="Share of norms", unit=" %"))
    means = {name: mean(values) for name, values in shares.items() if values}
    caption = sentences(
        _cost_caption(typical, base), _noise_sentence(means), _unlike_sentence(timed), _machine_sentence(machine)
    )
    return Figure(name="cost", title=_cost_title(typical, base, means), caption=caption, panels=panels)


def verdict(arms: Sequence[Arm]) -> str:
    """What the final losses can and cannot tell apart, from the seeds that were run."""
    order = ranked(arms)
    if len(order) < 2:
        return "There are not two finished arms whose losses can be compared." if len(arms) > 1 else ""
    best, second = order[0], order[1]
    survivors = [arm for arm in (best, second) if arm.with_status("diverged")]
    if survivors:
        counts = [f"{len(arm.final_losses)} of {len(arm.runs)} seeds of {spoken(arm.name)}" for arm in survivors]
        return f"Only {join_words(counts)} finished, the others diverged: a mean over survivors flatters an arm."
    if min(len(best.final_losses), len(second.final_losses)) < 2:
        return (
            "One seed an arm gives no uncertainty: differences smaller than the spread between seeds, "
            "which was not measured, cannot be judged."
        )
    pair = f"{spoken(best.name)} and {spoken(second.name)}"
    if max(best.final_losses) < min(second.final_losses):
        return f"The ranges of {pair} over seeds do not overlap."
    return f"The ranges of {pair} over seeds overlap, so these runs do not tell the two apart."


def fate_sentence(arms: Sequence[Arm]) -> str:
    """Which arms did not finish."""
    parts = [fate for arm in arms if (fate := _spoken_fate(arm))]
    return f"{join_words(parts)}." if parts else ""


def _spoken_fate(arm: Arm) -> str:
    name, fate = spoken(arm.name), arm.fate()
    if not fate:
        return ""
    if fate.startswith("unfinished: "):
        return f"{name} has not finished ({fate.removeprefix('unfinished: ')})"
    return f"{name} {fate}" if fate.startswith("diverged") else f"in {name} {fate}"


def _validation(run: Run) -> dict[float, float | None]:
    record = run.get("validation", {})
    return dict(zip(record.get("step", ()), record.get("loss", ()), strict=True))


def _training(run: Run, stride: int) -> dict[float, float | None]:
    """Training loss by step, each `stride` consecutive records as their mean at their last step."""
    record = run.get("train", {})
    steps, losses = record.get("step", ()), record.get("loss", ())
    curve: dict[float, float | None] = {}
    for start in range(0, len(steps), stride):
        values = [loss for loss in losses[start : start + stride] if finite(loss)]
        curve[steps[start : start + stride][-1]] = mean(values) if values else None
    return curve


def _lowest(order: Sequence[Arm]) -> list[Arm]:
    """The best arm and those whose loss reads the same in the three decimals shown."""
    shown = [loss_text(mean(arm.final_losses)) for arm in order]
    return [arm for arm, text in zip(order, shown, strict=True) if text == shown[0]]


def loss_title(arms: Sequence[Arm]) -> str:
    """Which arm ends lowest, or why none does."""
    order = ranked(arms)
    if not order:
        if all(arm.broken for arm in arms):
            return "Every arm diverged before the end of training"
        return "No arm has finished with a comparable loss"
    loss = f"{loss_text(mean(order[0].final_losses))} nats per byte"
    lowest = [spoken(arm.name) for arm in _lowest(order)]
    if len(order) == 1:
        return opening(f"{lowest[0]} ends at a validation loss of {loss}")
    verb = "ends" if len(lowest) == 1 else "end"
    return opening(f"{join_words(lowest)} {verb} at the lowest validation loss, {loss}")


def _loss_caption(arms: Sequence[Arm]) -> str:
    order = ranked(arms)
    span = ""
    if len(order) > 1:
        best, worst = order[0], order[-1]
        gap = gap_text(mean(best.final_losses), mean(worst.final_losses))
        pair = f"from {spoken(best.name)} to {spoken(worst.name)}"
        span = f"Compare the right ends: {pair} the final loss rises by {gap} nats per byte."
    curves = any(run.get("train", {}).get("step") for arm in arms if arm.broken for run in arm.runs)
    cross = "A cross marks where a diverged curve ends." if curves else ""
    return sentences(span, fate_sentence(arms), cross, leak_sentence(arms), seeds_sentence(arms))


def _ranking_title(arms: Sequence[Arm]) -> str:
    order = ranked(arms)
    if not order:
        return "No arm has a final loss that can be ranked"
    lowest = [spoken(arm.name) for arm in _lowest(order)]
    if len(order) == 1:
        return opening(f"{lowest[0]} is the only arm with a comparable final loss")
    if len(lowest) > 1:
        return opening(f"{join_words(lowest)} share the first place to three decimals")
    gap = gap_text(mean(order[0].final_losses), mean(order[1].final_losses))
    return opening(f"{lowest[0]} ranks first, {gap} nats per byte below {spoken(order[1].name)}")


def _whisker_sentence(arms: Sequence[Arm]) -> str:
    if all(len(arm.final_losses) < 2 for arm in arms):
        return ""
    return "A dot is the mean over seeds, a ring one seed, the whisker the range."


def _loss_row(arm: Arm) -> Row:
    losses = arm.final_losses
    if not losses:
        return Row(arm.name, None, note=arm.note() or "no final loss")
    several = len(losses) > 1
    low, high = (min(losses), max(losses)) if several else (None, None)
    return Row(arm.name, mean(losses), low=low, high=high, points=losses if several else (), note=arm.note())


def _cost(arm: Arm, key: str) -> list[float]:
    values: list[float | None] = [(run.get("cost") or {}).get(key) for run in arm.runs]
    return [value for value in values if finite(value)]


def _cost_row(name: str, values: Sequence[float], scale: float, note: str) -> Row:
    scaled = [scale * value for value in values]
    several = len(scaled) > 1
    return Row(
        name, mean(scaled), low=min(scaled) if several else None, high=max(scaled) if several else None, note=note
    )


def _cost_title(typical: Mapping[str, float], base: str, shares: Mapping[str, float]) -> str:
    slowest = max(typical, key=lambda name: typical[name])
    parts = []
    if len(typical) == 1:
        parts.append(f"A training step of {spoken(slowest)} takes {format_number(1000 * typical[slowest])} ms")
    elif slowest == base:
        parts.append(f"No arm's step takes longer than that of {spoken(base)}")
    else:
        parts.append(f"A step takes up to {times(typical[slowest] / typical[base])} that of {spoken(base)} ({slowest})")
    if shares:
        largest = max(shares, key=lambda name: shares[name])
        parts.append(f"norms take up to {percent(shares[largest])} of a step ({largest})")
    return ", and ".join(parts)


def _cost_caption(typical: Mapping[str, float], base: str) -> str:
    if len(typical) < 2:
        return ""
    fastest = min(typical, key=lambda name: typical[name])
    ratio = times(typical[fastest] / typical[base])
    relation = "" if fastest == base else f", {ratio} that of {spoken(base)}"
    return f"The shortest step is that of {spoken(fastest)}: {format_number(1000 * typical[fastest])} ms{relation}."


def _noise_sentence(shares: Mapping[str, float]) -> str:
    names = [spoken(name) for name, share in shares.items() if share > 1]
    if not names:
        return ""
    return f"A share above 100 % ({join_words(names)}) means that timing was disturbed, by other load on the machine."


def _unlike_sentence(arms: Sequence[Arm]) -> str:
    names = {"feed_forward": "feed-forward", "qk_norm": "QK-norm", "parameters": "number of parameters"}
    unlike = [text for key, text in names.items() if len({run.get(key) for arm in arms for run in arm.runs}) > 1]
    return f"The arms also differ in {join_words(unlike)}, which costs time of its own." if unlike else ""


def _machine_sentence(machine: Mapping[str, object]) -> str:
    parts = [str(machine["processor"])] if machine.get("processor") else []
    if machine.get("threads"):
        parts.append(f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}")
    return f"Measured on {', '.join(parts)}." if parts else ""
