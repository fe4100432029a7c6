"""What a study found, in words: every number is computed from the summary, and every sentence holds for any outcome."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from evenkeel.lab.studies.page._arms import Arm, Run, costs, finite, group_arms, mean, named, ranked
from evenkeel.lab.studies.page._outcome import loss_title, verdict
from evenkeel.lab.studies.page._probed import block_gradients, by_layer, growth_of, stages, unevenness
from evenkeel.lab.studies.page._words import gap_text, loss_text, opening, spoken
from evenkeel.report import join_words

TRAINING_TAIL = 0.05  # of the training curve, averaged where one step is too noisy
LEVEL = 1.05  # factors closer than this are called level

Finding = tuple[str, str]  # title and text


def find(summary: dict[str, Any]) -> list[dict[str, str]]:
    """Return the findings of a summary, the most important first; a finding whose arms were not run is left out."""
    finders: tuple[Callable[[dict[str, Any], list[Arm]], Finding | None], ...] = (
        find_divergence,
        find_best,
        find_effect_of_norm,
        find_leak,
        find_growth,
        find_gradients,
        find_unlearned,
        find_centring,
        find_cost,
    )
    arms = group_arms(summary)
    findings = filter(None, (finder(summary, arms) for finder in finders))
    return [{"title": title, "text": text} for title, text in findings]


def find_divergence(summary: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """Which arms diverged, and when."""
    diverged = [arm for arm in arms if arm.with_status("diverged")]
    if not diverged:
        return None
    settings = summary["settings"]
    fates = join_words([f"{arm.spoken} {arm.fate()}" for arm in diverged])
    finished = named(arm for arm in arms if len(arm.final_losses) == len(arm.runs))
    rest = opening(f"{finished} finished.") if finished else "No other arm has finished."
    return (
        opening(f"{named(diverged)} diverged"),
        f"At a learning rate of {settings['lr']:g}, depth {settings['depth']} and these seeds: {fates}. {rest}",
    )


def find_best(summary: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """Which comparable arm ends lowest, by how much, and how sure that is."""
    order = ranked(arms)
    if not order:
        return None
    best, *others = order
    if not others:
        alone = f"It is the only comparable arm that finished its {summary['settings']['steps']} steps."
        return loss_title(arms), alone
    losses = join_words([f"{arm.spoken} {loss_text(arm.loss)}" for arm in others])
    above = gap_text(best.loss, others[0].loss)
    return loss_title(arms), f"The next is {above} above {best.spoken}. The others: {losses}. {verdict(arms)}"


def find_effect_of_norm(summary: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """How many steps a normalized arm needs to reach what training without a norm ends at."""
    order = ranked(arms)
    without = next((arm for arm in order if arm.plain), None)
    normalized = [arm for arm in order if not arm.plain]
    if without is None or not normalized:
        return None
    steps, target = summary["settings"]["steps"], without.loss
    reached = {arm.name: step for arm in normalized if (step := first_step_below(arm, target)) is not None}
    if not reached:
        best = normalized[0]
        return (
            f"No comparable normalized arm reaches the loss without norm, {loss_text(target)}",
            f"After {steps} steps the best of them, {best.name}, is {gap_text(target, best.loss)} nats "
            "per byte above it.",
        )
    first = min(normalized, key=lambda arm: reached.get(arm.name, steps + 1))  # of equals, the one that ends lowest
    step, final = reached[first.name], first.loss
    end = f"{gap_text(*sorted((final, target)))} {'lower' if final <= target else 'above it'}"
    return (
        f"{first.name} reaches the final loss of {without.spoken} after {step} of {steps} steps",
        f"Without norm, {steps} steps end at {loss_text(target)} nats per byte; {first.name} has reached this at the "
        f"validation after {step} steps, and ends {end}.",
    )


def first_step_below(arm: Arm, target: float) -> int | None:
    """The first step at which the mean validation loss of an arm's finished runs is at most the target."""
    runs = [run["validation"] for run in arm.with_status("finished")]
    curve = zip(runs[0]["step"], zip(*(run["loss"] for run in runs), strict=True), strict=True)
    return next((step for step, losses in curve if all(map(finite, losses)) and mean(losses) <= target), None)


def find_leak(summary: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """How far the training loss of arms with BatchNorm is from their validation loss."""
    leaking = [arm for arm in arms if arm.leaks and arm.final_losses]
    if not leaking:
        return None
    ends = [
        f"{arm.name} ends at {loss_text(training_loss(arm))} in training and {loss_text(arm.loss)} in "
        "validation, which uses running statistics"
        for arm in leaking
    ]
    gaps = [arm.loss - training_loss(arm) for arm in ranked(arms)]
    compared = f" In the other arms validation minus training is {span(gaps)}." if gaps else ""
    return (
        f"{join_words([arm.name for arm in leaking])} cannot be compared: BatchNorm leaks",
        f"In training, batch statistics let a position depend on later positions and on other examples. "
        f"{'; '.join(ends)}.{compared}",
    )


def find_growth(_: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """How the residual stream grows with depth at initialization."""
    first = next(iter(stages(arms, "residual")), None)
    if first is None or first.step:
        return None
    growth = growth_of(first.curves(arms, functools.partial(by_layer, key="rms")))
    if not growth:
        return None
    return (
        contrast("The residual stream's RMS changes", growth, "through the blocks"),
        f"RMS after the last block relative to the embedding's, before training: {listed(growth, '.2f')}.",
    )


def find_gradients(_: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """How unevenly gradients are spread over the blocks at initialization."""
    first = next(iter(stages(arms, "gradients")), None)
    if first is None or first.step:
        return None
    ratios = {name: ratio for name, (ratio, _, _) in unevenness(first.curves(arms, block_gradients)).items()}
    if not ratios:
        return None
    return (
        contrast("Gradient norms of the blocks differ", ratios, "before training"),
        "Largest over smallest gradient norm of a block (attention and feed-forward together), before training: "
        f"{listed(ratios, '.2f')}.",
    )


def find_unlearned(summary: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """Which arms do no better than byte frequencies."""
    baseline = summary["corpus"].get("frequency_loss")
    stuck = [arm for arm in arms if baseline is not None and arm.final_losses and arm.loss >= baseline]
    if not stuck:
        return None
    ends = join_words([f"{arm.spoken} ends at {loss_text(arm.loss)}" for arm in stuck])
    return (
        opening(f"{named(stuck)} did no better than byte frequencies"),
        f"Guessing every byte by its frequency in the training text costs {loss_text(baseline)} nats per byte; {ends}.",
    )


def find_centring(summary: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """How much of the residual stream's power is its mean: what centring would remove."""
    last = next(reversed(stages(arms, "residual")), None)
    if last is None:
        return None
    curves = last.curves(arms, functools.partial(by_layer, key="mean2_over_rms2"))
    shares = {curve.name: share for curve in curves if curve.y and finite(share := curve.y[-1])}
    if not shares:
        return None
    most, chance = max(shares, key=shares.__getitem__), 1 / summary["settings"]["width"]
    return (
        f"The mean is at most {shares[most]:.2%} of the residual stream's power after the last block, "
        f"in {spoken(most)}",
        f"Measured {last.heading}: {listed(shares, '.2%')}; independent elements with mean 0 would give {chance:.2%}. "
        f"LayerNorm on the stream removes this part, RMSNorm keeps it.{layer_against_rms(arms)}",
    )


def layer_against_rms(arms: list[Arm]) -> str:
    """Compare each LayerNorm arm with the RMSNorm arm of the same placement, where both finished."""
    ends = {arm.name: arm.loss for arm in ranked(arms)}
    pairs = [
        f" {rms} ends {gap_text(*sorted((ends[rms], ends[layer])))} nats per byte "
        f"{'below' if ends[rms] < ends[layer] else 'above'} {layer}."
        for layer in ends
        if layer.endswith("-layer") and (rms := layer.removesuffix("layer") + "rms") in ends
    ]
    return "".join(pairs)


def find_cost(_: dict[str, Any], arms: list[Arm]) -> Finding | None:
    """What share of a step the norms take."""
    shares = {arm.name: mean(values) for arm in arms if (values := list(filter(None, costs(arm, "norm_share"))))}
    if not shares:
        return None
    least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    title = f"Norms take {shares[most]:.1%} of a training step in {spoken(most)}"
    if least != most:
        title = f"Norms take {shares[least]:.1%} ({least}) to {shares[most]:.1%} ({most}) of a training step"
    return title, (
        "One norm of each kind and shape, timed alone, forward and backward, in turn with whole steps, and counted as "
        f"often as it occurs: {listed(shares, '.1%')}."
    )


def contrast(what: str, factors: dict[str, float], where: str) -> str:
    """Return a title that names the extremes, or says that there are none."""
    most, least = max(factors, key=factors.__getitem__), min(factors, key=factors.__getitem__)
    if factors[most] < LEVEL * factors[least]:
        arms = join_words([spoken(name) for name in factors])
        return f"{what} by a factor of about {factors[most]:.2f} {where} in {arms}"
    extremes = f"{factors[most]:.2f} in {spoken(most)} and {factors[least]:.2f} in {spoken(least)}"
    return f"{what} by a factor of {extremes} {where}"


def listed(values: dict[str, float], form: str) -> str:
    """Each arm's name with its value."""
    return join_words([f"{spoken(name)} {value:{form}}" for name, value in values.items()])


def training_loss(arm: Arm) -> float:
    """Return the mean training loss at the end of an arm's finished runs."""

    def tail(run: Run) -> list[float]:
        losses = run["train"]["loss"]
        return [loss for loss in losses[-max(1, round(TRAINING_TAIL * len(losses))) :] if loss is not None]

    return mean([loss for run in arm.with_status("finished") for loss in tail(run)])


def span(values: list[float]) -> str:
    """Return the range of some differences, with signs."""
    low, high = f"{min(values):+.3f}", f"{max(values):+.3f}"
    return low if low == high else f"{low} to {high}"
