"""A small network on scikit-learn's digits: what the experiments on BatchNorm train."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenkeel.nn as ek_nn
from evenkeel._errors import StudyError
from evenkeel._options.experiments import MOST_IMAGES, TEST_IMAGES, DigitsOptions
from evenkeel._packages import require_package
from evenkeel.lab.transformer import derive_seed
from evenkeel.report import join_words

CLASSES = 10
# What `ACTIVATION_NAMES` and `HIDDEN_NORM_NAMES` name.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}
HIDDEN_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda width: nn.Identity(),
    "batch": lambda width: ek_nn.BatchNorm1d(width),
    "layer": lambda width: ek_nn.LayerNorm(width),
    "rms": lambda width: ek_nn.RMSNorm(width),
}
ORDERS = ("before", "after")  # of the norm, with respect to the activation


@dataclass(frozen=True)
class Digits:
    """Images of digits, 64 pixels from 0 to 1, and their labels, split in two."""

    train: Tensor  # (images, 64)
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


@functools.lru_cache(maxsize=4)
def digits(train_images: int = MOST_IMAGES) -> Digits:
    """Return scikit-learn's 1797 digits in an order drawn once: first those for testing, then the training images."""
    bunch = require_package("sklearn.datasets").load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(derive_seed(0, "digits")))
    images = (torch.from_numpy(bunch.data).float() / 16)[order]
    labels = torch.from_numpy(bunch.target).long()[order]
    rest = slice(TEST_IMAGES, TEST_IMAGES + train_images)
    return Digits(images[rest], labels[rest], images[:TEST_IMAGES], labels[:TEST_IMAGES])


def make_network(
    norm: str, *, seed: int, width: int = 100, layers: int = 3, activation: str = "sigmoid", order: str = "before"
) -> nn.Sequential:
    """Return a network of `layers` hidden layers, each Linear, norm and activation in the order asked for.

    The same seed gives the same linear maps whatever the norm. Xavier initialization, biases 0.

    Args:
        norm: a key of `HIDDEN_NORMS`.
        seed: of the initialization.
        width: of each hidden layer.
        layers: hidden layers.
        activation: a key of `ACTIVATIONS`.
        order: the norm stands ``before`` or ``after`` the activation.
    """
    if norm not in HIDDEN_NORMS:
        raise StudyError(f"norm must be one of {join_words(list(HIDDEN_NORMS))}, but is {norm!r}")
    parts: list[nn.Module] = []
    sizes = [64, *[width] * layers]
    for fan_in, fan_out in itertools.pairwise(sizes):
        pair = [HIDDEN_NORMS[norm](fan_out), ACTIVATIONS[activation]()]
        parts += [nn.Linear(fan_in, fan_out), *(pair if order == "before" else pair[::-1])]
    network = nn.Sequential(*parts, nn.Linear(width, CLASSES))
    for index, module in enumerate(m for m in network if isinstance(m, nn.Linear)):
        generator = torch.Generator().manual_seed(derive_seed(seed, "digits network", index))
        nn.init.xavier_normal_(module.weight, generator=generator)
        nn.init.zeros_(module.bias)
    return network


def train_digits(
    network: nn.Module,
    data: Digits,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    watch: Callable[[int, float], bool] | None = None,
) -> list[float]:
    """Train by plain stochastic gradient descent and return every step's loss; a loss that is not finite ends it.

    Args:
        network: is trained.
        data: its training part is used.
        steps: at most.
        batch: images of a step, drawn with replacement by seed and step.
        lr: learning rate, constant.
        seed: of the batches.
        watch: called after each step with its number, counted from 1, and its loss; True ends the training.
    """
    losses = []
    parameters = list(network.parameters())
    for step in range(1, steps + 1):
        generator = torch.Generator().manual_seed(derive_seed(seed, "digits batch", step))
        images = torch.randint(len(data.train), (batch,), generator=generator)
        network.train()
        loss = F.cross_entropy(network(data.train[images]), data.train_labels[images])
        gradients = torch.autograd.grad(loss, parameters)
        losses.append(loss.item())
        if not loss.isfinite():
            break
        with torch.no_grad():
            torch._foreach_add_([*parameters], gradients, alpha=-lr)
        if watch is not None and watch(step, losses[-1]):
            break
    return losses


def train_watched(
    options: DigitsOptions, network: nn.Module, seed: int, *, lr: float, target: float = math.inf
) -> tuple[list[int], list[float], list[float]]:
    """Train until the test accuracy reaches a target or to the last step.

    Returns:
        The steps of the looks at the accuracy, the first before the training; the accuracies; every step's loss.
    """
    data = digits()
    steps, curve = [0], [accuracy(network, data.test, data.test_labels)]

    def look(step: int, _: float) -> bool:
        if step % options.every == 0 or step == options.steps:
            steps.append(step)
            curve.append(accuracy(network, data.test, data.test_labels))
        return curve[-1] >= target

    losses = train_digits(network, data, steps=options.steps, batch=options.batch, lr=lr, seed=seed, watch=look)
    return steps, curve, losses


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that the network, in evaluation mode, labels correctly."""
    network.eval()
    return (network(images).argmax(-1) == labels).float().mean().item()


@contextlib.contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Put the network in training mode without a forward pass moving the running statistics of its BatchNorms."""
    network.train()
    momenta = {module: module.momentum for module in network.modules() if isinstance(module, nn.BatchNorm1d)}
    for module in momenta:
        module.momentum = 0.0
    try:
        yield
    finally:
        for module, momentum in momenta.items():
            module.momentum = momentum
