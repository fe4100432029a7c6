"""The work of `evenkeel convert`: a model is built or read, converted, proved, shown and written."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import typer

from evenkeel._errors import EvenkeelError, InvalidInputError
from evenkeel._files import path_as_text, replace_file
from evenkeel._options.convert import DEFAULT_ACTIONS
from evenkeel.cli import interrupts
from evenkeel.cli.models import build_model
from evenkeel.cli.output import Output, print_json
from evenkeel.cli.steps import telling_steps
from evenkeel.convert import plan

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor, nn

POSITIONAL = "arr_"  # numpy's names of arrays that have none


@interrupts.raising()
def convert_model(
    name: str,
    directory: Path | None,
    input_file: Path | None,
    out: Path | None,
    output: Output,
    *,
    actions: tuple[str, ...],
    mode: Any,
    verify: bool,
) -> None:
    """Convert a model, print the certificate, and write what was asked for."""
    with telling_steps() as step:
        step(f"reading {name}")
        model = build_model(name) if directory is None else read_directory(directory)
        inputs = None if input_file is None else read_inputs(input_file, model)
        following = [name for name in actions if name not in DEFAULT_ACTIONS]
        if inputs is None and (verify or following):
            inputs = random_inputs(model, "--verify" if verify else f"--actions {following[0]}")
        names = model.state_dict().keys()
        planned = plan(model, inputs, actions=actions, mode=mode, progress=step)
        certificate = planned.apply(verify=inputs if verify else None, progress=step)
        if out is not None:
            step(f"writing {path_as_text(out)}")
            write(model, directory, out, names)
    if output.as_json:
        print_json({"source": name} | certificate.to_dict() | {"out": out, "report": output.html})
    else:
        typer.echo(str(certificate))
    if out is not None:
        output.say(f"written to {path_as_text(out)}")
    output.write("certificate", certificate.save)


def write(model: nn.Module, directory: Path | None, out: Path, names: Collection[str]) -> None:
    """Write the weights of a model, or the directory that it came from with its new weights."""
    if directory is None:
        write_weights(model, out)
        return
    from evenkeel.cli.hugging_face import write_directory

    check_names(names, model.state_dict().keys())
    write_directory(model, directory, out)


def check_names(before: Collection[str], after: Collection[str]) -> None:
    """Raise where transformers would not find in a directory what its model looks for."""
    changed = sorted(set(before) ^ set(after))
    if changed:
        raise EvenkeelError(
            f"--out: the actions change which tensors the model has ({changed[0]}), and transformers could not load "
            "them; leave --out out, or choose other --actions"
        )


def read_directory(directory: Path) -> nn.Module:
    """Read a model of transformers."""
    from evenkeel.cli.hugging_face import read_directory as read

    return read(directory)


def random_inputs(model: nn.Module, option: str) -> dict[str, Tensor]:
    """Return random inputs of a model of transformers."""
    if not hasattr(model, "config") or not hasattr(model, "main_input_name"):
        raise InvalidInputError(f"{option} needs inputs of the model; give them with --input x.npz")
    from evenkeel.cli.hugging_face import random_inputs as inputs_of

    return inputs_of(model)


def read_inputs(path: Path, model: nn.Module) -> Any:
    """Return the inputs in a file: by the names of the model's arguments, or in their order.

    Floating numbers get the dtype of the model's parameters, whole ones are int64.
    """
    try:
        arrays = read_arrays(path)
    except Exception as error:  # each format's reader has its own exceptions for what is not that format
        raise InvalidInputError(f"--input: {path} cannot be read as {path.suffix[1:]}: {error}") from error
    if not arrays:
        raise InvalidInputError(f"--input: {path} holds no array")
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    inputs = {name: tensor_of(array, first, f"--input: {name} in {path}") for name, array in arrays.items()}
    if all(name.startswith(POSITIONAL) for name in inputs):
        return tuple(inputs.values())
    parameters = inspect.signature(model.forward).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [name for name in inputs if name not in known]
    if unknown and not any(p.kind == p.VAR_KEYWORD for p in parameters):
        raise InvalidInputError(f"--input: {path} holds {', '.join(unknown)}, but the model takes {', '.join(known)}")
    return inputs


def read_arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of a file by their names."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    with path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        return dict(found) if path.suffix == ".npz" else {f"{POSITIONAL}0": found}


def tensor_of(array: Any, like: Tensor, name: str) -> Tensor:
    """Return an array as a tensor where a model's parameter lies, in its dtype if it is floating."""
    try:
        tensor = torch.as_tensor(array)
    except TypeError as error:
        raise InvalidInputError(f"{name} is no array of numbers (dtype {array.dtype})") from error
    if tensor.is_floating_point():
        return tensor.to(like.device, like.dtype)
    return tensor.to(like.device) if tensor.dtype == torch.bool else tensor.to(like.device, torch.int64)


def write_weights(model: nn.Module, path: Path) -> None:
    """Write a model's tensors; of those that several names share, under the first of them.

    `safetensors.torch.load_model` reads them into a model with the same names.
    """
    from safetensors.torch import save

    kept: dict[Any, str] = {}
    state: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise EvenkeelError(f"cannot write {name}: safetensors hold tensors, but it is a {type(tensor).__name__}")
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        first = kept.setdefault(place, name) if tensor.numel() else name
        if first != name:
            shared[name] = first
        else:
            state[name] = tensor.detach().contiguous().clone()
    replace_file(path, save(state, metadata={"format": "pt"} | shared))
