"""Private: the reduction patterns as Triton kernels, for GPUs of two makers.

Each function is an operator of the same name. On tensors of the CPU they run in Triton's interpreter alone
(TRITON_INTERPRET=1), which is how they are tested where there is no GPU.
"""

from evenkeel.kernels.triton._rows import rows_backward, rows_forward, rows_inference, rows_out

__all__ = ["rows_backward", "rows_forward", "rows_inference", "rows_out"]
