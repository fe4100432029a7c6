"""The only file that knows several backends exist: it says which there are, and whether one runs a call.

The operators are theirs in common: torch's dispatcher finds the kernels by the device of the tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from evenkeel._errors import BackendError, InvalidArgumentError
from evenkeel.kernels import _cpu, _triton

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from evenkeel._spec import NormSpec


class Backend(NamedTuple):
    """One backend of compiled kernels.

    Attributes:
        supports: (pattern, spec, tensors) -> "" or the reason why it does not take this call.
        availability: () -> "available: ..." or why it cannot run here.
        facts: () -> how it was built and what it uses, for people.
        automatic: whether "auto" asks it; otherwise it runs where it is asked for by name alone.
    """

    supports: Callable[[str, NormSpec | None, tuple[Tensor | None, ...]], str]
    availability: Callable[[], str]
    facts: Callable[[], dict[str, str]]
    automatic: bool = True


# in the order in which "auto" asks them
BACKENDS = {
    "cpu": Backend(_cpu.supports, _cpu.availability, _cpu.facts),
    "triton": Backend(_triton.supports, _triton.availability, _triton.facts, automatic=_triton.MEASURED),
}
NAMES = ("auto", "reference", *BACKENDS)


def runs_kernel(pattern: str, backend: str, spec: NormSpec | None, *tensors: Tensor | None) -> bool:
    """Whether a backend's kernels run a reduction pattern with a spec on these tensors, or else the reference.

    Raises:
        InvalidArgumentError: an unknown backend.
        BackendError: the backend was asked for by name and cannot run this.
    """
    if backend == "auto":
        for one in BACKENDS.values():
            refused = not one.automatic or one.supports(pattern, spec, tensors)
            if not refused:
                return True
        return False
    if backend not in NAMES:
        raise InvalidArgumentError(f"backend must be one of {', '.join(NAMES)}, but got {backend!r}")
    if backend == "reference":
        return False
    if reason := BACKENDS[backend].supports(pattern, spec, tensors):
        raise BackendError(f"backend={backend!r} cannot run this call: {reason}; use backend='auto' or 'reference'")
    return True


def kernels_available() -> dict[str, str]:
    """Say for each backend whether it can run here: "available", or the reason why not.

    Returns:
        A dictionary from backend name to "available ..." or a reason.

    Example:
        >>> import evenkeel as ek
        >>> ek.kernels_available()["reference"]
        'available: plain PyTorch, any device and floating dtype'
    """
    reference = {"reference": "available: plain PyTorch, any device and floating dtype"}
    return reference | {name: backend.availability() for name, backend in BACKENDS.items()}


def backend_info() -> dict[str, str]:
    """Facts about the compiled extension: how it was built, what it chose for this processor, its caches and memory.

    Returns:
        A dictionary of facts; empty when the extension is not installed.

    Example:
        >>> import evenkeel as ek
        >>> sorted(ek.functional.backend_info())[:2]
        ['caches', 'compiler']
    """
    facts: dict[str, Any] = {}
    for backend in BACKENDS.values():
        facts |= backend.facts()
    return facts
