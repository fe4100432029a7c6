"""Private: training in the lab: the text, its batches, the steps, checkpoints, and the cost of a step."""

from evenkeel.lab.training._checkpoint import load_checkpoint, save_checkpoint
from evenkeel.lab.training._cost import (
    both_passes,
    measure_cost,
    measure_in_turn,
    norm_calls,
    seconds_in_turn,
    training_step,
)
from evenkeel.lab.training._steps import even_windows, loss_backward, make_optimizer, sample_windows, validation_loss
from evenkeel.lab.training._student import t95
from evenkeel.lab.training._text import Corpus, frequency_loss, load_corpus

__all__ = [
    "Corpus",
    "both_passes",
    "even_windows",
    "frequency_loss",
    "load_checkpoint",
    "load_corpus",
    "loss_backward",
    "make_optimizer",
    "measure_cost",
    "measure_in_turn",
    "norm_calls",
    "sample_windows",
    "save_checkpoint",
    "seconds_in_turn",
    "t95",
    "training_step",
    "validation_loss",
]
