"""Private: the compiled reduction patterns and their backends. Only ``evenkeel.functional`` imports this package."""

from evenkeel.kernels._backends import backend_info, choose, kernels_available
from evenkeel.kernels._cpu import KERNEL_DTYPES, PLAIN_TYPES, is_pooled
from evenkeel.kernels._rows import fits, rows_backward, rows_forward, rows_inference
from evenkeel.kernels._state import composite_required

__all__ = [
    "KERNEL_DTYPES",
    "PLAIN_TYPES",
    "backend_info",
    "choose",
    "composite_required",
    "fits",
    "is_pooled",
    "kernels_available",
    "rows_backward",
    "rows_forward",
    "rows_inference",
]
