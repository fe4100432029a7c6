"""evenkeel: normalization for PyTorch, fast, exact, explained."""

from evenkeel import data, explain, functional, nn
from evenkeel._errors import (
    BackendError,
    ContractError,
    EvenkeelError,
    InvalidArgumentError,
    InvalidInputError,
    InvalidTypeError,
    SourceError,
    StateError,
    StudyError,
)
from evenkeel._spec import NormSpec
from evenkeel.functional import kernels_available

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "ContractError",
    "EvenkeelError",
    "InvalidArgumentError",
    "InvalidInputError",
    "InvalidTypeError",
    "NormSpec",
    "SourceError",
    "StateError",
    "StudyError",
    "__version__",
    "data",
    "explain",
    "functional",
    "kernels_available",
    "nn",
]
