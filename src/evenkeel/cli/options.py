"""The options that several commands share, each declared once, and the rules that all commands keep."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from evenkeel._errors import EvenkeelError, InvalidArgumentError
from evenkeel._options.formats import format_name, known_endings, without_data
from evenkeel._options.names import check_choice
from evenkeel._options.numbers import COUNT, is_count
from evenkeel._options.patterns import is_pattern, matching_paths
from evenkeel._options.urls import CLIENTS, HTTP, check_url, scheme_of, unknown_scheme, without_scheme
from evenkeel._options.workers import Workers
from evenkeel._packages import check_packages, require_package

# The panels of --help.
INPUT, OUTPUT, RUNNING = "Input", "Output", "Running"
STATISTICS_ENDINGS = (".json", ".safetensors")


def parse_path(value: str) -> Path:
    """Return a path as typed, which an unset variable of a script must not turn into the present directory."""
    if not value:
        raise typer.BadParameter("the path is empty; give one, or leave the option out")
    if scheme_of(value):
        raise typer.BadParameter(f"expected a path of this machine, but got the URL {value}")
    return Path(value)


def parse_source(value: str) -> str:
    """Return what names data: a file or directory that is there, a pattern that may stand for some, or a URL."""
    if scheme_of(value := parse_url(value)):
        return value
    plain = parse_path(value.partition("::")[0])
    if problem := missing_source(plain):
        raise typer.BadParameter(problem)
    if plain.is_file() and format_name(plain.name) is None:
        raise typer.BadParameter(f"{plain}: the name tells no format; it must end in one of {known_endings()}")
    if plain.is_dir():
        formats = [format_name(name) for _, _, names in os.walk(plain) for name in names]
        if not any(formats):
            raise typer.BadParameter(without_data(plain, len(formats)))
    return value


def missing_source(path: Path) -> str:
    """Return what is wrong where there is no such file or directory, or none that matches a pattern."""
    if path.exists():
        return ""
    if not is_pattern(str(path)):
        return f"there is no file or directory {path}"
    return "" if any(matching_paths(str(path))) else f"no file matches {path}"


def parse_url(value: str) -> str:
    """Return a URL of which something is known, or a path."""
    try:
        check_url(value)
    except EvenkeelError as error:
        raise typer.BadParameter(str(error)) from error
    scheme = scheme_of(value)
    if not scheme:
        return without_scheme(value)
    client = CLIENTS.get(scheme, "fsspec")
    check_packages(client)
    if client == "fsspec" and scheme not in require_package(client).available_protocols():
        raise typer.BadParameter(unknown_scheme(scheme))
    return value


def parse_target(value: str) -> str:
    """Return a path to write or a URL, as typed."""
    return value if scheme_of(value := parse_url(value)) else str(parse_path(value))


def parse_statistics(value: str) -> str:
    """Return the path of a file that is there and may hold statistics, or the URL of one."""
    name = parse_target(value)
    if ending_of(name) not in STATISTICS_ENDINGS:
        endings = " or ".join(STATISTICS_ENDINGS)
        raise typer.BadParameter(f"expected a path ending in {endings}, but got {name}; `evenkeel data fit` writes one")
    if not scheme_of(name) and not Path(name).exists():
        raise typer.BadParameter(f"there is no file {name}; `evenkeel data fit` writes one")
    return name


def ending_of(name: str) -> str:
    """Return the ending of a path or URL, .json for example."""
    return PurePath(name.partition("?")[0] if scheme_of(name) else name).suffix


def option(
    text: str,
    *names: str,
    panel: str,
    default: object = None,
    metavar: str | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """Return an option; help names the default, for the value is None, or the command's own, unless typed."""
    text = text if default is None else f"{text} Default: {default}."
    return typer.Option(*names, help=text, show_default=False, rich_help_panel=panel, metavar=metavar, parser=parser)


def flag(name: str, text: str, panel: str) -> Any:
    """Return a flag that is off unless typed."""
    return typer.Option(name, help=text, rich_help_panel=panel)


def path_option(text: str, *names: str, panel: str, default: object = None) -> Any:
    """Return the option of a path."""
    return option(text, *names, panel=panel, default=default, metavar="<path>", parser=parse_path)


def choice(text: str, choices: Collection[str], *names: str, panel: str, default: str | None = None) -> Any:
    """Return an option that takes one of a few names, which help lists."""

    def parse(value: str) -> str:
        try:
            check_choice("", value, choices)
        except EvenkeelError as error:
            raise typer.BadParameter(str(error).removeprefix(": ")) from error
        return value

    text = f"{text}: {', '.join(choices)}."
    return option(text, *names, panel=panel, default=default, metavar="<name>", parser=parse)


def statistics_option(text: str) -> Any:
    """Return --stats."""
    return option(text, "--stats", panel=INPUT, metavar="<path>", parser=parse_statistics)


def parse_threads(value: str) -> int:
    """Return a number of threads."""
    if not (value.isdecimal() and is_count(int(value[:9]))):
        raise typer.BadParameter(f"expected {COUNT}, but got {value!r}")
    return int(value)


def threads_option(default: object) -> Any:
    """Return --threads, whose default depends on the command's work."""
    return option(
        "Processor threads.", "--threads", panel=RUNNING, default=default, metavar="<int>", parser=parse_threads
    )


OutFile = Annotated[
    str,
    option(
        f"File to write: {' or '.join(STATISTICS_ENDINGS)}; or a URL.",
        "--out",
        panel=OUTPUT,
        metavar="<path>",
        parser=parse_target,
    ),
]
Force = Annotated[bool, flag("--force", "Replace what is there already.", OUTPUT)]
Html = Annotated[Path | None, path_option("Page to write.", "--html", panel=OUTPUT)]
Open = Annotated[bool, flag("--open", "Open the page in a browser.", OUTPUT)]
Json = Annotated[bool, flag("--json", "Print one JSON object instead of text.", OUTPUT)]
Storage = Annotated[
    list[str] | None,
    option("Of the store that a URL names, as name=value.", "--storage-option", panel=INPUT, metavar="<option>"),
]
Quiet = Annotated[bool, flag("--quiet", "Show no progress.", RUNNING)]
Resume = Annotated[bool, flag("--resume", "Continue an interrupted run with the same --out.", RUNNING)]


def option_names(context: typer.Context) -> list[str]:
    """Return the options of the command that is being parsed."""
    parameters = context.command.get_params(context)
    return [
        name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts) if name[:1] == "-"
    ]


def examples(*lines: str) -> str:
    """Return the end of a command's help: what a user may type."""
    return "\n".join(["Examples:", *lines])


def split_names(name: str, text: str | None) -> list[str] | None:
    """Return the names that an option lists with commas between them."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InvalidArgumentError(f"{name}: expected names with commas between them, but got {text!r}")
    return names


def check_workers(workers: Workers) -> Workers:
    """Return who does the work; raise where a cluster that is meant does not answer."""
    if workers.engine == "ray":
        check_packages("ray")
        from evenkeel._cluster import check_reachable

        check_reachable(workers.address)
    return workers


def check_output(place: Path | str | None, name: str, *, force: bool, endings: Sequence[str] = ()) -> None:
    """Raise before the work, rather than after it, where a file must not or cannot be written.

    The one rule for overwriting: a file that is there stays, unless --force says otherwise, and a directory stays in
    any case. A device or pipe, such as /dev/stdout, is written to.
    """
    if place is None:
        return
    path, scheme = Path(place), scheme_of(place)
    if scheme in HTTP:
        raise InvalidArgumentError(f"{name}: {place}: web addresses are read, not written; name a store or a path")
    if not scheme and (not path.name or path.is_dir()):
        raise InvalidArgumentError(f"{name}: cannot write {str(path)!r}: it names no file; give one")
    if endings and ending_of(str(place)) not in endings:
        raise InvalidArgumentError(f"{name} must end in {' or '.join(endings)}, but got {place}")
    if scheme:  # whether it is there is asked when the store is reached
        return
    if not path.absolute().parent.is_dir():
        raise InvalidArgumentError(f"{name}: cannot write {path}: there is no directory {path.parent}; make it first")
    if path.is_file() and not force:
        raise InvalidArgumentError(f"{name}: {path} exists already; replace it with --force, or name another file")
