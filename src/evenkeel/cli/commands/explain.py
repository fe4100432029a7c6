"""`evenkeel explain`: every step of a normalization on your own numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel._errors import EvenkeelError, InvalidArgumentError, InvalidInputError
from evenkeel._options.axes import (
    check_group,
    check_mask,
    check_parameter,
    check_statistic,
    check_upstream,
    sharing_of,
)
from evenkeel._options.explain import (
    DTYPE_NAMES,
    EPS_MODES,
    FORMATS,
    NORM_KEYS,
    OF_NUMBERS,
    TABLES,
    check_ends,
    check_given,
    check_numbers,
    check_spread,
)
from evenkeel._options.names import nearest
from evenkeel._options.numbers import is_number, typed_cells
from evenkeel.cli.modules import check_factory, check_module
from evenkeel.cli.options import (
    INPUT,
    OUTPUT,
    Force,
    Html,
    Json,
    Open,
    check_output,
    choice,
    flag,
    option,
    option_names,
    path_option,
)
from evenkeel.cli.output import Output

__all__ = ["explain"]

NORM, PARAMETERS, GRADIENTS, MODEL = "Norm", "Parameters and statistics", "Gradients", "A layer of a model"


def parse_numbers_option(text: str) -> str:
    """Return typed numbers as they are, if that is what they are."""
    try:
        typed_cells(text, "it")
    except EvenkeelError as error:
        raise typer.BadParameter(str(error).removeprefix("explain: ")) from error
    return text


def parse_axes(text: str) -> list[int]:
    """Return the axes of --axis."""
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise typer.BadParameter(f"expected whole numbers such as -1 or 1,2, but got {text!r}") from error


def numbers(text: str, panel: str = PARAMETERS) -> Any:
    """Return an option of numbers."""
    return option(text, panel=panel, metavar="<numbers>", parser=parse_numbers_option)


def explain(
    context: typer.Context,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            help="Numbers (rows separated by ';', or nested lists), - to read them from standard input, or with "
            "--layer the model as package.module:factory.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        path_option("Numbers from .npy, .npz, .csv, .json, .safetensors, .parquet, .feather or an image.", panel=INPUT),
    ] = None,
    key: Annotated[str | None, option("Which tensor, or columns, of a file that holds several.", panel=INPUT)] = None,
    dtype: Annotated[str | None, choice("Dtype to compute in", DTYPE_NAMES, panel=INPUT)] = None,
    norm: Annotated[str | None, choice("What to explain", NORM_KEYS, panel=NORM, default="layer")] = None,
    axis: Annotated[
        Any, option("Axes that share statistics, e.g. -1 or 1,2.", panel=NORM, metavar="<axes>", parser=parse_axes)
    ] = None,
    channel_axis: Annotated[int | None, option("Axis of the channels.", panel=NORM)] = None,
    groups: Annotated[int | None, option("Groups of GroupNorm.", panel=NORM)] = None,
    eps: Annotated[float | None, option("ε.", panel=NORM, default="1e-5, of RMSNorm the machine epsilon")] = None,
    eps_mode: Annotated[str | None, choice("Where ε stands", EPS_MODES, panel=NORM, default="inside")] = None,
    correction: Annotated[int | None, option("0 divides by n, 1 by n - 1 (standardize).", panel=NORM)] = None,
    feature_range: Annotated[str | None, numbers("Low and high end (minmax).", NORM)] = None,
    scale: Annotated[float | None, option("What colours are divided by (image).", panel=NORM, default=255)] = None,
    alpha: Annotated[float | None, option("α (dyt).", panel=NORM)] = None,
    mask: Annotated[str | None, numbers("1 where valid, 0 elsewhere.")] = None,
    weight: Annotated[str | None, numbers("γ: numbers, or one for all.")] = None,
    bias: Annotated[str | None, numbers("β: likewise.")] = None,
    weight_offset: Annotated[
        float | None, option("Added to the weight: 1 for the (1 + γ) family.", panel=PARAMETERS)
    ] = None,
    mean: Annotated[str | None, numbers("Given means, one for each group.")] = None,
    variance: Annotated[str | None, numbers("Given variances, likewise.")] = None,
    std: Annotated[str | None, numbers("Given deviations of image channels.")] = None,
    backward: Annotated[bool, flag("--backward", "Go on to the gradients.", GRADIENTS)] = False,
    upstream: Annotated[
        str | None, numbers("Upstream gradient. Default: fixed pseudo-random numbers.", GRADIENTS)
    ] = None,
    layer: Annotated[str | None, option("Explain this layer of a model.", panel=MODEL, metavar="<name>")] = None,
    input_file: Annotated[Path | None, path_option("File the model is called with.", "--input", panel=MODEL)] = None,
    call: Annotated[int | None, option("Which call of the layer, counted from 0.", panel=MODEL, default=0)] = None,
    row: Annotated[int, option("Group whose numbers the formulas show.", panel=OUTPUT, default=0)] = 0,
    full: Annotated[bool, flag("--full", "Show every number of every value.", OUTPUT)] = False,
    format_name: Annotated[
        str | None, choice("What to print", FORMATS, "--format", panel=OUTPUT, default="text, or nothing with a page")
    ] = None,
    as_json: Json = False,
    html: Html = None,
    open_page: Open = False,
    force: Force = False,
) -> None:
    """Explain every step of a normalization on your own numbers, forward and backward."""
    options: dict[str, Any] = {name: value for name, value in locals().items() if name in WALK_OPTIONS}
    typed = check_options(values or [], context)
    if upstream is not None and not backward:
        raise InvalidArgumentError("--upstream belongs to --backward; give both")
    if as_json and format_name not in (None, "json"):
        raise InvalidArgumentError(f"--json prints JSON, --format {format_name} something else; give one")
    check_output(html, "--html", force=force)
    format_name = "json" if as_json else format_name
    output = Output(html, open_page, as_json=format_name is not None)
    present = {"format_name": format_name, "full": full, "output": output}
    if layer is not None:
        path = check_model(typed, input_file, file, options)
        from evenkeel.cli.explain import explain_layer

        place = {"layer": layer, "row": row, "call": call or 0, "backward": backward, "upstream": upstream}
        explain_layer(typed[0], path, key, place, **present)
        return
    shape = check_input(typed, input_file, file, key, call)
    check_walk(norm or "layer", options, shape, row)
    from evenkeel.cli.explain import explain_numbers

    explain_numbers(typed, file, key, options, show=row, backward=backward, **present)


# The options of `evenkeel.explain.walk` that are typed as such.
WALK_OPTIONS = (
    *("dtype", "norm", "axis", "channel_axis", "groups", "eps", "eps_mode", "correction", "scale", "alpha"),
    *("weight_offset", *OF_NUMBERS),
)


def check_options(values: list[str], context: typer.Context) -> list[str]:
    """Return the typed words; raise for a word that begins with - and is no number: no such option exists."""
    for word in values:
        if (
            word.startswith("-")
            and word != "-"
            and not all(map(is_number, filter(None, word.replace(";", ",").split(","))))
        ):
            if word[1:2].isdigit() or word[1:2] == ".":
                raise InvalidArgumentError(f"{word!r} is not a number (see: evenkeel explain --help)")
            raise InvalidArgumentError(
                f"No such option: {word}; did you mean {nearest(word, option_names(context))}? "
                "(see: evenkeel explain --help)"
            )
    return values


def check_walk(norm: str, options: dict[str, Any], shape: tuple[int, ...] | None, row: int) -> None:
    """Raise for options that the norm does not take, and for what they or the group to show cannot be."""
    beside = ("dtype", "norm", "upstream")
    given = {name: value for name, value in options.items() if value is not None and name not in beside}
    check_given(norm, given)
    check_numbers(given)
    typed = {name: typed_cells(text) for name, text in options.items() if name in OF_NUMBERS and text is not None}
    for name in ("variance", "std"):
        if name in typed:
            check_spread(name, min(typed[name][0]))
    if "feature_range" in typed:
        check_ends(typed["feature_range"][0])
    if shape is not None:
        check_shapes(norm, given, {name: found for name, (_, found) in typed.items()}, shape, row)


def check_shapes(
    norm: str, given: dict[str, Any], typed: dict[str, tuple[int, ...]], shape: tuple[int, ...], row: int
) -> None:
    """Raise where the shapes of typed numbers, or the group to show, do not go with the input's shape."""
    usual = TABLES["norms"][norm].get("defaults", {}).get("mean", ())
    sharing = sharing_of(norm, shape, given, math.prod(typed.get("mean", (len(usual),))))
    check_group(row, sharing)
    for name, found in typed.items():
        size = math.prod(found)
        if name in ("weight", "bias"):
            check_parameter(name, found, sharing)
        elif name in ("mean", "variance", "std"):
            check_statistic(name, size, norm, sharing)
        elif name != "feature_range" and found != (math.prod(shape),):  # as many in a row take the input's shape
            check_mask(found, shape, sharing) if name == "mask" else check_upstream(found, shape)


def check_model(values: list[str], input_file: Path | None, file: Path | None, options: dict[str, Any]) -> Path:
    """Return the file that a model is called with; raise where what was typed does not go with --layer."""
    if input_file is not None and file is not None:
        raise InvalidArgumentError(f"give the model's input once, with --input (got {input_file} and {file})")
    if len(values) != 1:
        raise InvalidArgumentError("--layer needs one model: explain package.module:factory --layer NAME --input FILE")
    path = input_file or file
    if path is None:
        raise InvalidArgumentError("--layer needs --input, the file that the model is called with")
    if given := [name for name, value in options.items() if value is not None and name != "upstream"]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidArgumentError(f"{names}: these come from the layer itself; leave them out with --layer")
    check_factory(values[0])
    check_file(path)
    check_module(values[0])
    return path


def check_input(
    values: list[str], input_file: Path | None, file: Path | None, key: str | None, call: int | None
) -> tuple[int, ...] | None:
    """Return the shape of typed numbers; raise where the numbers to explain are missing, given twice or wrong."""
    if input_file is not None:
        raise InvalidArgumentError("--input belongs to --layer; give numbers to explain with --file")
    if call is not None:
        raise InvalidArgumentError("--call belongs to --layer: it chooses one of a layer's calls")
    if file is not None:
        if values:
            raise InvalidArgumentError(f"give numbers or --file, not both (got {values[0]!r} and {file})")
        check_file(file)
        return None
    if key is not None:
        raise InvalidArgumentError("--key belongs to --file: it chooses one of a file's tensors")
    if not values:
        raise InvalidInputError("there is nothing to explain; give numbers, - for standard input, or --file")
    if ":" in values[0]:
        raise InvalidInputError(f"{values[0]!r} names a model; give its layer with --layer and its input with --input")
    return None if values == ["-"] else typed_cells(" ".join(values))[1]


def check_file(path: Path) -> Path:
    """Return the path of a file that is there."""
    if not path.is_file():
        raise InvalidInputError(f"explain: there is no file {path}; check the path")
    return path
