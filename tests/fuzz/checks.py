"""What every fuzzer agrees on: what a fault is, and which errors are no fault."""

import re

# what torch says where a caller's mistake got past every check
INTERNAL = re.compile(r"INTERNAL ASSERT|report a bug|file an issue|please open an issue|should never happen", re.I)


class Fault(AssertionError):
    """The code under test broke a promise; ``files`` are contents to keep as regression inputs."""

    def __init__(self, message, files=None):
        super().__init__(message)
        self.files = files or {}


def check(condition, message):
    """Raise a `Fault` unless a promise is kept."""
    if not condition:
        raise Fault(message)


def check_error(error, *allowed):
    """Raise a `Fault` unless an error is one of ours, or of the kinds allowed, and one clear line."""
    from evenkeel import EvenkeelError  # here, so that the tests of the driver need not wait for torch

    text, kind = str(error), type(error).__name__
    if not isinstance(error, (EvenkeelError, *allowed)):
        raise Fault(f"{kind} where an EvenkeelError belongs: {text[:300]}") from error
    check(not INTERNAL.search(text), f"{kind} that asks for a bug report: {text[:300]}")
    check("\n" not in text.strip("\n"), f"{kind} of {len(text.splitlines())} lines: {text[:300]!r}")
    check(text.strip(), f"{kind} without a message")
