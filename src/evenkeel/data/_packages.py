"""The errors of packages that read and write files, turned into ours."""

from __future__ import annotations

import contextlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator

from evenkeel._errors import EvenkeelError, SourceError

# What PyArrow, NumPy, Pillow and the unpackers raise about a broken file.
BROKEN = (
    OSError,
    ValueError,
    LookupError,
    EOFError,
    NotImplementedError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextlib.contextmanager
def reading(label: str) -> Iterator[None]:
    """Turn the libraries' errors about a broken file into a SourceError that names it."""
    try:
        yield
    except EvenkeelError as error:
        if str(error).startswith(label):
            raise
        raise type(error)(f"{label}: {error}") from error
    except BROKEN as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        line = " ".join(reason.split()).partition(". Is this")[0]
        raise SourceError(f"{label}: cannot be read: {line or type(error).__name__}") from error
