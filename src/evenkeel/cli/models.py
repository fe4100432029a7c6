"""Models and functions of the user's own code, by `package.module:name`."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from evenkeel._errors import InvalidInputError
from evenkeel.cli.modules import present_directory

__all__ = ["build_model", "load_object"]


def load_object(name: str) -> Any:
    """Return what `package.module:name` names; modules of the present directory can be imported."""
    module_name, _, path = name.partition(":")
    try:
        with present_directory():
            found: Any = importlib.import_module(module_name)
            for part in path.split("."):
                found = getattr(found, part)
    except Exception as error:  # the module is the user's own code
        raise InvalidInputError(f"cannot load {name}: {type(error).__name__}: {error}") from error
    return found


def build_model(name: str) -> torch.nn.Module:
    """Build the model that `package.module:factory` names, or take the one that stands there."""
    factory = load_object(name)
    try:
        model = factory if isinstance(factory, torch.nn.Module) else factory()
    except Exception as error:  # the factory is the user's own code
        raise InvalidInputError(f"cannot build {name}: {type(error).__name__}: {error}") from error
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(f"{name} gave a {type(model).__name__}, not a torch.nn.Module; return the model itself")
    return model
