"""`evenkeel doctor`: what is wrong with normalization in a checkpoint or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._options.checkpoints import checkpoint_files
from evenkeel.cli.modules import check_module
from evenkeel.cli.options import INPUT, Force, Html, Json, Open, check_output, option, path_option, statistics_option
from evenkeel.cli.output import Output

__all__ = ["doctor"]

INPUTS = (".npy", ".npz")


def doctor(
    subject: Annotated[
        str,
        typer.Argument(
            help="A .safetensors file, a directory of such, or a model as package.module:factory.", show_default=False
        ),
    ],
    input_file: Annotated[
        Path | None,
        path_option("Inputs of the model: .npy, or .npz by the names of its arguments.", "--input", panel=INPUT),
    ] = None,
    loss: Annotated[
        str | None,
        option(
            "A function from the model's output to a scalar, as package.module:name.",
            panel=INPUT,
            metavar="<name>",
            default="output.loss where there is one",
        ),
    ] = None,
    stats: Annotated[
        str | None, statistics_option("Statistics of the data of the fit, to compare the inputs with.")
    ] = None,
    html: Html = None,
    force: Force = False,
    open_page: Open = False,
    as_json: Json = False,
) -> int:
    """Judge the norms of a checkpoint or a model: verdicts with evidence and remedy; exit code 1 for a critical one."""
    check_output(html, "--html", force=force)
    output = Output(html, open_page, as_json=as_json)
    module, separator, name = subject.partition(":")
    if not (separator and module and name) or Path(subject).exists():
        if input_file is not None or loss is not None or stats is not None:
            raise InvalidArgumentError(
                "--input, --loss and --stats belong to a model: evenkeel doctor package.module:factory"
            )
        if not Path(subject).exists():
            raise InvalidInputError(f"there is no file or directory {subject}; name one, or package.module:factory")
        checkpoint_files(Path(subject))
        from evenkeel.cli.doctor import judge_checkpoint

        return judge_checkpoint(Path(subject), output)
    if input_file is None:
        raise InvalidArgumentError("a model needs --input, the .npy or .npz file that it is called with")
    if input_file.suffix not in INPUTS:
        raise InvalidArgumentError(f"--input must end in {' or '.join(INPUTS)}, but got {input_file}")
    if not input_file.is_file():
        raise InvalidInputError(f"--input: there is no file {input_file}; check the path")
    if loss is not None and not all(loss.partition(":")):
        raise InvalidArgumentError(f"--loss: {loss!r} does not name a function; write package.module:name")
    for typed in (subject, *([] if loss is None else [loss])):
        check_module(typed)
    from evenkeel.cli.doctor import judge_model

    return judge_model(subject, input_file, loss, stats, output)
