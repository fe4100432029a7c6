"""Models that a command line names: package.module:factory."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch

from evenkeel._errors import InvalidInputError


def build_model(name: str) -> torch.nn.Module:
    """Build the model that `package.module:factory` names; modules of the present directory can be imported."""
    module_name, _, factory_name = name.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        factory: Any = importlib.import_module(module_name)
        for part in factory_name.split("."):
            factory = getattr(factory, part)
        model = factory if isinstance(factory, torch.nn.Module) else factory()
    except Exception as error:  # the factory is the user's own code
        raise InvalidInputError(f"cannot build {name}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(f"{name} gave a {type(model).__name__}, not a torch.nn.Module; return the model itself")
    return model
