"""The command line: what is typed in `commands/`, a file per command, and beside it a file with its work."""

from __future__ import annotations

from evenkeel.cli.beginning import SIGNALLED, begin, leave

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Whatever a user can get wrong (usage, values, files) ends in one line on stderr; a traceback means a bug.

    Args:
        arguments: the words after the program's name; those of this process by default.

    Returns:
        0, 1 for a critical verdict of the doctor, 2 for wrong usage or input, 130 after Ctrl-C, 1 when the
        reader of our output went away.

    Example:
        >>> from evenkeel.cli import main
        >>> main(["--version"])
        evenkeel 0.1.0
        0
    """
    if arguments is None:
        begin()
    from evenkeel.cli.app import run  # Typer takes a tenth of a second

    code = run(arguments)
    if arguments is None and code > SIGNALLED:
        leave(code)
    return code
