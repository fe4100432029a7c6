"""What a study found, in words: every number is computed from the summary, and every sentence holds for any outcome.

A finding has a title of at most twenty words and one line of a terminal, a text with the numbers behind it, and the
size of its effect as the logarithm of a factor, by which findings are ordered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel.lab.studies.page._arms import Arm, all_rates, finite, group_arms, mean, named, ranked, without_twins
from evenkeel.lab.studies.page._cost import cost_of, cost_title, ratio_sentence
from evenkeel.lab.studies.page._map import gradient_ratio, growth_without_norm, stream_growth, total_gradients
from evenkeel.lab.studies.page._outcome import front, learning_bar, loss_title, noise_of, training_rates, verdict
from evenkeel.lab.studies.page._probed import by_layer, stages
from evenkeel.lab.studies.page._words import (
    Text,
    about,
    gap_text,
    loss_text,
    opening,
    percent,
    rate_range,
    sentences,
    spoken,
    text_of,
)
from evenkeel.report import format_number, join_words

LEVEL = 1.05  # factors closer than this are called level
TITLE = 99  # characters: a line of a terminal with its number and full stop
FAILURE = math.log(1e3)  # the effect of a training that fails, where it cannot be measured


@dataclass(frozen=True)
class Found:
    """A finding with its effect."""

    title: str
    text: str
    effect: float


@dataclass(frozen=True)
class Study:
    """What the finders look at: every arm with all its runs, and at its best rate."""

    summary: Mapping[str, Any]
    arms: Sequence[Arm]
    best: Sequence[Arm]

    @property
    def text(self) -> Text:
        """What is learned."""
        return text_of(self.summary.get("corpus"))

    @property
    def bar(self) -> float:
        """The loss below which a run has learned."""
        return learning_bar(self.best, self.text.baseline)

    @property
    def normed(self) -> list[Arm]:
        """The comparable arms with a norm."""
        return [arm for arm in self.arms if not arm.plain and not arm.leaks]

    @property
    def ended(self) -> bool:
        """Whether no run is left."""
        return not any(arm.with_status("running") for arm in self.arms)


def find(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of a summary, the largest effect first; a finding whose arms were not run is left out."""
    finders: tuple[Callable[[Study], Found | None], ...] = (
        find_without_norm,
        find_rates,
        find_signals,
        find_leak,
        find_best,
        find_effect_of_norm,
        find_centring,
        find_cost,
    )
    arms = group_arms(summary)
    study = Study(summary, arms, [arm.best for arm in arms])
    found = [item for finder in finders if arms and (item := finder(study)) is not None]
    found.sort(key=lambda item: -item.effect)
    return [{"title": item.title, "text": item.text, "effect": round(item.effect, 3)} for item in found]


def message(summary: Mapping[str, Any], arms: Sequence[Arm]) -> str:
    """The one line that the page opens with."""
    study = Study(summary, arms, [arm.best for arm in arms])
    plain = [arm for arm in arms if arm.plain and not training_rates(arm, study.bar)]
    rates = all_rates(arms)
    everywhere = [arm for arm in study.normed if len(training_rates(arm, study.bar)) == len(rates)]
    if study.ended and plain and everywhere:
        depth = (summary.get("settings") or {}).get("depth")
        model = f"a {depth}-block transformer" if depth else "this transformer"
        reach = f"at every rate from {rate_range(rates)}" if len(rates) > 1 else "at the same rate"
        return f"Without norm {model} does not train; {named(everywhere)} {'do' if everywhere[1:] else 'does'} {reach}"
    findings = find(summary)
    return str(findings[0]["title"]) if findings else loss_title(study.best, study.text)


def shortest(*titles: str) -> str:
    """The first title that fits a line."""
    return next((title for title in titles if len(title) <= TITLE and len(title.split()) <= 20), titles[-1])


def counted(arms: Sequence[Arm]) -> str:
    """How many arms, where their names take too much room."""
    return f"{len(arms)} arms" if len(arms) > 1 else arms[0].spoken


def find_without_norm(study: Study) -> Found | None:
    """At which learning rates training works without norm, and what happens at the others."""
    plain = next((arm for arm in study.arms if arm.plain), None)
    if plain is None or plain.with_status("running"):
        return None
    rates, works = plain.rates, training_rates(plain, study.bar)
    reached = {arm.name: max(training_rates(arm, study.bar), default=0.0) for arm in study.normed}
    reach = max(reached.values(), default=0.0)
    diverged = [rate for rate in rates if plain.at(rate).with_status("diverged")]
    if works and (max(works) >= reach or not diverged):
        return None
    step = rates[1] / rates[0] if len(rates) > 1 else math.exp(FAILURE)
    effect = math.log(reach / (max(works) if works else min(rates) / step)) if reach else FAILURE
    if works:
        widest = max(reached, key=reached.__getitem__)
        title = f"Without norm, training works up to a rate of {max(works):g}; {widest} works up to {reach:g}"
    else:
        title = failure_title(plain, diverged, study.text)
    return Found(title, f"{rates_text(plain)} {baseline_text(study.text)}".strip(), effect)


def failure_title(plain: Arm, diverged: Sequence[float], text: Text) -> str:
    """How training without norm fails at every rate."""
    rates = plain.rates
    ends = [plain.at(rate).loss for rate in rates if plain.at(rate).final_losses]
    if len(rates) == 1:
        fate = plain.fate() if plain.broken else f"fails: {plain.fate()}"
        return f"Without norm, training {fate if diverged else f'ends at {text.loss(ends[0])}'}"
    if len(diverged) == len(rates):
        return f"Without norm, training diverges at every learning rate from {rate_range(rates)}"
    best = f"ends at {loss_text(min(ends))} nats at best"
    if diverged:
        return f"Without norm, training diverges at {len(diverged)} of {len(rates)} learning rates and {best}"
    return f"Without norm, no learning rate works: training {best}"


def rates_text(arm: Arm) -> str:
    """What became of an arm at every rate."""
    parts = []
    for cell in map(arm.at, arm.rates):
        losses = f"ends at {loss_text(cell.loss)}" if cell.final_losses else ""
        parts.append(f"at {cell.rates[0]:g} it {' and '.join(filter(None, (losses, cell.fate())))}")
    return f"{opening(arm.spoken)}: {', '.join(parts)}."


def losses_text(arm: Arm) -> str:
    """The range of an arm's mean losses over its rates."""
    losses = [cell.loss for cell in map(arm.at, arm.rates) if cell.final_losses]
    ends = dict.fromkeys(map(loss_text, (min(losses), max(losses)))) if losses else ["none"]
    return f"{arm.spoken} {' to '.join(ends)}{f' ({arm.fate()})' if arm.fate() else ''}"


def baseline_text(text: Text) -> str:
    """What frequencies alone give."""
    if text.baseline is None:
        return ""
    learning = "learning means to gain a tenth of what the best arm gains over them"
    return f"{text.frequencies.capitalize()} alone give {text.loss(text.baseline)}; {learning}."


def find_rates(study: Study) -> Found | None:
    """Which arms learn at every rate, and which at none."""
    rates = all_rates(study.arms)
    arms = [arm for arm in study.normed if not arm.with_status("running")]
    working = {arm.name: training_rates(arm, study.bar) for arm in arms}
    stuck = [arm for arm in arms if not working[arm.name]]
    everywhere = [arm for arm in arms if len(working[arm.name]) == len(rates)]
    if study.text.baseline is None or not (stuck or (everywhere and len(rates) > 1)):
        return None
    span = max(rates) / min(rates)
    many = len(rates) > 1
    reach = f"at every rate from {rate_range(rates)}" if many else f"more than {study.text.frequencies}"
    learn, none = ("learn" if everywhere[1:] else "learns"), ("at none" if many else "no more than these")
    warmup = [arm.name for arm in stuck if arm.name.endswith("+warmup")]
    even = ", even with longer warm-up" if warmup else ""
    if everywhere and stuck:
        pairs = [(who(everywhere), who(without_twins(stuck))) for who in (named, counted)]
        short = reach.partition(" from ")[0]
        titles = [f"{some} {learn} {to}; {others} {none}{even}" for some, others in pairs for to in (reach, short)]
        title = shortest(*titles)
    elif everywhere:
        title = shortest(*(f"{who(everywhere)} {learn} {reach}" for who in (named, counted)))
    else:
        verb = "end" if stuck[1:] else "ends"
        title = shortest(*(f"{who(stuck)} {verb} no better than {study.text.frequencies}" for who in (named, counted)))
    ends = [losses_text(arm) for arm in [*everywhere, *stuck]]
    longer = f"A warm-up over half of the steps does not help here ({join_words(warmup)})." if warmup else ""
    text = sentences(f"Final losses over the rates: {join_words(ends)}.", longer, baseline_text(study.text))
    return Found(title, text, math.log(span) if many else math.log(2))


def find_signals(study: Study) -> Found | None:
    """How large gradients are and how the residual stream grows before training, without norm and with."""
    arms = without_twins(study.best)
    ratio, sizes = gradient_ratio(arms), total_gradients(arms)
    growth = {name: factor for name, factor in stream_growth(arms).items() if factor > 0}
    texts = [f"Gradient norm over all blocks, before training: {listed(sizes)}."] if sizes else []
    if growth:
        ends = "RMS of the residual stream after the last block over that after the embedding"
        texts.append(f"{ends}: {listed(growth)}.")
    plain = growth_without_norm(arms)
    if ratio is not None and ratio > LEVEL and plain is not None and plain > LEVEL:
        one = f"Before training, gradients without norm are {about(ratio)} times larger"
        title = shortest(f"{one} and the stream grows {about(plain)}-fold", one)
        return Found(title, sentences(*texts), math.log(ratio))
    if not growth:
        return None
    most, least = max(growth, key=growth.__getitem__), min(growth, key=growth.__getitem__)
    if growth[most] < LEVEL * growth[least]:
        return None
    where = {name: "without norm" if spoken(name) != name else f"in {name}" for name in (most, least)}
    grows = [f"{about(growth[name])}-fold {where[name]}" for name in (most, least)]
    title = f"Before training, the stream grows {grows[0]} and {grows[1]}"
    return Found(title, sentences(*texts), math.log(growth[most] / growth[least]))


def find_leak(study: Study) -> Found | None:
    """How much, in training, a later byte or token changes what a model says of earlier ones."""
    shown = [arm for arm in study.best if arm.final_losses]
    leaks = {arm.name: mean(values) for arm in shown if (values := leaks_of(arm))}
    leaking = {arm.name: leaks[arm.name] for arm in shown if arm.leaks and leaks.get(arm.name)}
    if not leaking:
        return None
    most = max(leaking, key=leaking.__getitem__)
    others = [name for name, value in leaks.items() if value == 0]
    still = f" In {join_words([spoken(name) for name in others])} they do not change at all." if others else ""
    ends = [f"{arm.name} ends at {loss_text(arm.loss)}" for arm in shown if arm.name in leaking]
    last = f"the last {study.text.unit}"
    return Found(
        f"{most} leaks: in training, {last} changes earlier predictions by {percent(leaking[most])}",
        "BatchNorm's statistics let a position depend on later positions and on other examples: when "
        f"{last} is changed, the logits before it move by {listed(leaking)} of their size.{still} {join_words(ends)} "
        f"{study.text.nats} with running statistics, which is not ranked.",
        leaking[most],
    )


def leaks_of(arm: Arm) -> list[float]:
    """The leak of every run that measured it."""
    return list(filter(finite, (run.get("leak") for run in arm.runs)))


def find_best(study: Study) -> Found | None:
    """Which comparable arm ends lowest at its best rate, by how much, and how sure that is."""
    order = ranked(study.best)
    if len(order) < 2:
        return None
    best, level = order[0], front(order)
    at = {arm.name: f"{loss_text(arm.loss)} (rate {arm.rates[0]:g})" for arm in order}
    losses = join_words([f"{arm.spoken} {at[arm.name]}" for arm in order])
    text = f"At the best rate of each: {losses}. {verdict(study.best)}"
    if len(level) > 1:
        same = (f"No difference seen between the best arms: {who}" for who in (named(level), counted(level)))
        return Found(shortest(*same), text, 0.0)
    measured = noise_of(order).degrees > 0
    gap, nats = order[1].loss - best.loss, study.text.nats
    title = opening(f"{best.spoken} ends {gap_text(best.loss, order[1].loss)} {nats} below {order[1].spoken}")
    if not measured:
        title = opening(f"{best.spoken} ends lowest, {study.text.loss(best.loss)}, with one seed")
    return Found(title, f"{text}{layer_against_rms(study.best, nats)}", gap if measured else 0.0)


def find_effect_of_norm(study: Study) -> Found | None:
    """How many steps a normalized arm needs to reach what training without a norm ends at."""
    order = ranked(study.best)
    without = next((arm for arm in order if arm.plain), None)
    normalized = [arm for arm in order if not arm.plain]
    if without is None or not normalized:
        return None
    steps, target = study.summary["settings"]["steps"], without.loss
    reached = {arm.name: step for arm in normalized if (step := first_step_below(arm, target)) is not None}
    if not reached:
        best = normalized[0]
        gap = gap_text(target, best.loss)
        text = f"After {steps} steps the best of them, {best.name}, is {gap} {study.text.nats} above it."
        return Found(f"No arm with a norm reaches the loss without norm, {loss_text(target)}", text, best.loss - target)
    first = min(normalized, key=lambda arm: reached.get(arm.name, steps + 1))  # of equals, the one that ends lowest
    step, final = reached[first.name], first.loss
    if not step:
        return None  # better before the first step: said elsewhere
    end = f"{gap_text(*sorted((final, target)))} {'lower' if final <= target else 'above it'}"
    return Found(
        f"{first.name} reaches the final loss of {without.spoken} after {step} of {steps} steps",
        f"Without norm, {steps} steps end at {study.text.loss(target)}; {first.name} has reached this at the "
        f"validation after {step} steps, and ends {end}.",
        max(0.0, target - final),
    )


def first_step_below(arm: Arm, target: float) -> int | None:
    """The first step at which the mean validation loss of an arm's finished runs is at most the target."""
    runs = [run["validation"] for run in arm.with_status("finished")]
    curve = zip(runs[0]["step"], zip(*(run["loss"] for run in runs), strict=True), strict=True)
    return next((step for step, losses in curve if all(map(finite, losses)) and mean(losses) <= target), None)


def find_centring(study: Study) -> Found | None:
    """How much of the residual stream its mean makes up after training: what LayerNorm removes and RMSNorm keeps."""
    arms = [arm for arm in study.best if not arm.plain]
    last = next(reversed(stages(arms, "residual")), None)
    curves = last.curves(arms, functools.partial(by_layer, key="mean2_over_rms2")) if last else []
    shares = {curve.name: curve.y[-1] for curve in curves if curve.y and finite(curve.y[-1])}
    if last is None or not last.step or not shares:
        return None
    most = max(shares, key=lambda name: shares[name] or 0.0)
    chance = 1 / study.summary["settings"]["width"]
    told = join_words([f"{name} {share:.2%}" for name, share in shares.items()])
    largest = shares[most] or 0.0
    amount = "little" if largest < 4 * chance else "something"
    return Found(
        f"Centring has {amount} to remove: the mean is up to {percent(largest)} of the stream ({most})",
        f"Share of the stream's power after the last block, {last.heading}: {told}; independent elements with mean 0 "
        f"would give {chance:.2%}. LayerNorm on the stream removes this part, RMSNorm keeps it."
        f"{layer_against_rms(study.best, study.text.nats)}",
        largest,
    )


def layer_against_rms(best: Sequence[Arm], nats: str) -> str:
    """Compare each LayerNorm arm with the RMSNorm arm of the same placement, where both finished."""
    order = ranked(best)
    noise, by_name = noise_of(order), {arm.name: arm for arm in order}
    told = []
    for name, layer in by_name.items():
        rms = by_name.get(name.removesuffix("layer") + "rms") if name.endswith("-layer") else None
        if rms is None:
            continue
        if not noise.degrees or noise.level(layer, rms):
            told.append(f" No difference seen between {name} and {rms.name}.")
        else:
            low, high = sorted((layer, rms), key=lambda arm: arm.loss)
            told.append(f" {low.name} ends {gap_text(low.loss, high.loss)} {nats} below {high.name}.")
    return "".join(told)


def find_cost(study: Study) -> Found | None:
    """What share of a step the norms take."""
    cost = cost_of(study.summary, study.arms)
    if cost is None or not any(share.value > 0 for share in cost.shares.values()):
        return None
    shares = {name: 100 * share.value for name, share in cost.shares.items() if share.value > 0}
    text = sentences(
        "One norm of each kind and shape, timed alone, forward and backward, and counted as often as it occurs, in "
        f"percent of the same round's step: {listed(shares)}. Inside a step they take more, since alone they find "
        "their input in the cache.",
        ratio_sentence(cost),
    )
    return Found(cost_title(cost), text, -math.log(1 - min(0.99, max(shares.values()) / 100)))


def listed(values: Mapping[str, float]) -> str:
    """Each arm's name with its value."""
    return join_words([f"{spoken(name)} {format_number(value)}" for name, value in values.items()])
