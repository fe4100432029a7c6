"""The `evenkeel` command: its commands, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
import typer.main

import evenkeel
from evenkeel._errors import EvenkeelError
from evenkeel._options.names import nearest
from evenkeel.cli import interrupts
from evenkeel.cli.commands.convert import convert
from evenkeel.cli.commands.data import data
from evenkeel.cli.commands.doctor import doctor
from evenkeel.cli.commands.explain import explain
from evenkeel.cli.commands.info import info
from evenkeel.cli.commands.study import study
from evenkeel.cli.options import examples, option_names

__all__ = ["app", "run"]

# Every command of the program, by its name: a function, or a group of commands. One file of `commands/` each.
COMMANDS: dict[str, Callable[..., Any] | typer.Typer] = {
    "study": study,
    "explain": explain,
    "convert": convert,
    "doctor": doctor,
    "data": data,
    "info": info,
}

EXAMPLES = {
    "explain": examples(
        "evenkeel explain 1 2 3 4 --norm rms --backward --html page.html",
        "evenkeel explain my.model:build --layer blocks.3.norm --input x.npy",
    ),
    "convert": examples(
        "evenkeel convert my.model:build --input x.npz --verify --open",
        "evenkeel convert llama/ --verify --out llama-converted/",
    ),
    "doctor": examples(
        "evenkeel doctor model.safetensors",
        "evenkeel doctor my.model:build --input x.npz --html doctor.html",
    ),
    "info": examples("evenkeel info", "evenkeel info --json"),
}

# Click takes a negative number for an option; this command checks unknown ones itself.
SETTINGS: dict[str, dict[str, Any]] = {"explain": {"ignore_unknown_options": True}}

WRONG_INPUT = 2
CLOSED_PIPE = 1  # Typer's code for a closed pipe

app = typer.Typer(
    name="evenkeel",
    help="Normalization for PyTorch: fast, exact, explained.",
    epilog=examples("evenkeel explain 1 2 3 4", "evenkeel data fit measurements/ --numeric --out stats.json"),
    # A group looks at its own --help before it passes on to a command; Typer converts what is not typed by way of
    # pydantic, which takes as long to import as Typer itself, unless it is False.
    context_settings={"default_map": {"help": False, "data": {"help": False}, "study": {"help": False}}},
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
        app.command(name, epilog=EXAMPLES[name], context_settings=SETTINGS.get(name))(command)


def run(arguments: Sequence[str] | None) -> int:
    """Run a command and return the exit code; see `evenkeel.cli.main`."""
    try:
        result = invoke(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except typer.Exit as end:
        return end.exit_code
    except (Exception, KeyboardInterrupt) as error:
        if interrupt := interrupts.find_interrupt(error):
            return interrupts.report(interrupt)
        if not isinstance(error, (EvenkeelError, typer.TyperException, OSError)):
            raise
        print_error(describe(error))
        return WRONG_INPUT
    return result if isinstance(result, int) else 0


def invoke(arguments: list[str]) -> Any:
    """Parse the words and run what they name, past Typer's own handling of exceptions, which tells less."""
    command = typer.main.get_command(app)
    with command.make_context("evenkeel", arguments) as context:
        return command.invoke(context)


def describe(error: Exception) -> str:
    """Return the line that tells the user about an error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context else ""
        if context and (unknown := getattr(error, "option_name", "")) and hasattr(error, "possibilities"):
            return f"{error.message}; did you mean {nearest(unknown, option_names(context))}?{hint}"
        return error.format_message() + hint
    return str(error)


def print_error(message: str) -> None:
    """Print one line on stderr, whatever the message's layout."""
    typer.echo(f"evenkeel: error: {' '.join(message.split())}", err=True)
