"""The modules that older pickles name: each is now another name of the package that holds its classes."""

import importlib
import sys

PACKAGES = {
    "_fit": "fitting",
    "_groups": "statistics",
    "_moments": "statistics",
    "_quantiles": "statistics",
    "_robust": "scalers",
    "_scalers": "scalers",
    "_statistics": "statistics",
}


def alias_former_modules() -> None:
    """Enter the former modules' names, so that what was pickled before they became packages can be loaded."""
    for module, package in PACKAGES.items():
        sys.modules[f"evenkeel.data.{module}"] = importlib.import_module(f"evenkeel.data.{package}")
