"""Ctrl-C while a command works: one line, which says how to go on, and exit code 130."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager, suppress

from evenkeel.cli.beginning import INTERRUPTED, LINE, quit_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from sys import UnraisableHookArgs


@contextmanager
def raising() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside, so that work is put away and the user hears how to go on."""
    if signal.getsignal(signal.SIGINT) is not quit_at_once:
        yield
        return
    previous, sys.unraisablehook = sys.unraisablehook, refuse_to_lose
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, quit_at_once)
        sys.unraisablehook = previous


def refuse_to_lose(unraisable: UnraisableHookArgs) -> None:
    """End the process where KeyboardInterrupt was raised in a destructor, which cannot pass it on."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        quit_at_once(signal.SIGINT, None)
    sys.__unraisablehook__(unraisable)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what to tell the user of it.

    Args:
        advice: how to go on.
        code: the exit code.
    """

    def __init__(self, advice: str, code: int = INTERRUPTED) -> None:
        super().__init__(advice)
        self.code = code


def find_interrupt(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt that an exception is, or that a package made it of."""
    seen: list[BaseException] = []  # an error that was raised again can be its own cause's cause
    while error is not None and error not in seen and not isinstance(error, KeyboardInterrupt):
        seen.append(error)
        error = error.__cause__ or error.__context__
    return error if isinstance(error, KeyboardInterrupt) else None


@contextmanager
def advising(advise: Callable[[], str]) -> Iterator[None]:
    """Tell the user of an interrupted block how to go on with it; no advice tells nothing."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        interrupt = find_interrupt(error)
        if interrupt is None or not (advice := advise()):
            raise
        raise Interrupted(advice, code_of(interrupt)) from error


def code_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code."""
    return interrupt.code if isinstance(interrupt, Interrupted) else INTERRUPTED


def report(interrupt: KeyboardInterrupt) -> int:
    """Print the one line and return the exit code."""
    advice = str(interrupt)
    with suppress(OSError):
        sys.stderr.write("; ".join([LINE, advice] if advice else [LINE]) + "\n")
    return code_of(interrupt)
