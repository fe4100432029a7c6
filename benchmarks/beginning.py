"""Ctrl-C in a benchmark: a line and 130, from before torch is imported, which takes seconds, to the end.

As `evenkeel.cli.beginning` does it for the program, which cannot be imported without torch by any other.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 130


def quit_at_once(number: int, frame: FrameType | None) -> None:
    """End the process. An exception in the middle of an import would be told as a broken package."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def begin() -> None:
    """Let Ctrl-C end the process at once while it imports; one that was told to ignore it goes on ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, quit_at_once)


def carry_out(main: Callable[[], int | None]) -> None:
    """Run a program and leave with its status; from here on Ctrl-C is an exception, which the program may meet."""
    if signal.getsignal(signal.SIGINT) is quit_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
