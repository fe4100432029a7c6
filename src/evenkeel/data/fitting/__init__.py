"""Private: fits on sources of any kind and size, and fitted scalers applied to files."""

from evenkeel.data.fitting._fit import FitProgress, fit, fit_statistics
from evenkeel.data.fitting._transform import transform_files

__all__ = ["FitProgress", "fit", "fit_statistics", "transform_files"]
