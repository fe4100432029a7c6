"""What a study found, in words: every number is computed from the summary, and every sentence holds for any outcome."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from evenkeel.lab._page_data import Arm, Run, finite, gap_text, group_arms, loss_text, mean
from evenkeel.lab._page_loss import loss_title, ranked, verdict
from evenkeel.report import join_words

__all__ = ["find"]

TRAINING_TAIL = 0.05  # of the training curve, averaged where one step is too noisy
LEVEL = 1.05  # factors closer than this are called level


def find(summary: dict[str, Any]) -> list[dict[str, str]]:
    """Return the findings of a summary, the most important first; a finding whose arms were not run is left out."""
    finders: tuple[Callable[[dict[str, Any], list[Arm]], tuple[str, str] | None], ...] = (
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
    found = [finder(summary, arms) for finder in finders]
    return [{"title": each[0], "text": each[1]} for each in found if each is not None]


def find_divergence(summary: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """Which arms diverged, and when."""
    diverged = [arm for arm in arms if arm.with_status("diverged")]
    if not diverged:
        return None
    settings = summary["settings"]
    fates = join_words([f"{arm.name} {arm.fate()}" for arm in diverged])
    finished = [arm.name for arm in arms if len(arm.final_losses) == len(arm.runs)]
    rest = f"{join_words(finished)} finished." if finished else "No other arm has finished."
    return (
        f"{join_words([arm.name for arm in diverged])} diverged",
        f"At a learning rate of {settings['lr']:g}, depth {settings['depth']} and these seeds: {fates}. {rest}",
    )


def find_best(summary: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """Which comparable arm ends lowest, by how much, and how sure that is."""
    order = ranked(arms)
    if not order:
        return None
    best, *others = order
    if not others:
        return loss_title(
            arms
        ), f"It is the only comparable arm that finished its {summary['settings']['steps']} steps."
    losses = join_words([f"{arm.name} {loss_text(mean(arm.final_losses))}" for arm in others])
    above = gap_text(mean(best.final_losses), mean(others[0].final_losses))
    return loss_title(arms), f"The next is {above} above {best.name}. The others: {losses}. {verdict(arms)}"


def find_effect_of_norm(summary: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """How many steps the best normalized arm needs to reach what training without a norm ends at."""
    order = ranked(arms)
    without = next((arm for arm in order if is_plain(arm)), None)
    best = next((arm for arm in order if not is_plain(arm)), None)
    if without is None or best is None:
        return None
    steps, target = summary["settings"]["steps"], mean(without.final_losses)
    final = mean(best.final_losses)
    runs = [run["validation"] for run in best.with_status("finished")]
    curve = zip(runs[0]["step"], (mean(losses) for losses in zip(*(r["loss"] for r in runs), strict=True)), strict=True)
    reached = next((step for step, loss in curve if loss <= target), None)
    if reached is None:
        return (
            f"No normalized arm reaches the loss without norm, {loss_text(target)}",
            f"After {steps} steps the best of them, {best.name}, is {gap_text(target, final)} nats per byte above it.",
        )
    return (
        f"{best.name} reaches the final loss of {without.name} after {reached} of {steps} steps",
        f"Without norm, {steps} steps end at {loss_text(target)} nats per byte; {best.name} has reached this at the "
        f"validation after {reached} steps, and ends {gap_text(final, target)} lower.",
    )


def find_leak(summary: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """What BatchNorm's training loss hides."""
    leaking = [arm for arm in arms if arm.leaks and arm.final_losses]
    if not leaking:
        return None
    ends = [
        f"{arm.name} ends at {loss_text(training_loss(arm))} in training and {loss_text(mean(arm.final_losses))} in "
        "validation, which uses running statistics"
        for arm in leaking
    ]
    gaps = [mean(arm.final_losses) - training_loss(arm) for arm in ranked(arms)]
    compared = f" In the other arms validation minus training is {span(gaps)}." if gaps else ""
    return (
        f"{join_words([arm.name for arm in leaking])} cannot be compared: BatchNorm leaks",
        f"In training, batch statistics let a position depend on later positions and on other examples. "
        f"{'; '.join(ends)}.{compared}",
    )


def find_growth(_: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """How the residual stream grows with depth at initialization."""
    growth = {
        arm.name: layers[-1]["rms"] / layers[0]["rms"]
        for arm in arms
        if (layers := first_probe(arm).get("residual")) and finite(layers[-1]["rms"]) and layers[0]["rms"]
    }
    if not growth:
        return None
    each = join_words([f"{name} {ratio:.2f}" for name, ratio in growth.items()])
    return (
        contrast("The residual stream's RMS changes", growth, "through the blocks"),
        f"RMS after the last block relative to the embedding's, before training: {each}.",
    )


def find_gradients(summary: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """How unevenly gradients are spread over depth at initialization."""
    ratios: dict[str, float] = {}
    for arm in arms:
        norms = [g["norm"] for g in first_probe(arm).get("gradients", ()) if g["group"].endswith(".feed_forward")]
        if len(norms) > 1 and all(norms):
            ratios[arm.name] = norms[0] / norms[-1]
    if not ratios:
        return None
    unevenness = {name: max(ratio, 1 / ratio) for name, ratio in ratios.items()}
    each = join_words([f"{name} {ratio:.2f}" for name, ratio in ratios.items()])
    return (
        contrast("Gradients of the first and last block differ", unevenness, "before training"),
        f"Gradient norm of the first block's feed-forward divided by the last block's, before training: {each}.",
    )


def find_unlearned(summary: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """Which arms do no better than byte frequencies."""
    baseline = summary["corpus"].get("frequency_loss")
    stuck = [arm for arm in arms if baseline is not None and arm.final_losses and mean(arm.final_losses) >= baseline]
    if not stuck:
        return None
    ends = join_words([f"{arm.name} ends at {loss_text(mean(arm.final_losses))}" for arm in stuck])
    return (
        f"{join_words([arm.name for arm in stuck])} did no better than byte frequencies",
        f"Guessing every byte by its frequency in the training text costs {loss_text(baseline)} nats per byte; {ends}.",
    )


def find_centring(summary: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """How much of the residual stream's power is its mean: what centring would remove."""
    shares = {
        arm.name: layers[-1]["mean2_over_rms2"]
        for arm in arms
        if (layers := last_probe(arm).get("residual")) and finite(layers[-1]["mean2_over_rms2"])
    }
    if not shares:
        return None
    most, chance = max(shares, key=shares.__getitem__), 1 / summary["settings"]["width"]
    each = join_words([f"{name} {share:.2%}" for name, share in shares.items()])
    return (
        f"The mean is at most {shares[most]:.2%} of the residual stream's power after the last block, in {most}",
        f"At the last probe: {each}; independent elements with mean 0 would give {chance:.2%}. LayerNorm on the stream "
        f"removes this part, RMSNorm keeps it.{layer_against_rms(arms)}",
    )


def layer_against_rms(arms: list[Arm]) -> str:
    """Compare each LayerNorm arm with the RMSNorm arm of the same placement, where both finished."""
    ends = {arm.name: mean(arm.final_losses) for arm in ranked(arms)}
    pairs = [
        f" {rms} ends {gap_text(*sorted((ends[rms], ends[layer])))} nats per byte "
        f"{'below' if ends[rms] < ends[layer] else 'above'} {layer}."
        for layer in ends
        if layer.endswith("-layer") and (rms := layer.removesuffix("layer") + "rms") in ends
    ]
    return "".join(pairs)


def find_cost(summary: dict[str, Any], arms: list[Arm]) -> tuple[str, str] | None:
    """What share of a step the norms take."""
    costs = {arm.name: [run["cost"] for run in arm.runs if run["cost"].get("norm_share")] for arm in arms}
    shares = {name: statistics.median(cost["norm_share"] for cost in runs) for name, runs in costs.items() if runs}
    if not shares:
        return None
    least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    title = f"Norms take {shares[most]:.1%} of a training step in {most}"
    if least != most:
        title = f"Norms take {shares[least]:.1%} ({least}) to {shares[most]:.1%} ({most}) of a training step"
    each = join_words([f"{name} {share:.1%}" for name, share in shares.items()])
    return (
        title,
        f"Each norm timed alone, forward and backward, on its own activations, in turn with whole steps: {each}.",
    )


def contrast(what: str, factors: dict[str, float], where: str) -> str:
    """Return a title that names the extremes, or says that there are none."""
    most, least = max(factors, key=factors.__getitem__), min(factors, key=factors.__getitem__)
    if factors[most] < LEVEL * factors[least]:
        return f"{what} by a factor of about {factors[most]:.2f} {where} in {join_words(list(factors))}"
    return f"{what} by a factor of {factors[most]:.2f} in {most} and {factors[least]:.2f} in {least} {where}"


def is_plain(arm: Arm) -> bool:
    """Whether an arm has no norm."""
    return all(run["norm"] == "none" for run in arm.runs)


def first_probe(arm: Arm) -> dict[str, Any]:
    """Return the probe at initialization of an arm's first run; empty before there is one."""
    return next((probe for probe in arm.runs[0]["probes"] if probe["step"] == 0), {})


def last_probe(arm: Arm) -> dict[str, Any]:
    """Return the last probe of an arm's first run; empty before there is one."""
    return next(reversed(arm.runs[0]["probes"]), {})


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
