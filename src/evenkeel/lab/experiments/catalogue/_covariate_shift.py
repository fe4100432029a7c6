"""`covariate-shift`: how much the inputs of each layer drift during training, and whether that drift matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import evenkeel.nn as ek_nn
from evenkeel._options.experiments import ShiftOptions
from evenkeel.lab.experiments._digits import (
    accuracy,
    digits,
    frozen_statistics,
    make_network,
    train_digits,
)
from evenkeel.lab.experiments._estimates import (
    PERCENT,
    Estimate,
    below,
    curves,
    geometric_mean,
    intervals,
    mean_of,
)
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, select
from evenkeel.lab.transformer import derive_seed, norm_styles
from evenkeel.report import Axis, Figure, format_number, join_words, lines

SANTURKAR = "Santurkar et al. 2018"
NAMES = {"none": "no norm", "batch": "BatchNorm", "noisy": "BatchNorm + noise"}


class ShiftingNoise(nn.Module):
    """Noise with a mean and a scale of its own for each unit, drawn anew in every training step.

    x -> x (1 + a) + b with a and b uniform in [-size, size] per unit; in evaluation mode, x.
    """

    def __init__(self, size: float, seed: int) -> None:
        super().__init__()
        self.size = size
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:  # (images, units)
        if not self.training:
            return x
        shift, scale = self.size * (2 * torch.rand(2, x.shape[1], generator=self.generator) - 1)
        return x * (1 + scale) + shift


def measure(options: ShiftOptions, trial: Trial) -> dict[str, Any]:
    """Train, looking at what reaches each hidden activation for the same images."""
    data, seed = digits(), trial["seed"]
    norm = "none" if trial["network"] == "none" else "batch"
    network = make_network(norm, seed=seed, width=options.width, layers=options.layers)
    if trial["network"] == "noisy":
        network = with_noise(network, options.noise, seed)
    steps, curve, drifts = [0], [accuracy(network, data.test, data.test_labels)], []
    before = activation_inputs(network, data.test)

    def look(step: int, _: float) -> bool:
        nonlocal before
        if step % options.every == 0:
            after = activation_inputs(network, data.test)
            drifts.append([drift(a, b) for a, b in zip(before, after, strict=True)])
            before = after
            steps.append(step)
            curve.append(accuracy(network, data.test, data.test_labels))
        return False

    train_digits(network, data, steps=options.steps, batch=options.batch, lr=options.lr, seed=seed, watch=look)
    return {"steps": steps, "accuracy": curve, "drift": drifts}


def with_noise(network: nn.Sequential, size: float, seed: int) -> nn.Sequential:
    """Return the network with shifting noise after every BatchNorm, in train mode."""
    parts: list[nn.Module] = []
    for index, module in enumerate(network):
        parts.append(module)
        if isinstance(module, ek_nn.BatchNorm1d):
            parts.append(ShiftingNoise(size, derive_seed(seed, "shifting noise", index)))
    return nn.Sequential(*parts)


@torch.no_grad()
def activation_inputs(network: nn.Module, images: Tensor) -> list[Tensor]:
    """Return what reaches each sigmoid in training mode: with batch statistics, and noise as a step has it."""
    seen: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
        for module in network.modules()
        if isinstance(module, nn.Sigmoid)
    ]
    with frozen_statistics(network):
        network(images)
    for hook in hooks:
        hook.remove()
    return seen


def drift(before: Tensor, after: Tensor) -> float:
    """Return the mean over units of the distance between two distributions, in standard deviations of the first.

    The distance is the Wasserstein-2 distance of two normal distributions: sqrt((difference of means)^2 +
    (difference of standard deviations)^2).
    """
    shift, scale = after.mean(0) - before.mean(0), after.std(0) - before.std(0)
    spread = before.std(0).clamp_min(1e-12)
    return ((shift**2 + scale**2).sqrt() / spread).mean().item()


def pooled_drift(records: Sequence[Record], network: str) -> Estimate:
    """Return the mean drift over steps and layers of each seed, as a geometric mean over the seeds."""
    trained = select(records, network=network)
    return geometric_mean(mean_of(mean_of(layers).value for layers in r["drift"]).value for r in trained)


def pooled_accuracy(records: Sequence[Record], network: str) -> Estimate:
    """Return the mean test accuracy along the way, in percent, over the seeds: high when training is fast."""
    means = (mean_of(r["accuracy"][1:]).value for r in select(records, network=network))
    return mean_of(means, scale=100, within=PERCENT)


def judge(options: ShiftOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare drifts and speeds."""
    drifts = {network: pooled_drift(records, network) for network in NAMES}
    speeds = {network: pooled_accuracy(records, network) for network in NAMES}
    if not all(drifts.values()) or not all(speeds.values()):
        return []
    speeds_in_words = join_words([f"{NAMES[network]} {speed} %" for network, speed in speeds.items()])
    return [
        Claim(
            claim="BatchNorm reduces internal covariate shift: the inputs of the activations drift less",
            source="Ioffe & Szegedy 2015; disputed by " + SANTURKAR,
            measured=f"Mean drift in {options.every} steps, in standard deviations: no norm {drifts['none']}, "
            f"BatchNorm {drifts['batch']}",
            verdict=below(drifts["batch"], drifts["none"]),
            intervals=intervals({NAMES[network]: drifts[network] for network in ("none", "batch")}),
            quantity="drift (standard deviations)",
        ),
        Claim(
            claim="Noise after BatchNorm makes the inputs drift more than in the network without norm",
            source=f"{SANTURKAR}, figure 2",
            measured=f"With noise the drift is {drifts['noisy']}",
            verdict=below(drifts["none"], drifts["noisy"]),
            intervals=intervals({NAMES[network]: drifts[network] for network in ("none", "noisy")}),
            quantity="drift (standard deviations)",
        ),
        Claim(
            claim="BatchNorm with that noise still trains faster than no norm, so the drift is not what matters",
            source=f"{SANTURKAR}, figure 2",
            measured=f"Mean test accuracy over {options.steps} steps: {speeds_in_words}",
            verdict=below(speeds["none"], speeds["noisy"]),
            intervals=intervals({NAMES[network]: speed for network, speed in speeds.items()}),
            quantity="mean test accuracy (%)",
        ),
    ]


def draw(options: ShiftOptions, records: Sequence[Record]) -> list[Figure]:
    """Drift by step in the last hidden layer, and accuracy by step."""
    if not records:
        return []
    trained = {name: select(records, network=network) for network, name in NAMES.items()}
    drifts = curves(trained, lambda r: zip(r["steps"][1:], (layers[-1] for layers in r["drift"]), strict=True))
    accuracies = curves(trained, lambda r: zip(r["steps"][1:], r["accuracy"][1:], strict=True))
    x, styles = Axis("step"), norm_styles(NAMES.values())
    pooled = {name: pooled_drift(records, network) for network, name in NAMES.items()}
    means = [f"{format_number(drift.value, digits=2)} ({name})" for name, drift in pooled.items() if drift]
    return [
        Figure(
            name="covariate-shift",
            title=f"In {options.every} steps the activations' inputs drift by {join_words(means)} standard deviations",
            caption=f"Drift over {options.every} steps of what reaches the last hidden layer's activation, for the "
            "same images. Bands span the seeds.",
            panels=[
                lines(drifts, x=x, y=Axis("drift (standard deviations)", log=True), styles=styles, heading="Drift"),
                lines(accuracies, x=x, y=Axis("test accuracy", log=False), styles=styles, heading="Accuracy"),
            ],
        )
    ]


COVARIATE_SHIFT = Experiment(
    name="covariate-shift",
    title="Internal covariate shift",
    question="How much do the inputs of each layer drift during training, and does that drift slow training down?",
    method="A sigmoid network learns scikit-learn's digits without norm, with BatchNorm, and with BatchNorm followed "
    "by noise whose mean and scale are drawn anew for each unit in every step. The drift is the Wasserstein-2 distance "
    "between normal distributions fitted to what reaches each activation, for the same images, some steps apart.",
    options=ShiftOptions,
    trials=lambda options: options.grid(network=NAMES),
    measure=measure,
    judge=judge,
    draw=draw,
)
