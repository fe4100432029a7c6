"""Private: training in the lab: the text, its batches, the steps, checkpoints, and the cost of a step."""

from evenkeel.lab.training._checkpoint import load_checkpoint, save_checkpoint
from evenkeel.lab.training._corpus import Corpus
from evenkeel.lab.training._cost import (
    both_passes,
    measure_cost,
    measure_in_turn,
    norm_calls,
    seconds_in_turn,
    training_step,
)
from evenkeel.lab.training._layout import frequency_loss
from evenkeel.lab.training._steps import (
    autocast,
    check_device,
    even_windows,
    loss_backward,
    make_optimizer,
    sample_windows,
    validation_loss,
)
from evenkeel.lab.training._student import Estimate, Measurement, mean_of, measured, t95
from evenkeel.lab.training._text import (
    is_laid_out_text,
    laid_out_before,
    load_corpus,
    locate_text,
)

__all__ = [
    "Corpus",
    "Estimate",
    "Measurement",
    "autocast",
    "both_passes",
    "check_device",
    "even_windows",
    "frequency_loss",
    "is_laid_out_text",
    "laid_out_before",
    "load_checkpoint",
    "load_corpus",
    "locate_text",
    "loss_backward",
    "make_optimizer",
    "mean_of",
    "measure_cost",
    "measure_in_turn",
    "measured",
    "norm_calls",
    "sample_windows",
    "save_checkpoint",
    "seconds_in_turn",
    "t95",
    "training_step",
    "validation_loss",
]
