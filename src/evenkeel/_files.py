"""Writing files so that a reader sees the old content or the new one, never a part of it."""

import contextlib
import os
from pathlib import Path

from evenkeel._errors import EvenkeelError, InvalidArgumentError


def write_text_atomically(path: str | os.PathLike[str], text: str) -> Path:
    """Write text to a file by way of a temporary file in the same directory and a rename.

    Args:
        path: the file to write; its directory must exist.
        text: the new content, stored as UTF-8.

    Returns:
        The path written.

    Raises:
        InvalidArgumentError: the path has no name: it is empty, or a root.
        EvenkeelError: the file cannot be written; the old content, if any, is untouched.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     write_text_atomically(f"{directory}/note.txt", "kept whole").read_text()
        'kept whole'
    """
    target = Path(path)
    if not target.name:
        raise InvalidArgumentError(f"cannot write {os.fspath(path)!r}: expected the path of a file")
    try:
        replace_file(target, text.encode())
    except OSError as error:
        raise unwritable(target, error) from error
    return target


def unwritable(path: Path, error: OSError) -> EvenkeelError:
    """Return the error about a file or directory that cannot be written."""
    return EvenkeelError(
        f"cannot write {path}: {reason_of(error)}; choose a directory that exists, is writable and has free space"
    )


def reason_of(error: OSError) -> str:
    """Return what the system says of an error, without the names and numbers that a package adds."""
    return os.strerror(error.errno) if error.errno else str(error)


def path_as_text(path: Path) -> str:
    """Return a path as text that any file or terminal takes: bytes of a name that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode(errors="replace")


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that at every moment either the old or the new content is there, whole.

    A device or pipe, such as /dev/null or /dev/stdout, is written to, not replaced.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        path.write_bytes(data)
        return
    # Always the same name, so that what a killed run leaves goes with the next one.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        # "x" with the ordinary mode bits: unlike mkstemp's 0600, the file stays as readable as its neighbours.
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # the user knows the path, not its temporary name
            error.filename, error.filename2 = str(path), None
        raise


def is_temporary(path: Path) -> bool:
    """Whether a file is what a killed `replace_file` leaves."""
    return path.name.startswith(".") and path.name.endswith(".tmp")
