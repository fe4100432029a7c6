"""evenkeel: normalization for PyTorch, fast, exact, explained."""

import os.path
import sys

TYPE_CHECKING = False  # as type checkers know it; typing takes milliseconds, in which Ctrl-C is not ours yet

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "ContractError",
    "ConversionError",
    "EvenkeelError",
    "InvalidArgumentError",
    "InvalidInputError",
    "InvalidTypeError",
    "NormSpec",
    "SourceError",
    "StateError",
    "StudyError",
    "__version__",
    "convert",
    "data",
    "doctor",
    "explain",
    "functional",
    "kernels_available",
    "nn",
]

# The program `evenkeel`, or `python -m evenkeel`, whose --help and errors must not wait seconds for torch. For everyone
# else the package is whole once it is imported, and torch's operators are registered.
_FIRST, *_ = getattr(sys, "argv", None) or [""]  # an embedded interpreter may have none
_PROGRAM = os.path.splitext(os.path.basename(_FIRST))[0] == __name__ or (_FIRST == "-m" and __name__ in sys.orig_argv)

if TYPE_CHECKING or not _PROGRAM:
    from evenkeel import convert, data, doctor, explain, functional, nn
    from evenkeel._errors import (
        BackendError,
        ContractError,
        ConversionError,
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

_PACKAGES = ("convert", "data", "doctor", "explain", "functional", "lab", "nn", "report", "testing")

if not TYPE_CHECKING:  # or type checkers take any name for one of ours

    def __getattr__(name: str) -> object:
        """Import a package with its first use; in the program, every other public name too."""
        import importlib

        if name in _PACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        if name in __all__:
            homes = (importlib.import_module(f"{__name__}.{home}") for home in ("_errors", "_spec", "functional"))
            return next(getattr(home, name) for home in homes if hasattr(home, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
