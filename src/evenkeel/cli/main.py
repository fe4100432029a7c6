"""The `evenkeel` command: its commands, and what becomes of their errors."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import evenkeel
from evenkeel._errors import EvenkeelError
from evenkeel.cli.data import data
from evenkeel.cli.explain import explain
from evenkeel.cli.info import info
from evenkeel.cli.study import study

__all__ = ["app", "main"]

# Every command of the program, by its name: a function, or a group of commands. One file of this package each.
COMMANDS: dict[str, Callable[..., Any] | typer.Typer] = {"study": study, "explain": explain, "data": data, "info": info}

# Click takes a negative number for an option; this command checks unknown ones itself.
SETTINGS: dict[str, dict[str, Any]] = {"explain": {"ignore_unknown_options": True}}

WRONG_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
CLOSED_PIPE = 1  # Typer's code for a closed pipe

app = typer.Typer(
    name="evenkeel",
    help="Normalization for PyTorch: fast, exact, explained.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Normalization for PyTorch: fast, exact, explained."""
    if version:
        typer.echo(f"evenkeel {evenkeel.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


for name, command in COMMANDS.items():
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name, context_settings=SETTINGS.get(name))(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Whatever a user can get wrong (usage, values, files) ends in one line on stderr; a traceback means a bug.

    Args:
        arguments: the words after the program's name; those of this process by default.

    Returns:
        0, 2 for wrong usage or input, 130 after Ctrl-C, 1 when the reader of our output went away.

    Example:
        >>> from evenkeel.cli import main
        >>> main(["--version"])
        evenkeel 0.1.0
        0
    """
    try:
        result = app(arguments, prog_name="evenkeel", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (EvenkeelError, typer.TyperException, OSError) as error:
        print_error(describe(error))
        return WRONG_INPUT
    return result if isinstance(result, int) else 0


def describe(error: Exception) -> str:
    """Return the line that tells the user about an error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context else ""
        return error.format_message() + hint
    return str(error)


def print_error(message: str) -> None:
    """Print one line on stderr, whatever the message's layout."""
    typer.echo(f"evenkeel: error: {' '.join(message.split())}", err=True)
