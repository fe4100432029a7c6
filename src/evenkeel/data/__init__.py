"""Statistics of data, fitted once, merged without loss, and shipped inside the model."""

import importlib
from typing import TYPE_CHECKING, Any

from evenkeel.data._apply import transform_files
from evenkeel.data._contract import Contract, ContractWarning
from evenkeel.data._distributed import all_merge
from evenkeel.data._drift import DriftLimits, DriftReport, FeatureDrift, compare
from evenkeel.data._files import load, save
from evenkeel.data._fit import FitProgress, fit, fit_statistics
from evenkeel.data._groups import GroupStatistics
from evenkeel.data._images import IMAGE_PRESETS, ImageNormalize, ImagePreset, ImageStatistics
from evenkeel.data._statistics import Statistics, merge_all

if TYPE_CHECKING:
    from evenkeel.data._robust import RobustScaler
    from evenkeel.data._scalers import MaxAbsScaler, MinMaxScaler, StandardScaler

__all__ = [
    "IMAGE_PRESETS",
    "Contract",
    "ContractWarning",
    "DriftLimits",
    "DriftReport",
    "FeatureDrift",
    "FitProgress",
    "GroupStatistics",
    "ImageNormalize",
    "ImagePreset",
    "ImageStatistics",
    "MaxAbsScaler",
    "MinMaxScaler",
    "RobustScaler",
    "StandardScaler",
    "Statistics",
    "all_merge",
    "compare",
    "fit",
    "fit_statistics",
    "load",
    "merge_all",
    "save",
    "transform_files",
]

# These derive from scikit-learn's base classes, which take a second to import and are an extra.
LATE = dict.fromkeys(("MaxAbsScaler", "MinMaxScaler", "StandardScaler"), "evenkeel.data._scalers")
LATE["RobustScaler"] = "evenkeel.data._robust"


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LATE[name]), name)
