"""Private: the reduction patterns as Triton kernels, for GPUs of two makers.

Each function is an operator of the same name. On tensors of the CPU they run in Triton's interpreter alone
(TRITON_INTERPRET=1), which is how they are tested where there is no GPU.
"""

from evenkeel.kernels.triton._channels import channels_backward, channels_forward, update_running
from evenkeel.kernels.triton._columns import (
    column_affine,
    column_affine_out,
    column_moments,
    separate_column_moments,
)
from evenkeel.kernels.triton._images import image_normalize, image_normalize_out
from evenkeel.kernels.triton._rows import rows_backward, rows_forward, rows_inference, rows_out

__all__ = [
    "channels_backward",
    "channels_forward",
    "column_affine",
    "column_affine_out",
    "column_moments",
    "image_normalize",
    "image_normalize_out",
    "rows_backward",
    "rows_forward",
    "rows_inference",
    "rows_out",
    "separate_column_moments",
    "update_running",
]
