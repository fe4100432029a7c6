"""Private: the lab's transformer, its norms and placements, and the probes inside it."""

from evenkeel._options.arms import PLACEMENTS, PRESETS, Arm, Placement, arm_names, find_arm
from evenkeel.lab.transformer._model import FEED_FORWARDS, Transformer, derive_seed, next_token_loss
from evenkeel.lab.transformer._norms import NORMS, TokenBatchNorm
from evenkeel.lab.transformer._probes import Probe, residual_statistics
from evenkeel.lab.transformer._styles import norm_styles

__all__ = [
    "FEED_FORWARDS",
    "NORMS",
    "PLACEMENTS",
    "PRESETS",
    "Arm",
    "Placement",
    "Probe",
    "TokenBatchNorm",
    "Transformer",
    "arm_names",
    "derive_seed",
    "find_arm",
    "next_token_loss",
    "norm_styles",
    "residual_statistics",
]
