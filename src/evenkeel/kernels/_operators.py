"""The compiled operators: one table of them, the library that holds them, and what they return for fake tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evenkeel.kernels import _fakes

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "_native.so"


class Operator(NamedTuple):
    """One operator.

    Attributes:
        pattern: of its reduction.
        fake: its results for fake tensors, unless it takes no such.
        any_layout: it keeps channels-last, in which Inductor computes convolutions: without that a compiled model would
            turn the tensor before and after.
    """

    pattern: str
    fake: Callable[..., Any] | None
    any_layout: bool = False


OPERATORS = {
    "rows_forward": Operator("rows", _fakes.rows_forward),
    "rows_inference": Operator("rows", _fakes.rows_inference),
    "rows_out": Operator("rows", _fakes.nothing),
    "rows_backward": Operator("rows", _fakes.rows_backward),
    "channels_forward": Operator("channels", _fakes.channels_forward, any_layout=True),
    "channels_backward": Operator("channels", _fakes.channels_backward, any_layout=True),
    "update_running": Operator("channels", _fakes.nothing),
    "column_moments": Operator("columns", _fakes.column_moments),
    "separate_column_moments": Operator("columns", _fakes.separate_column_moments),
    "column_affine": Operator("columns", _fakes.column_affine),
    "column_affine_out": Operator("columns", _fakes.nothing),
    "image_normalize": Operator("images", _fakes.image_normalize),
    "image_normalize_out": Operator("images", _fakes.nothing),
    "is_pooled": Operator("", None),
    "simd_level": Operator("", None),
    "refused_setting": Operator("", None),
    "memory_choices": Operator("", None),
}
PATTERNS = tuple(dict.fromkeys(operator.pattern for operator in OPERATORS.values() if operator.pattern))


def load(names: tuple[str, ...] = tuple(OPERATORS)) -> str:
    """Load the library; return "" or the reason why it is missing."""
    if not LIBRARY.exists():
        return "the compiled extension is not installed; reinstall evenkeel with a C++ compiler (g++ or clang) present"
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        return f"the compiled extension could not be loaded ({str(error).splitlines()[0]}); reinstall evenkeel"
    absent = [name for name in names if not hasattr(torch.ops.evenkeel, name)]
    if not absent and not has_argument("rows_forward", "residual"):
        absent = ["rows_forward with a residual"]
    if absent:
        return f"the compiled extension is older than this code (it lacks {', '.join(absent)}); reinstall evenkeel"
    if torch.ops.evenkeel.simd_level() == "none":
        return "this processor has no AVX2, FMA and F16C, or EVENKEEL_SIMD=none asks for plain PyTorch"
    return ""


def has_argument(operator: str, name: str) -> bool:
    """Whether an operator of the library has an argument of this name."""
    arguments = getattr(torch.ops.evenkeel, operator).default._schema.arguments
    return any(argument.name == name for argument in arguments)


def refused_setting() -> str:
    """Say which environment variable the kernels cannot use, and what it must hold; "" if there is none."""
    name, expected = torch.ops.evenkeel.refused_setting()
    return f"{name} must be {expected}, but is {os.environ.get(name, '')!r}" if name else ""


MISSING = load()
REFUSED = "" if MISSING else refused_setting()

if not MISSING:
    for _name, _operator in OPERATORS.items():
        if _operator.fake is not None:
            torch.library.register_fake(f"evenkeel::{_name}", _operator.fake)
        if _operator.any_layout:  # the stable interface of the oldest torch gives no tags
            getattr(torch.ops.evenkeel, _name).default.tags.append(torch.Tag.flexible_layout)
