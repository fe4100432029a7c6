"""Late import of the packages that only reports need."""

import importlib
from typing import Any

from evenkeel._errors import EvenkeelError


def require(module: str) -> Any:
    """Import a module of the `report` extra, or raise an EvenkeelError that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise EvenkeelError(
            f"a report needs the package {package}, which is not installed; run: pip install 'evenkeel[report]'"
        ) from error
