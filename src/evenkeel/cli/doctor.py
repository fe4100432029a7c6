"""The work of `evenkeel doctor`: a checkpoint or a model, judged and shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import typer

from evenkeel._errors import InvalidInputError
from evenkeel._files import path_as_text
from evenkeel.cli import interrupts
from evenkeel.cli.models import build_model, load_object
from evenkeel.cli.output import print_json
from evenkeel.cli.steps import telling_steps
from evenkeel.doctor import checkpoint, examine

if TYPE_CHECKING:
    from evenkeel.cli.output import Output
    from evenkeel.doctor import Report

ILL = 1  # the exit code where something critical stands


@interrupts.raising()
def judge_checkpoint(path: Path, output: Output) -> int:
    """Judge a checkpoint and show the report."""
    with telling_steps() as step:
        step(f"reading {path_as_text(path)}")
        report = checkpoint(path)
    return present(report, output)


@interrupts.raising()
def judge_model(name: str, path: Path, loss: str | None, statistics: str | None, output: Output) -> int:
    """Judge the model that a factory builds, on the arrays of a file."""
    with telling_steps() as step:
        step(f"building {name}")
        model = build_model(name)
        function = None if loss is None else load_object(loss)
        fitted = None if statistics is None else read_statistics(statistics)
        batch = read_batch(path, model)
        step(f"examining {name}")
        report = examine(model, batch, loss=function, statistics=fitted)
    return present(report, output)


def read_statistics(path: str) -> Any:
    """Read the statistics of the data of the fit: those of a file of statistics, or of a scaler."""
    from evenkeel.data import load

    found = load(path, on_mismatch="ignore")
    return getattr(found, "statistics_", found)


def read_batch(path: Path, model: torch.nn.Module) -> Any:
    """Read the model's inputs: an array, or several by the names of its arguments; arr_0, arr_1 … are positional."""
    try:
        arrays = np.load(path, allow_pickle=False)
        found = {"arr_0": arrays} if isinstance(arrays, np.ndarray) else dict(arrays)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInputError(f"--input: {path} cannot be read as .npy or .npz of numbers: {error}") from error
    dtype = next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.float32)
    tensors = {name: torch.from_numpy(array) for name, array in found.items()}
    tensors = {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
    return tuple(tensors.values()) if all(name.startswith("arr_") for name in tensors) else tensors


def present(report: Report, output: Output) -> int:
    """Show a report, and return the exit code."""
    output.write("doctor", report.save)
    if output.as_json:
        print_json(report.to_dict())
    else:
        typer.echo(str(report))
    return 0 if report.ok else ILL
