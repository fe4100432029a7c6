"""A checkpoint, judged by its weights and buffers alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._errors import InvalidTypeError, StateError
from evenkeel._options.checkpoints import checkpoint_files
from evenkeel.doctor._report import Report
from evenkeel.doctor.probes import Measurements, averages_in, states_of_weights

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["checkpoint"]

LARGEST = 2**22  # elements of a tensor that may belong to a norm


def checkpoint(source: str | os.PathLike[str] | Mapping[str, Any]) -> Report:
    """Judge the norms of a checkpoint by their weights and statistics.

    Norms are told by their names and shapes: what has running statistics, or a vector as weight.

    Args:
        source: a safetensors file, a directory of such files, or a state dict, which may hold several by name: where
            one is an average of the weights (its name has a part ``ema``, ``swa``, ``avg``, ``average`` or ``shadow``),
            its statistics are compared with the model's.

    Returns:
        The report.

    Raises:
        StateError: there is no such file, it is no safetensors file, or it is damaged.
        InvalidTypeError: it is neither path nor state dict, or the state dict holds something else than tensors.

    Example:
        >>> import torch, evenkeel as ek
        >>> state = torch.nn.BatchNorm1d(4).state_dict()
        >>> state["running_var"][2] = float("nan")
        >>> [(finding.rule, finding.severity) for finding in ek.doctor.checkpoint(state).findings]
        [('statistics-not-finite', 'critical')]
    """
    if isinstance(source, Mapping):
        tensors = dict(named_tensors(source))
        if source and not tensors:
            kinds = {type(value).__name__ for value in source.values()}
            raise InvalidTypeError(
                f"checkpoint: expected tensors by name, but got {', '.join(sorted(kinds))}; pass model.state_dict()"
            )
        subject = "state dict"
    elif not isinstance(source, str | os.PathLike):
        raise InvalidTypeError(
            f"checkpoint: expected a path or a state dict, but got {type(source).__name__}; pass model.state_dict()"
        )
    else:
        path = Path(source)
        files = checkpoint_files(path)
        tensors = {name: tensor for file in files for name, tensor in read_file(file).items()}
        subject = path.name
    states = states_of_weights(tensors)
    notes = (
        () if states else ("No norm was told among the tensors, by names and shapes; examine(model, batch) sees more.",)
    )
    measured = Measurements(norms=tuple(states), averages=averages_in(tensors, states))
    return Report.of(f"{subject}, {len(tensors)} tensors", measured, notes)


def named_tensors(source: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state dict, or of several in a dict, by their full names."""
    for name, value in source.items():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping):
            yield from named_tensors(value, f"{prefix}{name}.")


def read_file(path: Path) -> dict[str, Tensor]:
    """Read the vectors of a safetensors file; matrices stay on the disk."""
    import safetensors

    found: dict[str, Tensor] = {}
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                shape = file.get_slice(name).get_shape()
                if sum(size > 1 for size in shape) <= 1 and max([1, *shape]) <= LARGEST:
                    found[name] = file.get_tensor(name)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise StateError(f"checkpoint: {path} cannot be read: {error}; is it whole?") from error
    return found
