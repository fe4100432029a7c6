"""The options of the experiments that run the lab's transformer, most of which train it for a moment."""

from __future__ import annotations

from dataclasses import dataclass

from evenkeel._errors import StudyError
from evenkeel._options.arms import find_arm
from evenkeel._options.experiments._options import Options, Trial, require_ascending, require_multiple


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """The options that experiments share which train the lab's transformer; they add arms, depths and learning rates.

    Attributes:
        width: size of the stream.
        heads: attention heads.
        steps: of training.
        batch: sequences of a step.
        context: bytes of a sequence.
    """

    width: int = 48
    heads: int = 2
    steps: int = 60
    batch: int = 8
    context: int = 32

    def check(self) -> None:
        """Check that the heads divide the width."""
        require_multiple("width", self.width, self.heads)


@dataclass(frozen=True, kw_only=True)
class ArmOptions(TrainingOptions):
    """The options of trainings that compare arms at one depth and learning rate.

    Attributes:
        arms: placements and norms to compare.
        depth: blocks.
        lr: learning rate after the warm-up.
    """

    arms: tuple[str, ...] = ("pre-layer",)
    depth: int = 6
    lr: float = 2e-3

    def check(self) -> None:
        """Check that the arms exist."""
        super().check()
        for name in self.arms:
            find_arm(name)

    def trials(self) -> list[Trial]:
        """Return each arm with each seed."""
        return self.grid(arm=self.arms)


@dataclass(frozen=True, kw_only=True)
class GradientOptions(Options):
    """Options of `gradients-at-init`.

    Attributes:
        arms: placements and norms to compare.
        depths: numbers of blocks, at width `width`.
        widths: sizes of the stream, at depth `depth`.
        width: of the sweep over depth.
        depth: of the sweep over width.
        batch: sequences of the one batch.
        context: bytes of a sequence.
    """

    seeds: int = 10
    arms: tuple[str, ...] = ("post-layer", "pre-layer", "peri-layer", "output-only-layer")
    depths: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 96)
    widths: tuple[int, ...] = (32, 64, 128, 256)
    width: int = 128
    depth: int = 8
    batch: int = 4
    context: int = 32

    def check(self) -> None:
        """Check that the arms exist and that there are two depths and two widths, over which exponents are fitted."""
        for name in self.arms:
            find_arm(name)
        if len(set(self.depths)) < 2 or len(set(self.widths)) < 2:
            raise StudyError("depths and widths need two different values each; an exponent is fitted over them")


@dataclass(frozen=True, kw_only=True)
class GrowthOptions(ArmOptions):
    """Options of `residual-growth`: those of every training that compares arms, deepnorm and damped among them."""

    arms: tuple[str, ...] = (
        "none",
        "pre-layer",
        "post-layer",
        "peri-layer",
        "output-only-layer",
        "deepnorm-layer",
        "damped-layer",
    )
    depth: int = 16
    width: int = 64
    lr: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class RateOptions(TrainingOptions):
    """Options of `learning-rate`, and those of every training.

    Attributes:
        arms: placements and norms to compare.
        rates: learning rates, ascending.
        depth: blocks.
    """

    seeds: int = 2
    arms: tuple[str, ...] = ("none", "post-layer", "pre-layer")
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    depth: int = 6
    steps: int = 300

    def check(self) -> None:
        """Check that the arms exist and the rates ascend."""
        super().check()
        for name in self.arms:
            find_arm(name)
        require_ascending("rates", self.rates, example="1e-4,1e-3,1e-2")


@dataclass(frozen=True, kw_only=True)
class WithoutOptions(TrainingOptions):
    """Options of `without-norm`, and those of every training.

    Attributes:
        depths: numbers of blocks, ascending.
        lr: learning rate after the warm-up.
    """

    seeds: int = 2
    depths: tuple[int, ...] = (2, 4, 8, 16, 32)
    lr: float = 2e-3

    def check(self) -> None:
        """Check that the depths ascend."""
        super().check()
        require_ascending("depths", self.depths, example="2,8,32")


@dataclass(frozen=True, kw_only=True)
class CentringOptions(ArmOptions):
    """Options of `centring`: those of every training that compares arms."""

    seeds: int = 8
    arms: tuple[str, ...] = ("pre-layer", "pre-rms")
    width: int = 96
    heads: int = 4
    steps: int = 200
    context: int = 64

    def check(self) -> None:
        """Check that every arm has LayerNorm or RMSNorm."""
        super().check()
        for name in self.arms:
            if find_arm(name).norm not in ("layer", "rms"):
                raise StudyError(f"centring compares LayerNorm with RMSNorm; arm {name} has neither")


@dataclass(frozen=True, kw_only=True)
class BiasOptions(TrainingOptions):
    """Options of `bias-terms`, and those of every training.

    Attributes:
        arm: placement and norm.
        depth: blocks.
        lr: learning rate after the warm-up.
    """

    seeds: int = 12
    arm: str = "pre-layer"
    depth: int = 4
    width: int = 96
    heads: int = 4
    steps: int = 150
    context: int = 64
    lr: float = 2e-3

    def check(self) -> None:
        """Check that the arm exists."""
        super().check()
        find_arm(self.arm)


@dataclass(frozen=True, kw_only=True)
class CostOptions(Options):
    """Options of `cost`.

    Attributes:
        widths: sizes of the stream; multiples of `heads`.
        depth: blocks of the model.
        heads: attention heads.
        batch: sequences of a step.
        context: bytes of a sequence.
        rounds: timings of each contender, in turn; the median counts.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512)
    depth: int = 4
    heads: int = 4
    batch: int = 8
    context: int = 64
    rounds: int = 9

    def check(self) -> None:
        """Check that the heads divide every width."""
        for width in self.widths:
            require_multiple("widths", width, self.heads)
