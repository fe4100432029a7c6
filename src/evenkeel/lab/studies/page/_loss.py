"""The figures of a study that compare arms by their loss: curves and ranking, and the losses as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenkeel.lab.studies.page._arms import Arm, Curve, Run, all_rates, finite, mean, over_seeds, ranked
from evenkeel.lab.studies.page._outcome import (
    fate_sentence,
    front,
    leak_sentence,
    loss_title,
    seeds_sentence,
    verdict,
)
from evenkeel.lab.studies.page._words import Text, gap_text, loss_text, opening, rounded_gap, sentences
from evenkeel.report import Axis, Cell, Figure, Row, Style, Table, dots, lines

# A curve of more points than this is drawn as means over consecutive points; single batches are noise.
CURVE_POINTS = 20
STEP = Axis("training step", integer=True)

Styles = Mapping[str, Style]


def ceiling_of(baseline: float | None, losses: Sequence[float]) -> float:
    """The loss above which an axis would only hide what differs below.

    It is as far above the baseline as the best loss is below; where nothing beats those, twice the lowest loss.
    """
    lowest = min(losses, default=1.0)
    return 2 * baseline - lowest if baseline is not None and baseline > lowest else 2 * lowest


def loss_axis(text: Text, losses: Sequence[float]) -> Axis:
    """The axis of losses, with a line for frequencies alone and what is far above it at its upper end."""
    level = None if text.baseline is None else (f"{text.frequencies} alone", text.baseline)
    return Axis(f"loss ({text.nats})", log=False, ceiling=ceiling_of(text.baseline, losses), level=level)


def loss_figure(arms: Sequence[Arm], styles: Styles, text: Text) -> Figure | None:
    """Validation and training loss over the steps, each arm at its best rate."""
    points = max((len(run.get("train", {}).get("step", ())) for arm in arms for run in arm.runs), default=1)
    stride = max(1, -(-points // CURVE_POINTS))
    thinned = "Training loss" if stride == 1 else f"Training loss, means of {stride} points"
    curves = {
        "Validation loss": [over_seeds(arm, validation_curve, remarks=True) for arm in arms],
        thinned: [over_seeds(arm, lambda run: _training(run, stride), remarks=True) for arm in arms],
    }
    panels = [
        lines(
            series,
            x=STEP,
            y=loss_axis(text, [value for curve in series for value in curve.y if finite(value)]),
            styles=styles,
            heading=heading,
        )
        for heading, series in curves.items()
        if any(curve.x for curve in series)
    ]
    if not panels:
        return None
    return Figure(name="loss", title=loss_title(arms, text), caption=_loss_caption(arms, text), panels=panels)


def ranking_figure(arms: Sequence[Arm], styles: Styles, text: Text) -> Figure | None:
    """Final validation loss of every arm at its best rate, with its range over seeds."""
    order = ranked(arms)
    leaking = [arm for arm in arms if arm.leaks and arm.final_losses]
    if not order and not leaking:
        return None
    bound = ceiling_of(text.baseline, [arm.loss for arm in [*order, *leaking]])
    inside = [arm for arm in [*order, *leaking] if arm.loss <= bound]
    outside = [arm for arm in arms if arm not in inside]
    rows = [*map(_loss_row, inside), *map(_remark_row, outside)]
    panel = dots(rows, x=Axis(f"final validation loss ({text.nats})"), styles=styles)
    several = any(len(arm.final_losses) > 1 for arm in arms)
    whiskers = "A dot is the mean over seeds, a ring one seed, the whisker the range." if several else ""
    caption = sentences(verdict(arms), leak_sentence(arms), fate_sentence(arms), whiskers)
    return Figure(name="ranking", title=_ranking_title(order, text), caption=caption, panels=[panel])


def ranking_table(arms: Sequence[Arm], text: Text) -> Table:
    """The ranking as a table: comparable arms by loss at their best rate, then the others with the reason.

    Arms between which and the best no difference is seen share the first rank.
    """
    best = [arm.best for arm in arms]
    order = ranked(best)
    level = {arm.name for arm in front(order)} if order else set()
    rest = sorted((arm for arm in best if arm not in order), key=lambda arm: not arm.final_losses)
    several, many = any(len(arm.runs) > 1 for arm in best), len(all_rates(arms)) > 1
    rows: list[list[Cell]] = []
    for place, arm in enumerate([*order, *rest], start=1):
        losses, ranks = arm.final_losses, arm in order
        above = f"+{loss_text(rounded_gap(order[0].loss, arm.loss))}" if ranks else "–"
        spread = f"{loss_text(min(losses))} to {loss_text(max(losses))}" if len(losses) > 1 else "–"
        rank = "1" if arm.name in level else str(place) if ranks else "–"
        rate: list[Cell] = [f"{arm.rates[0]:g}"] if many else []
        loss = loss_text(arm.loss) if losses else "–"
        rows.append([rank, arm.name, *rate, loss, above, *([spread] if several else []), arm.note()])
    columns = ["rank", "arm", *(["best rate"] if many else []), "loss", "above best", *(["range"] if several else [])]
    return Table([*columns, "remark"], rows, title=f"Final validation loss, {text.nats}")


def rates_table(arms: Sequence[Arm]) -> Table:
    """The mean final loss of every arm at every rate, or what became of it."""
    rates = all_rates(arms)
    rows: list[list[Cell]] = [
        [arm.name, *(_cell(arm.at(rate)) if rate in arm.rates else "–" for rate in rates)] for arm in arms
    ]
    return Table(["arm", *(f"{rate:g}" for rate in rates)], rows, title="Final validation loss by learning rate")


def _cell(arm: Arm) -> str:
    return "; ".join(part for part in (loss_text(arm.loss) if arm.final_losses else "", arm.fate()) if part)


def validation_curve(run: Run) -> Curve:
    """Validation loss by step."""
    record = run.get("validation", {})
    return dict(zip(record.get("step", ()), record.get("loss", ()), strict=True))


def _training(run: Run, stride: int) -> Curve:
    """Training loss by step, each `stride` consecutive records as their mean at their last step."""
    record = run.get("train", {})
    steps, losses = record.get("step", ()), record.get("loss", ())
    curve: Curve = {}
    for start in range(0, len(steps), stride):
        values = list(filter(finite, losses[start : start + stride]))
        curve[steps[start : start + stride][-1]] = mean(values) if values else None
    return curve


def _loss_caption(arms: Sequence[Arm], text: Text) -> str:
    order, span = ranked(arms), ""
    if len(order) > 1:
        gap = gap_text(order[0].loss, order[-1].loss)
        pair = f"from {order[0].spoken} to {order[-1].spoken}"
        span = f"Compare the right ends: {pair} the final loss rises by {gap} {text.nats}."
    curves = any(run.get("train", {}).get("step") for arm in arms if arm.broken for run in arm.runs)
    cross = "A cross marks where a diverged curve ends." if curves else ""
    arrow = "Arrows at the top are losses beyond the axis."
    return sentences(span, fate_sentence(arms), cross, arrow, leak_sentence(arms), seeds_sentence(arms))


def _ranking_title(order: Sequence[Arm], text: Text) -> str:
    if not order:
        return "No arm has a final loss that can be ranked"
    level = front(order)
    if len(order) == 1:
        return opening(f"{order[0].spoken} is the only arm with a comparable final loss")
    if len(level) > 1:
        return f"{len(level)} arms share the first place: no difference seen between them"
    gap = gap_text(order[0].loss, order[1].loss)
    return opening(f"{order[0].spoken} ranks first, {gap} {text.nats} below {order[1].spoken}")


def _loss_row(arm: Arm) -> Row:
    losses = arm.final_losses
    if len(losses) == 1:
        return Row(arm.name, arm.loss, note=arm.note())
    return Row(arm.name, arm.loss, low=min(losses), high=max(losses), points=losses, note=arm.note())


def _remark_row(arm: Arm) -> Row:
    far = f"{loss_text(arm.loss)}, beyond the axis" if arm.final_losses else ""
    return Row(arm.name, None, note="; ".join(filter(None, (far, arm.note()))) or "no final loss")
