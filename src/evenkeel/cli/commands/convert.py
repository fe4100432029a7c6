"""`evenkeel convert`: the norms of a model swapped for evenkeel's, with a proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._options.convert import ACTIONS, DEFAULT_ACTIONS, MODES
from evenkeel._options.names import check_choice
from evenkeel._packages import check_packages
from evenkeel.cli.modules import check_factory, check_module
from evenkeel.cli.options import (
    INPUT,
    OUTPUT,
    Force,
    Json,
    Open,
    check_output,
    choice,
    flag,
    option,
    path_option,
    split_names,
)
from evenkeel.cli.output import Output

__all__ = ["convert"]

CONVERSION = "Conversion"
INPUTS = (".npz", ".npy", ".safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONFIG, WEIGHTS = "config.json", "*.safetensors"


def convert(
    model: Annotated[
        str,
        typer.Argument(
            help=f"package.module:factory, or the directory of a Hugging Face model: {CONFIG} and {WEIGHTS}.",
            show_default=False,
        ),
    ],
    input_file: Annotated[
        Path | None,
        path_option(
            "Inputs of the model, by their names: .npz, .npy or .safetensors.",
            "--input",
            panel=INPUT,
            default="of a Hugging Face model, random ones that fit its configuration",
        ),
    ] = None,
    actions: Annotated[
        str | None,
        option(f"Comma-separated, of {', '.join(ACTIONS)}.", panel=CONVERSION, default=", ".join(DEFAULT_ACTIONS)),
    ] = None,
    mode: Annotated[
        str,
        choice("Round where the original does, or once, at the end", MODES, panel=CONVERSION, default=MODES[0]),
    ] = MODES[0],
    verify: Annotated[
        bool,
        flag("--verify", "Compare results and gradients with the original, and fail where they differ.", CONVERSION),
    ] = False,
    out: Annotated[
        Path | None, path_option("Weights to write: a .safetensors file, or a directory for a directory.", panel=OUTPUT)
    ] = None,
    report: Annotated[Path | None, path_option("Page of the certificate to write: .html.", panel=OUTPUT)] = None,
    as_json: Json = False,
    open_page: Open = False,
    force: Force = False,
) -> None:
    """Swap the norms of a model for evenkeel's, say what was and was not swapped, and prove it with --verify."""
    named = tuple(dict.fromkeys(split_names("--actions", actions) or DEFAULT_ACTIONS))
    for name in named:
        check_choice("--actions", name, ACTIONS)
    directory = Path(model) if check_model(model) else None
    if input_file is not None:
        check_input(input_file)
    check_output(report, "--report", force=force, endings=(".html",))
    if directory is not None:
        check_packages("transformers")
        check_directory(out, directory, force=force)
    else:
        check_output(out, "--out", force=force, endings=(".safetensors",))
        check_module(model)
    output = Output(report, open_page, as_json=as_json)
    from evenkeel.cli.convert import convert_model

    convert_model(model, directory, input_file, out, output, actions=named, mode=mode, verify=verify)


def check_model(name: str) -> bool:
    """Return whether a word names the directory of a model, rather than a factory; raise where it names neither."""
    path = Path(name)
    if not name or (not path.exists() and ":" in name):
        check_factory(name)
        return False
    if not path.exists():
        raise InvalidInputError(f"there is no directory {name}, and no factory is named; write package.module:factory")
    if path.is_file():
        if path.suffix in PICKLES:
            raise InvalidInputError(refuse_pickle(path))
        raise InvalidInputError(f"{name} is a file; give the directory with its {CONFIG}, or package.module:factory")
    files = sorted(file for file in path.iterdir() if file.is_file())
    if not any(file.match(WEIGHTS) for file in files):
        pickles = [file for file in files if file.suffix in PICKLES]
        if pickles:
            raise InvalidInputError(refuse_pickle(pickles[0]))
        raise InvalidInputError(f"{name} holds no {WEIGHTS}; give the directory of a Hugging Face model")
    if not (path / CONFIG).is_file():
        raise InvalidInputError(f"{name} holds no {CONFIG}; give the directory of a Hugging Face model")
    return True


def refuse_pickle(path: Path) -> str:
    """Say why weights are not read, and how they can be."""
    return (
        f"{path} is of pickles, which can run any code when they are read; if you trust it, write safetensors: "
        "AutoModel.from_pretrained(directory).save_pretrained(other) of transformers does"
    )


def check_input(path: Path) -> None:
    """Raise unless a file of inputs is there."""
    if path.suffix not in INPUTS:
        raise InvalidArgumentError(f"--input must end in {' or '.join(INPUTS)}, but got {path}")
    if not path.is_file():
        raise InvalidInputError(f"--input: there is no file {path}; check the path")


def check_directory(out: Path | None, source: Path, *, force: bool) -> None:
    """Raise where a directory of a model must not or cannot be written."""
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise InvalidArgumentError(f"--out: {out} is a file, but a model's directory is written; name a directory")
    if not out.absolute().parent.is_dir():
        raise InvalidArgumentError(f"--out: cannot write {out}: there is no directory {out.parent}; make it first")
    if out.resolve() == source.resolve():
        raise InvalidArgumentError(f"--out: {out} is the model itself; name another directory")
    if out.is_dir() and any(out.iterdir()):
        if not (out / CONFIG).is_file():
            raise InvalidArgumentError(f"--out: {out} holds other files than a model; name another directory")
        if not force:
            raise InvalidArgumentError(f"--out: {out} exists already; replace it with --force, or name another")
