"""Packages that only some uses need: imported with the first use; what is said where one is missing."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from evenkeel._errors import EvenkeelError

# Module -> who needs it, the package's name, and what pip installs.
NEEDED = {
    "PIL": ("an image needs", "pillow", "'evenkeel[data]'"),
    "datasketches": ("quantiles need", "datasketches", "'evenkeel[data]'"),
    "deltalake": ("a Delta table needs", "deltalake", "'evenkeel[delta]'"),
    "duckdb": ("a query needs", "duckdb", "'evenkeel[sql]'"),
    "fsspec": ("this URL needs", "fsspec", "'evenkeel[stores]'"),
    "jinja2": ("a report needs", "jinja2", "'evenkeel[report]'"),
    "lance": ("a Lance table needs", "pylance", "'evenkeel[lance]'"),
    "markupsafe": ("a report needs", "markupsafe", "'evenkeel[report]'"),
    "plotly": ("a report needs", "plotly", "'evenkeel[report]'"),
    "pyarrow": ("this source needs", "pyarrow", "'evenkeel[data]'"),
    "ray": ("the engine ray needs", "ray", "'evenkeel[ray]'"),
    "sklearn": ("the scalers and scikit-learn's tables need", "scikit-learn >= 1.6", "'evenkeel[data]'"),
    "transformers": ("a Hugging Face model needs", "transformers", "transformers"),
}
REPORT = ("jinja2", "plotly")


def require_package(module: str) -> Any:
    """Import a module that only some uses need.

    Raises:
        EvenkeelError: it is missing; the error names what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(module) from error


def check_packages(*modules: str) -> None:
    """Raise `EvenkeelError` for a missing module, before anything heavy is imported."""
    for module in modules:
        if find_spec(module) is None:
            raise missing(module)


def missing(module: str) -> EvenkeelError:
    """Return the error about a module that is missing."""
    user, package, install = NEEDED[module.partition(".")[0]]
    return EvenkeelError(f"{user} the package {package}, which is not installed; run: pip install {install}")
