"""The options of the experiments on BatchNorm, which train a small network on scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass

from evenkeel._errors import StudyError
from evenkeel._options.experiments._options import Options, require_known

# What `lab/experiments/_digits.py` builds.
ACTIVATION_NAMES = ("sigmoid", "relu")
HIDDEN_NORM_NAMES = ("none", "batch", "layer", "rms")
TEST_IMAGES = 500
MOST_IMAGES = 1297  # for training: all others of the 1797


@dataclass(frozen=True, kw_only=True)
class DigitsOptions(Options):
    """The options that experiments share which watch the accuracy of a network on the digits.

    Attributes:
        steps: of training, at most.
        every: steps between two looks.
        lr: learning rate.
        batch: images of a step.
        width: of each hidden layer.
        layers: hidden layers.
    """

    packages = ("sklearn",)
    steps: int = 300
    every: int = 20
    lr: float = 0.1
    batch: int = 60
    width: int = 100
    layers: int = 3


@dataclass(frozen=True, kw_only=True)
class ConvergenceOptions(DigitsOptions):
    """Options of `batchnorm-convergence`, and those of every training on the digits.

    Attributes:
        lr: the learning rate called x1.
        factors: multiples of it, ascending; 1 among them.
        target: the test accuracy to reach, below 1.
    """

    lr: float = 1.0
    factors: tuple[float, ...] = (1, 5, 30)
    steps: int = 2000
    target: float = 0.9

    def check(self) -> None:
        """Check that the target is an accuracy and the factors contain 1."""
        if self.target >= 1:
            raise StudyError(f"target must be an accuracy below 1, but is {self.target}")
        if 1 not in self.factors or list(self.factors) != sorted(set(self.factors)):
            raise StudyError("factors must ascend and contain 1, for example 1,5,30")


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(Options):
    """Options of `batchnorm-noise`.

    Attributes:
        norms: to compare; those without batch statistics are the control.
        batches: images of a step, ascending, at least 2.
        train_images: a small training set, so that there is something to overfit.
        steps: of training, the same for every batch size.
        lr: learning rate.
        width: of each hidden layer.
        layers: hidden layers.
    """

    packages = ("sklearn",)
    seeds: int = 5
    norms: tuple[str, ...] = ("batch", "layer", "rms", "none")
    batches: tuple[int, ...] = (4, 8, 16, 32, 128)
    train_images: int = 300
    steps: int = 600
    lr: float = 0.1
    width: int = 100
    layers: int = 2

    def check(self) -> None:
        """Check that the norms and the images exist, and that no batch has one image, which has no batch statistics."""
        require_known("norms", self.norms, HIDDEN_NORM_NAMES)
        if self.train_images > MOST_IMAGES:
            raise StudyError(f"train_images must be from 1 to {MOST_IMAGES}, but is {self.train_images}")
        if min(self.batches) < 2:
            raise StudyError("batches must be at least 2; BatchNorm has no statistics for a batch of 1")


@dataclass(frozen=True, kw_only=True)
class ShiftOptions(DigitsOptions):
    """Options of `covariate-shift`, and those of every training on the digits.

    Attributes:
        noise: largest shift, and largest relative change of scale, of the injected noise, in standard deviations.
    """

    steps: int = 400
    lr: float = 0.5
    noise: float = 0.5


@dataclass(frozen=True, kw_only=True)
class OrderOptions(DigitsOptions):
    """Options of `norm-before-activation`, and those of every training on the digits.

    Attributes:
        activations: sigmoid, relu.
    """

    seeds: int = 25
    activations: tuple[str, ...] = ("sigmoid", "relu")

    def check(self) -> None:
        """Check that the activations exist."""
        require_known("activations", self.activations, ACTIVATION_NAMES)
