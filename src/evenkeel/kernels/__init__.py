"""Private: the compiled reduction patterns and their backends. Only ``evenkeel.functional`` imports this package."""

from evenkeel.kernels._backends import backend_info, kernels_available, runs_kernel
from evenkeel.kernels._channels import (
    channels_backward,
    channels_forward,
    moves_with_launch,
    normalize_small_channels,
)
from evenkeel.kernels._cpu import KERNEL_DTYPES, PLAIN_TYPES, is_pooled
from evenkeel.kernels._nodes import NEAR_BYTES, nodes
from evenkeel.kernels._rows import normalize_small, rows_backward, rows_forward, rows_inference
from evenkeel.kernels._state import composite_required, constant_when_compiled, is_compiling, unobserved

__all__ = [
    "KERNEL_DTYPES",
    "NEAR_BYTES",
    "PLAIN_TYPES",
    "backend_info",
    "channels_backward",
    "channels_forward",
    "composite_required",
    "constant_when_compiled",
    "is_compiling",
    "is_pooled",
    "kernels_available",
    "moves_with_launch",
    "nodes",
    "normalize_small",
    "normalize_small_channels",
    "rows_backward",
    "rows_forward",
    "rows_inference",
    "runs_kernel",
    "unobserved",
]
