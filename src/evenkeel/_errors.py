"""The exceptions evenkeel raises: one base, and subclasses that are also the built-in a caller expects."""

__all__ = [
    "BackendError",
    "ContractError",
    "ConversionError",
    "EvenkeelError",
    "InvalidArgumentError",
    "InvalidInputError",
    "InvalidTypeError",
    "SourceError",
    "StateError",
    "StudyError",
]


class EvenkeelError(Exception):
    """Base of every exception that evenkeel raises on purpose.

    A message states what is wrong, what was seen and how to fix it.

    Example:
        >>> import evenkeel as ek, torch
        >>> try:
        ...     ek.functional.layer_norm(torch.ones(2, 3), (4,))
        ... except ek.EvenkeelError as error:
        ...     print(type(error).__name__)
        InvalidInputError
    """

    def __init__(self, message: str = "") -> None:
        """Keep the message in one line, whatever a value in it prints."""
        super().__init__(" ".join(message.split()) if "\n" in message else message)


class InvalidArgumentError(EvenkeelError, ValueError):
    """An option or argument has a value that is never valid, whatever the input."""


class InvalidInputError(EvenkeelError, ValueError, RuntimeError):
    """An input tensor does not fit the other arguments (shape, dtype, device, mask).

    torch raises `ValueError` for some of these and `RuntimeError` for others; this class is both, so code
    written for torch.nn keeps catching it.
    """


class BackendError(EvenkeelError, RuntimeError):
    """The backend that was asked for is missing or cannot run this input."""


class StudyError(EvenkeelError):
    """A study cannot start, continue or be reported: bad text, settings or output directory."""


class InvalidTypeError(EvenkeelError, TypeError):
    """An argument has a type that is never accepted."""


class StateError(EvenkeelError, ValueError):
    """Saved statistics, scalers or modules that cannot be read: truncated, foreign, damaged or of a newer version."""


class ContractError(EvenkeelError, ValueError):
    """Data that does not look like the data the statistics were fitted on: columns, dtype, range or layout."""


class SourceError(EvenkeelError, ValueError):
    """A data source that cannot be found, read or chosen from, or that changed since a fit was interrupted."""


class ConversionError(EvenkeelError, RuntimeError):
    """A model cannot be converted, or what was converted is not what it was; the model is as before."""
