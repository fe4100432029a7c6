"""Remembered statistics: which tensors hold them, how they follow the batches, and norms that only have these."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from evenkeel._spec import ACTIVATIONS, NormSpec
from evenkeel.recognition._copies import floating_tensors
from evenkeel.recognition._fit import TOLERANCE, USUAL_EPS, Fit, Roles, disagreement
from evenkeel.recognition._layout import Layout
from evenkeel.recognition._probes import RefusedError, attempt, distance, probes, random_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from evenkeel.recognition._subject import Subject

__all__ = ["fit_frozen", "fit_memory"]

FAR = 1e4  # in units of the tolerance: further off than any eps makes it beside a variance near 1


def fit_frozen(subject: Subject, shape: tuple[int, ...], still: Layout, learned: list[str]) -> Fit:
    """Fit what normalizes with remembered statistics in training too.

    Raises:
        RefusedError: it has no statistics, or does something else with them.
    """
    if not 2 <= len(learned) <= 4:
        raise RefusedError("each element of its result depends on one element alone: it has no statistics")
    layout = Layout(shares="channel", channel_axis=still.channel_axis)
    inputs = {name: x for name, x in probes(shape, subject.wide).items() if "scale 1e-" not in name}
    first = subject.observe(inputs, subject.values(seed=1), training=False)
    for fit in frozen_forms(layout, learned):
        if disagreement(fit, [first])[0] > FAR:
            continue
        small = subject.values(seed=2)
        small[fit.roles.variance or ""] *= 1e-7  # beside it, eps shows
        observed = [first, subject.observe(inputs, small, training=False)]
        for eps in dict.fromkeys([*subject.declared, *USUAL_EPS]):
            if disagreement(fit.with_answers(eps=eps), observed)[0] <= 1.0:
                return fit.with_answers(eps=eps)
    raise RefusedError(
        "each element of its result depends on one element alone, and on no variance: it has no statistics"
    )


def frozen_forms(layout: Layout, learned: list[str]) -> Iterator[Fit]:
    """Yield every way in which tensors can be a mean, a variance and an affine; eps is still open."""
    for mean, variance, *rest in itertools.permutations(learned):
        affines = {(), ("weight",), ("bias",), ("weight", "bias")}
        fitting = (affine for affine in affines if len(affine) == len(rest))
        for names, activation in itertools.product(fitting, ACTIVATIONS):
            roles = Roles(mean=mean, variance=variance, **dict(zip(names, rest, strict=True)))
            spec = NormSpec(
                statistic="moments",
                shares="channel",
                memory="running",
                weight=roles.weight is not None,
                bias=roles.bias is not None,
                activation=activation,
                eps=0.0,
            )
            yield Fit(spec, layout, roles)


def fit_memory(
    subject: Subject, shape: tuple[int, ...], fit: Fit, changed: list[str], still: Layout
) -> tuple[Fit, float | None]:
    """Find the remembered mean and variance, and how fast they follow.

    Raises:
        RefusedError: evaluation does not use them so, or training does not update them as BatchNorm's.
    """
    if len(changed) != 2 or still.shares is not None:
        what = f"training changes {', '.join(changed)}" if changed else "it computes something else in training"
        raise RefusedError(f"{what}, and evaluation is not a norm by two remembered statistics")
    inputs = {name: x for name, x in probes(shape, subject.wide).items() if "scale 1e-" not in name}
    values = subject.values(seed=4)
    observed = [subject.observe(inputs, values, training=False)]
    for mean, variance in itertools.permutations(changed):
        roles = replace(fit.roles, mean=mean, variance=variance)
        running = replace(fit, roles=roles).with_answers(memory="running")
        if disagreement(running, observed)[0] <= 1.0:
            return running, momentum_of(subject, shape, running)
    raise RefusedError("evaluation does not normalize by the statistics that training remembers")


def momentum_of(subject: Subject, shape: tuple[int, ...], fit: Fit) -> float | None:
    """How much of a batch's statistics the remembered ones take in; None for the plain average of all batches.

    Raises:
        RefusedError: they take in something else than the mean and the unbiased variance.
    """
    values = subject.values(seed=6)
    copy = subject.copy(subject.wide, values, training=True)
    found = []
    for call in range(2):
        x = random_values(shape, 70 + call).to(subject.wide)
        before = {name: t.detach().clone() for name, t in floating_tensors(copy).items()}
        attempt(copy, x)
        after = floating_tensors(copy)
        whole = {name: tensor.clone() for name, tensor in before.items()}
        fit(x, whole, 1.0)  # the batch's own statistics
        found.append(share_taken(fit.roles, before, after, whole))
    if abs(found[0] - 1.0) < TOLERANCE and abs(found[1] - 0.5) < TOLERANCE:
        return None
    if abs(found[0] - found[1]) > TOLERANCE:
        raise RefusedError("its remembered statistics follow no constant momentum")
    return float(f"{found[0]:.6g}")


def share_taken(roles: Roles, before: dict[str, Tensor], after: dict[str, Tensor], whole: dict[str, Tensor]) -> float:
    """The share of the batch's statistics in the new remembered ones."""
    shares = []
    for name in (roles.mean, roles.variance):
        assert name is not None
        share = ((after[name] - before[name]) / (whole[name] - before[name])).median()
        expected = before[name] + share * (whole[name] - before[name])
        if distance(after[name].detach(), expected) > 1e-5:
            raise RefusedError(f"training does not update {name} as BatchNorm does")
        shares.append(float(share))
    if abs(shares[0] - shares[1]) > 1e-5:
        raise RefusedError("its mean and its variance follow at different speeds")
    return shares[0]
