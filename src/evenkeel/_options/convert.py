"""What is chosen of a conversion by name: where it may round, and what is done."""

from __future__ import annotations

from typing import Literal, get_args

Mode = Literal["exact", "accurate"]
MODES: tuple[str, ...] = get_args(Mode)
# in the order in which they are done; what each does is in convert/_actions.py
ACTIONS = (
    "fold_scaler",
    "fold_batch_norm",
    "to_rms_norm",
    "fold_affine",
    "fuse_activation",
    "fuse_residual_add",
    "swap",
)
DEFAULT_ACTIONS = ("swap",)
