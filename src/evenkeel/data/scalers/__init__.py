"""Private: scalers with scikit-learn's contract over `Statistics`.

They derive from scikit-learn's base classes, which take a second to import and are an extra: a scaler's module is
imported with the first use of its name.
"""

import importlib
from typing import TYPE_CHECKING, Any

from evenkeel._options.names import SCALERS
from evenkeel.data.scalers._affine import Affine, map_table

if TYPE_CHECKING:
    from evenkeel.data.scalers._base import Scaler
    from evenkeel.data.scalers._range import MaxAbsScaler, MinMaxScaler
    from evenkeel.data.scalers._robust import RobustScaler
    from evenkeel.data.scalers._standard import StandardScaler

__all__ = [
    "SCALERS",
    "Affine",
    "MaxAbsScaler",
    "MinMaxScaler",
    "RobustScaler",
    "Scaler",
    "StandardScaler",
    "map_table",
    "scaler_class",
]

MODULES = {
    "MaxAbsScaler": "_range",
    "MinMaxScaler": "_range",
    "RobustScaler": "_robust",
    "Scaler": "_base",
    "StandardScaler": "_standard",
}


def scaler_class(name: str) -> type["Scaler"]:
    """The scaler of a name, imported if need be."""
    scaler: type[Scaler] = getattr(importlib.import_module(f"{__name__}.{MODULES[name]}"), name)
    return scaler


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return scaler_class(name)
