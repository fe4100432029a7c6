"""Normalization as functions: torch.nn.functional's signatures, with what torch leaves implicit made explicit."""

from evenkeel.functional._add_norm import (
    add_layer_norm,
    add_layer_norm_reference,
    add_rms_norm,
    add_rms_norm_reference,
)
from evenkeel.functional._batch_norm import batch_norm, batch_norm_reference
from evenkeel.functional._columns import (
    ColumnMoments,
    column_affine,
    column_affine_reference,
    column_moments,
    column_moments_reference,
    finite_column_affine,
    has_infinity,
)
from evenkeel.functional._dyt import dyt, dyt_reference
from evenkeel.functional._gated_rms_norm import gated_rms_norm, gated_rms_norm_reference
from evenkeel.functional._group_norm import group_norm, group_norm_reference
from evenkeel.functional._images import image_moments, image_normalize, image_normalize_reference
from evenkeel.functional._instance_norm import instance_norm, instance_norm_reference
from evenkeel.functional._layer_norm import layer_norm, layer_norm_reference
from evenkeel.functional._normalize import normalize, normalize_reference
from evenkeel.functional._rms_norm import rms_norm, rms_norm_reference
from evenkeel.functional._sync_batch_norm import sync_batch_norm
from evenkeel.kernels import backend_info, kernels_available

__all__ = [
    "ColumnMoments",
    "add_layer_norm",
    "add_layer_norm_reference",
    "add_rms_norm",
    "add_rms_norm_reference",
    "backend_info",
    "batch_norm",
    "batch_norm_reference",
    "column_affine",
    "column_affine_reference",
    "column_moments",
    "column_moments_reference",
    "dyt",
    "dyt_reference",
    "finite_column_affine",
    "gated_rms_norm",
    "gated_rms_norm_reference",
    "group_norm",
    "group_norm_reference",
    "has_infinity",
    "image_moments",
    "image_normalize",
    "image_normalize_reference",
    "instance_norm",
    "instance_norm_reference",
    "kernels_available",
    "layer_norm",
    "layer_norm_reference",
    "normalize",
    "normalize_reference",
    "rms_norm",
    "rms_norm_reference",
    "sync_batch_norm",
]

# TorchScript has no keyword-only options
NO_SCRIPT = "torch.jit.script cannot compile it; use torch.jit.trace, torch.export or torch.compile, or torch.nn's norm"
for _name in __all__:
    if callable(_function := globals()[_name]):
        _function.__script_unsupported = f"{_name}: {NO_SCRIPT}"
