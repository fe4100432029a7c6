"""evenkeel: normalization for PyTorch, fast, exact, explained."""

from evenkeel import explain, functional, nn
from evenkeel._errors import (
    BackendError,
    EvenkeelError,
    InvalidArgumentError,
    InvalidInputError,
    InvalidTypeError,
    StudyError,
)
from evenkeel._spec import NormSpec
from evenkeel.functional import kernels_available

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "EvenkeelError",
    "InvalidArgumentError",
    "InvalidInputError",
    "InvalidTypeError",
    "NormSpec",
    "StudyError",
    "__version__",
    "explain",
    "functional",
    "kernels_available",
    "nn",
]
