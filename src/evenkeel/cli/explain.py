"""`evenkeel explain`: every step of a normalization on your own numbers."""

from __future__ import annotations

import importlib
import math
import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from evenkeel._errors import EvenkeelError, InvalidArgumentError, InvalidInputError
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
    from evenkeel.explain import Explanation

__all__ = ["explain"]

FORMATS = ("text", "markdown", "json")
NUMBERS = "<numbers>"


def option(text: str, metavar: str | None = None) -> Any:
    """Return a Typer option without a default of its own."""
    return typer.Option(help=text, show_default=False, metavar=metavar)


def explain(
    values: Annotated[
        list[str] | None,
        typer.Argument(
            help="Numbers (rows separated by ';', or nested lists), - to read them from standard input, or with "
            "--layer the model as package.module:factory.",
            show_default=False,
        ),
    ] = None,
    norm: Annotated[
        str | None, option("layer (default), rms, batch, instance, group, standardize, minmax, image or dyt.")
    ] = None,
    file: Annotated[Path | None, option("Numbers from .npy, .npz, .csv, .json, .safetensors or an image.")] = None,
    key: Annotated[str | None, option("Which tensor of a file that holds several.")] = None,
    axis: Annotated[str | None, option("Axes that share statistics, e.g. -1 or 1,2.", "<axes>")] = None,
    channel_axis: Annotated[int | None, option("Axis of the channels.")] = None,
    groups: Annotated[int | None, option("Groups of GroupNorm.")] = None,
    eps: Annotated[float | None, option("ε; default: 1e-5, of RMSNorm the machine epsilon.")] = None,
    eps_mode: Annotated[str | None, option("inside (default), outside or clamp.")] = None,
    mask: Annotated[str | None, option("1 where valid, 0 elsewhere.", NUMBERS)] = None,
    weight: Annotated[str | None, option("γ: numbers, or one for all.", NUMBERS)] = None,
    bias: Annotated[str | None, option("β: likewise.", NUMBERS)] = None,
    weight_offset: Annotated[float | None, option("Added to the weight: 1 for the (1 + γ) family.")] = None,
    mean: Annotated[str | None, option("Given means, one for each group.", NUMBERS)] = None,
    variance: Annotated[str | None, option("Given variances, likewise.", NUMBERS)] = None,
    std: Annotated[str | None, option("Given deviations of image channels.", NUMBERS)] = None,
    correction: Annotated[int | None, option("0 divides by n, 1 by n - 1 (standardize).")] = None,
    feature_range: Annotated[str | None, option("Low and high end (minmax).", NUMBERS)] = None,
    scale: Annotated[float | None, option("What colours are divided by (image; default: 255).")] = None,
    alpha: Annotated[float | None, option("α (dyt).")] = None,
    dtype: Annotated[str | None, option("float64, float32, bfloat16 or float16.")] = None,
    row: Annotated[int, typer.Option(help="Group whose numbers the formulas show.")] = 0,
    backward: Annotated[bool, typer.Option("--backward", help="Go on to the gradients.")] = False,
    upstream: Annotated[str | None, option("Upstream gradient; default: fixed pseudo-random.", NUMBERS)] = None,
    layer: Annotated[str | None, option("Explain this layer of a model.", "<name>")] = None,
    call: Annotated[int | None, option("Which call of the layer, counted from 0 (default).")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="File the model is called with.", show_default=False)
    ] = None,
    output: Annotated[str, typer.Option("--format", help="text, markdown or json.")] = "text",
    full: Annotated[bool, typer.Option("--full", help="Show every number of every value.")] = False,
    html: Annotated[Path | None, option("Write an interactive page instead.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Explain every step of a normalization on your own numbers, forward and backward.

    evenkeel explain 1 2 3 4 --norm rms --backward --html page.html
    """
    if output not in FORMATS:
        raise InvalidArgumentError(f"--format must be one of {', '.join(FORMATS)}, but got {output!r}")
    numbers = {"mask": mask, "weight": weight, "bias": bias, "mean": mean, "variance": variance, "std": std}
    numbers |= {"feature_range": feature_range, "upstream": upstream}
    options: dict[str, Any] = {name: parse_option(name, text) for name, text in numbers.items()}
    options |= {"axis": parse_axes(axis), "channel_axis": channel_axis, "groups": groups, "eps": eps}
    options |= {"eps_mode": eps_mode, "weight_offset": weight_offset, "correction": correction, "scale": scale}
    options |= {"alpha": alpha, "dtype": dtype, "norm": norm}
    if upstream is not None and not backward:
        raise InvalidArgumentError("--upstream belongs to --backward; give both")
    typed = check_options(values or [])
    if layer is not None:
        if input_file is not None and file is not None:
            raise InvalidArgumentError(f"give the model's input once, with --input (got {input_file} and {file})")
        explanation = explain_layer(typed, layer, input_file or file, key, row, call or 0, backward, options)
    else:
        if input_file is not None:
            raise InvalidArgumentError("--input belongs to --layer; give numbers to explain with --file")
        if call is not None:
            raise InvalidArgumentError("--call belongs to --layer: it chooses one of a layer's calls")
        x = read_numbers(typed, file, key)
        options["norm"] = norm or "layer"
        explanation = walk(x, **shape_like(options, x), show=row, backward=backward)
    present(explanation, output, full, html, open_page)


def check_options(values: list[str]) -> list[str]:
    """Return the typed words; raise for a word that begins with - and is no number: no such option exists."""
    for word in values:
        if word.startswith("-") and word != "-" and not is_number(word):
            numeric = word[1:2].isdigit() or word[1:2] == "."
            kind = f"{word!r} is not a number" if numeric else f"No such option: {word}"
            raise InvalidArgumentError(f"{kind} (see: evenkeel explain --help)")
    return values


def is_number(word: str) -> bool:
    """Return whether a word is a number or several, separated by commas or semicolons."""
    try:
        [float(part) for part in word.replace(";", ",").split(",") if part]
    except ValueError:
        return False
    return True


def read_numbers(values: list[str], file: Path | None, key: str | None) -> torch.Tensor:
    """Return the numbers of --file, standard input or the typed words."""
    if file is not None:
        if values:
            raise InvalidArgumentError(f"give numbers or --file, not both (got {values[0]!r} and {file})")
        return read_input(file, key=key)
    if key is not None:
        raise InvalidArgumentError("--key belongs to --file: it chooses one of a file's tensors")
    if not values:
        raise InvalidInputError("there is nothing to explain; give numbers, - for standard input, or --file")
    if values == ["-"]:
        try:
            return parse_numbers(sys.stdin.read())
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"standard input is not text: {error}") from error
    if ":" in values[0]:
        raise InvalidInputError(f"{values[0]!r} names a model; give its layer with --layer and its input with --input")
    return parse_numbers(" ".join(values))


def parse_option(name: str, text: str | None) -> torch.Tensor | None:
    """Return the numbers of an option."""
    if text is None:
        return None
    try:
        return parse_numbers(text)
    except EvenkeelError as error:
        raise InvalidInputError(f"--{name.replace('_', '-')}: {str(error).removeprefix('explain: ')}") from error


def parse_axes(text: str | None) -> list[int] | None:
    """Return the axes of --axis."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise InvalidArgumentError(f"--axis takes whole numbers such as -1 or 1,2, but got {text!r}") from error


def shape_like(options: dict[str, Any], x: torch.Tensor) -> dict[str, Any]:
    """Return the options with a flat mask and upstream gradient of as many numbers in the input's shape."""
    flat = {name: options[name] for name in ("mask", "upstream") if options[name] is not None}
    fits = {name: v for name, v in flat.items() if v.ndim == 1 and v.numel() == math.prod(x.shape)}
    return options | {name: value.reshape(x.shape) for name, value in fits.items()}


def explain_layer(
    values: list[str],
    layer: str,
    path: Path | None,
    key: str | None,
    row: int,
    call: int,
    backward: bool,
    options: dict[str, Any],
) -> Explanation:
    """Explain a layer of the model that a factory builds."""
    if len(values) != 1:
        raise InvalidArgumentError("--layer needs one model: explain package.module:factory --layer NAME --input FILE")
    if path is None:
        raise InvalidArgumentError("--layer needs --input, the file that the model is called with")
    given = [name for name, value in options.items() if value is not None and name != "upstream"]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidArgumentError(f"{names}: these come from the layer itself; leave them out with --layer")
    model = build_model(values[0])
    x = read_input(path, key=key)
    return walk_layer(model, layer, x, row=row, call=call, backward=backward, upstream=options["upstream"])


def build_model(name: str) -> torch.nn.Module:
    """Build the model that `package.module:factory` names; modules of the present directory can be imported."""
    module_name, separator, factory_name = name.partition(":")
    if not (module_name and separator and factory_name):
        raise InvalidArgumentError(f"{name!r} does not name a model; write package.module:factory")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        factory: Any = importlib.import_module(module_name)
        for part in factory_name.split("."):
            factory = getattr(factory, part)
        model = factory if isinstance(factory, torch.nn.Module) else factory()
    except Exception as error:  # the factory is the user's own code
        raise InvalidInputError(f"cannot build {name}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(f"{name} gave a {type(model).__name__}, not a torch.nn.Module; return the model itself")
    return model


def present(explanation: Explanation, output: str, full: bool, html: Path | None, open_page: bool) -> None:
    """Print an explanation, or write it as a page."""
    if html is not None or open_page:
        target = html if html is not None else Path(tempfile.mkdtemp(prefix="evenkeel-")) / "explain.html"
        written = write_page(explanation, target)
        typer.echo(f"wrote {written}")
        if open_page:
            webbrowser.open(Path(written).resolve().as_uri())
    elif output == "json":
        typer.echo(to_json(explanation, full=full), nl=False)
    elif output == "markdown":
        typer.echo(to_markdown(explanation, full=full), nl=False)
    else:
        print_explanation(explanation, full=full)
