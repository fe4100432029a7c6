"""Normalization modules: drop-in subclasses of torch.nn's, thin over `evenkeel.functional`."""

from torch.nn import LocalResponseNorm

from evenkeel.nn._add_norm import AddLayerNorm, AddRMSNorm
from evenkeel.nn._batch_norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    LazyBatchNorm1d,
    LazyBatchNorm2d,
    LazyBatchNorm3d,
)
from evenkeel.nn._dyt import DyT
from evenkeel.nn._feature_affine import FeatureAffine, PixelNormalize
from evenkeel.nn._gated_rms_norm import GatedRMSNorm
from evenkeel.nn._group_norm import GroupNorm
from evenkeel.nn._instance_norm import (
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LazyInstanceNorm1d,
    LazyInstanceNorm2d,
    LazyInstanceNorm3d,
)
from evenkeel.nn._layer_norm import LayerNorm
from evenkeel.nn._rms_norm import RMSNorm
from evenkeel.nn._sync_batch_norm import SyncBatchNorm

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "DyT",
    "FeatureAffine",
    "GatedRMSNorm",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LocalResponseNorm",
    "PixelNormalize",
    "RMSNorm",
    "SyncBatchNorm",
]
