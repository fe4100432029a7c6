"""Writing files so that a reader sees the old content or the new one, never a part of it."""

import contextlib
import os
import secrets
from pathlib import Path

from evenkeel._errors import EvenkeelError


def write_text_atomically(path: str | os.PathLike[str], text: str) -> Path:
    """Write text to a file by way of a temporary file in the same directory and a rename.

    Args:
        path: the file to write; its directory must exist.
        text: the new content, stored as UTF-8.

    Returns:
        The path written.

    Raises:
        EvenkeelError: the file cannot be written; the old content, if any, is untouched.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     write_text_atomically(f"{directory}/note.txt", "kept whole").read_text()
        'kept whole'
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        # "x" with the ordinary mode bits: unlike mkstemp's 0600, the file stays as readable as its neighbours.
        with temporary.open("x", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise EvenkeelError(
            f"cannot write {target}: {reason}; choose a directory that exists, is writable and has free space"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return target
