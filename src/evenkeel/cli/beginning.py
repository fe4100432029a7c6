"""Ctrl-C from the first moment on; what runs before `begin` ends in a traceback, so hardly anything is imported."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`, which take milliseconds
import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

SIGNALLED = 128  # as shells report a signal, and its number more
INTERRUPTED = SIGNALLED + _signal.SIGINT
LINE = "interrupted"


def quit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the process. An exception would be lost, or told as a broken package, in the middle of an import."""
    try:
        os.write(2, f"{LINE}\n".encode())
    finally:
        os._exit(INTERRUPTED)


def leave(code: int) -> NoReturn:
    """End the process when all is put away; its threads may wait for a store that does not answer."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def begin() -> None:
    """Let Ctrl-C end the process at once, while it parses and imports: there is nothing to put away.

    A process that was told to ignore Ctrl-C, as a shell's background jobs are, goes on ignoring it. When all is done
    and only the interpreter is left to end, which takes torch a while, Ctrl-C is ignored.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        try:
            _signal.signal(_signal.SIGINT, quit_at_once)
        except ValueError:  # not the main thread
            return
        atexit.register(_signal.signal, _signal.SIGINT, _signal.SIG_IGN)
