"""Statistics of data, fitted once, merged without loss, and shipped inside the model."""

from typing import TYPE_CHECKING, Any

from evenkeel.data._contract import Contract, ContractWarning
from evenkeel.data._drift import DriftLimits, DriftReport, FeatureDrift, compare
from evenkeel.data._images import IMAGE_PRESETS, ImageNormalize, ImagePreset
from evenkeel.data._pickles import alias_former_modules
from evenkeel.data._storage import load, save
from evenkeel.data.fitting import FitProgress, fit, fit_statistics, transform_files
from evenkeel.data.scalers import SCALERS, scaler_class
from evenkeel.data.statistics import GroupStatistics, ImageStatistics, Statistics, all_merge, merge_all

if TYPE_CHECKING:
    from evenkeel.data.scalers import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

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

alias_former_modules()


def __getattr__(name: str) -> Any:
    if name not in SCALERS.values():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return scaler_class(name)
