"""The options of the experiments that have networks or data of their own."""

from __future__ import annotations

from dataclasses import dataclass

from evenkeel._errors import StudyError
from evenkeel._options.experiments._options import Options, require_known

TABLES = ("wine", "breast_cancer")
CELLS = {"gru": 3, "lstm": 4}  # gates


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """Options of `feature-scaling`.

    Attributes:
        table: wine or breast_cancer, bundled with scikit-learn.
        rates: learning rates; each preparation is compared at the one that suits it best.
        steps: of training, on the whole training part each.
        hidden: units of the hidden layer.
        every: steps between two looks.
    """

    packages = ("sklearn",)
    table: str = "wine"
    rates: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    steps: int = 500
    hidden: int = 16
    every: int = 10

    def check(self) -> None:
        """Check that the table is one of those with unequal scales."""
        require_known("table", [self.table], TABLES)


@dataclass(frozen=True, kw_only=True)
class PaddingOptions(Options):
    """Options of `padding`.

    Attributes:
        lengths: mean lengths of the sequences; every batch is padded to `longest`.
        longest: positions of a batch.
        features: channels.
        batch: sequences.
        mean: of the activations, in their standard deviations; padding is 0.
    """

    lengths: tuple[int, ...] = (64, 56, 48, 40, 32, 24, 16, 8)
    longest: int = 64
    features: int = 32
    batch: int = 64
    mean: float = 1.0

    def check(self) -> None:
        """Check that the lengths fit the batch."""
        if max(self.lengths) > self.longest:
            raise StudyError(f"lengths must be at most longest ({self.longest}), but one is {max(self.lengths)}")


@dataclass(frozen=True, kw_only=True)
class RecurrentOptions(Options):
    """Options of `recurrent`.

    Attributes:
        cells: gru, lstm.
        width: size of the state.
        length: bytes of a training sequence.
        lengths: bytes of the sequences to evaluate on, ascending.
        steps: of training.
        batch: sequences of a step.
        lr: learning rate of Adam.
    """

    cells: tuple[str, ...] = ("gru", "lstm")
    width: int = 64
    length: int = 24
    lengths: tuple[int, ...] = (12, 24, 48, 96)
    steps: int = 250
    batch: int = 32
    lr: float = 5e-3

    def check(self) -> None:
        """Check that the cells exist and that BatchNorm has two sequences."""
        require_known("cells", self.cells, CELLS)
        if self.batch < 2:
            raise StudyError("batch must be at least 2; BatchNorm has no statistics for a batch of 1")
