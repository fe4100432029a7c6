"""The work of `evenkeel explain`: numbers, files and models, explained and shown."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer

from evenkeel._errors import InvalidInputError
from evenkeel._options.explain import OF_NUMBERS
from evenkeel.cli import interrupts
from evenkeel.cli.models import build_model
from evenkeel.explain import (
    parse_numbers,
    print_explanation,
    read_input,
    to_json,
    to_markdown,
    walk,
    walk_layer,
    write_page,
)

if TYPE_CHECKING:
    from evenkeel.cli.output import Output
    from evenkeel.explain import Explanation

AS_TEXT = (".csv", ".tsv")  # tables that explain reads itself, of numbers alone


@interrupts.raising()
def explain_numbers(
    values: list[str],
    file: Path | None,
    key: str | None,
    options: dict[str, Any],
    *,
    show: int,
    backward: bool,
    **presented: Any,
) -> None:
    """Explain a norm on the numbers of a file, standard input or the typed words."""
    tensors = {name: parse_numbers(options[name]) for name in OF_NUMBERS if options[name] is not None}
    x = read_file(file, key) if file is not None else read_words(values)
    options = options | {"norm": options["norm"] or "layer"} | shape_like(tensors, x)
    present(walk(x, **options, show=show, backward=backward), **presented)


def read_file(path: Path, key: str | None) -> torch.Tensor:
    """Return the numbers of a file; of a Parquet, Feather or packed CSV file, the columns that hold numbers."""
    from evenkeel.data.sources import format_of, open_source, other_columns, read_schema

    kind = format_of(path)
    if kind is None or kind.open is not None or path.suffix.lower() in AS_TEXT or not path.is_file():
        return read_input(path, key=key)
    dropped = [] if key else list(other_columns(read_schema(path, kind)))
    source = open_source(path, columns=[name.strip() for name in key.split(",")] if key else "numeric")
    blocks = [block.tensor() for fragment in source.fragments or () for block in fragment.blocks(None)]
    if not sum(map(len, blocks)):
        raise InvalidInputError(f"explain: {path} holds no rows")
    if dropped:
        typer.echo(f"left out, as they hold no numbers: {', '.join(dropped)}", err=True)
    table = torch.cat(blocks)
    return table[:, 0] if table.shape[1] == 1 else table


def read_words(values: list[str]) -> torch.Tensor:
    """Return the numbers of the typed words, or of standard input."""
    if values != ["-"]:
        return parse_numbers(" ".join(values))
    try:
        return parse_numbers(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"standard input is not text: {error}") from error


def shape_like(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the options with a flat mask and upstream gradient of as many numbers in the input's shape."""
    flat = {name: tensors[name] for name in ("mask", "upstream") if name in tensors}
    fits = {name: v for name, v in flat.items() if v.ndim == 1 and v.numel() == math.prod(x.shape)}
    return tensors | {name: value.reshape(x.shape) for name, value in fits.items()}


@interrupts.raising()
def explain_layer(factory: str, path: Path, key: str | None, place: dict[str, Any], **presented: Any) -> None:
    """Explain a layer of the model that a factory builds."""
    upstream = None if place["upstream"] is None else parse_numbers(place["upstream"])
    model = build_model(factory)
    explanation = walk_layer(model, input=read_file(path, key), **place | {"upstream": upstream})
    present(explanation, **presented)


def present(explanation: Explanation, *, format_name: str | None, full: bool, output: Output) -> None:
    """Write an explanation as a page, or print it, or both where a format was asked for."""
    paged = output.write("explain", lambda path: write_page(explanation, path))
    if format_name == "json":
        typer.echo(to_json(explanation, full=full), nl=False)
    elif format_name == "markdown":
        typer.echo(to_markdown(explanation, full=full), nl=False)
    elif format_name == "text" or not paged:
        print_explanation(explanation, full=full)
