"""The figures of a study that compare arms by their loss: curves and ranking, and the ranking as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenkeel.lab.studies.page._arms import Arm, Curve, Run, finite, mean, over_seeds, ranked
from evenkeel.lab.studies.page._outcome import (
    fate_sentence,
    leak_sentence,
    loss_title,
    lowest,
    seeds_sentence,
    verdict,
)
from evenkeel.lab.studies.page._words import gap_text, loss_text, opening, rounded_gap, sentences
from evenkeel.report import Axis, Cell, Figure, Row, Style, Table, dots, join_words, lines

# A curve of more points than this is drawn as means over consecutive points; the page stays small and readable.
CURVE_POINTS = 160
STEP = Axis("training step", integer=True)
LOSS = Axis("loss (nats per byte)")

Styles = Mapping[str, Style]


def loss_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Validation and training loss over the steps."""
    points = max((len(run.get("train", {}).get("step", ())) for arm in arms for run in arm.runs), default=1)
    stride = -(-points // CURVE_POINTS)
    thinned = "Training loss" if stride == 1 else f"Training loss, means of {stride} points"
    curves = {
        "Validation loss": [over_seeds(arm, _validation, remarks=True) for arm in arms],
        thinned: [over_seeds(arm, lambda run: _training(run, stride), remarks=True) for arm in arms],
    }
    panels = [
        lines(series, x=STEP, y=LOSS, styles=styles, heading=heading)
        for heading, series in curves.items()
        if any(curve.x for curve in series)
    ]
    return Figure(name="loss", title=loss_title(arms), caption=_loss_caption(arms), panels=panels) if panels else None


def ranking_figure(arms: Sequence[Arm], styles: Styles) -> Figure | None:
    """Final validation loss of every arm, with its range over seeds."""
    order = ranked(arms)
    leaking = [arm for arm in arms if arm.leaks and arm.final_losses]
    if not order and not leaking:
        return None
    rows = [_loss_row(arm) for arm in [*order, *leaking, *(arm for arm in arms if not arm.final_losses)]]
    panel = dots(rows, x=Axis("final validation loss (nats per byte)"), styles=styles)
    several = any(len(arm.final_losses) > 1 for arm in arms)
    whiskers = "A dot is the mean over seeds, a ring one seed, the whisker the range." if several else ""
    caption = sentences(verdict(arms), leak_sentence(arms), fate_sentence(arms), whiskers)
    return Figure(name="ranking", title=_ranking_title(order), caption=caption, panels=[panel])


def ranking_table(arms: Sequence[Arm]) -> Table:
    """The ranking as a table: comparable arms by mean final validation loss, then the others with the reason."""
    order = ranked(arms)
    rest = sorted((arm for arm in arms if arm not in order), key=lambda arm: not arm.final_losses)
    several = any(len(arm.runs) > 1 for arm in arms)
    rows: list[list[Cell]] = []
    for place, arm in enumerate([*order, *rest], start=1):
        losses, ranks = arm.final_losses, arm in order
        above = f"+{loss_text(rounded_gap(order[0].loss, arm.loss))}" if ranks else "–"
        spread = f"{loss_text(min(losses))} to {loss_text(max(losses))}" if len(losses) > 1 else "–"
        seeds: list[Cell] = [spread, f"{len(losses)} of {len(arm.runs)}"] if several else []
        loss = loss_text(arm.loss) if losses else "–"
        rows.append([str(place) if ranks else "–", arm.name, loss, above, *seeds, arm.note()])
    columns = ["rank", "arm", "loss", "above best", *(["range", "seeds"] if several else []), "remark"]
    return Table(columns, rows, title="Final validation loss, nats per byte")


def _validation(run: Run) -> Curve:
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


def _loss_caption(arms: Sequence[Arm]) -> str:
    order, span = ranked(arms), ""
    if len(order) > 1:
        gap = gap_text(order[0].loss, order[-1].loss)
        pair = f"from {order[0].spoken} to {order[-1].spoken}"
        span = f"Compare the right ends: {pair} the final loss rises by {gap} nats per byte."
    curves = any(run.get("train", {}).get("step") for arm in arms if arm.broken for run in arm.runs)
    cross = "A cross marks where a diverged curve ends." if curves else ""
    return sentences(span, fate_sentence(arms), cross, leak_sentence(arms), seeds_sentence(arms))


def _ranking_title(order: Sequence[Arm]) -> str:
    if not order:
        return "No arm has a final loss that can be ranked"
    names = lowest(order)
    if len(order) == 1:
        return opening(f"{names[0]} is the only arm with a comparable final loss")
    if len(names) > 1:
        return opening(f"{join_words(names)} share the first place to three decimals")
    gap = gap_text(order[0].loss, order[1].loss)
    return opening(f"{names[0]} ranks first, {gap} nats per byte below {order[1].spoken}")


def _loss_row(arm: Arm) -> Row:
    losses = arm.final_losses
    if not losses:
        return Row(arm.name, None, note=arm.note() or "no final loss")
    if len(losses) == 1:
        return Row(arm.name, arm.loss, note=arm.note())
    return Row(arm.name, arm.loss, low=min(losses), high=max(losses), points=losses, note=arm.note())
