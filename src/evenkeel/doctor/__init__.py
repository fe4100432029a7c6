"""What is wrong with normalization in a model, a checkpoint, a training: verdicts with evidence, source and remedy."""

from evenkeel.doctor._callbacks import lightning_callback, transformers_callback
from evenkeel.doctor._checkpoint import checkpoint
from evenkeel.doctor._examine import examine
from evenkeel.doctor._finding import Finding, Reading, Trace
from evenkeel.doctor._report import Report
from evenkeel.doctor._watch import Watch, watch
from evenkeel.doctor.rules import RULES, Rule

__all__ = [
    "RULES",
    "Finding",
    "Reading",
    "Report",
    "Rule",
    "Trace",
    "Watch",
    "checkpoint",
    "examine",
    "lightning_callback",
    "transformers_callback",
    "watch",
]
