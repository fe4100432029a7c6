"""Checkpoints: weights, optimizer state and a few numbers in one file, because two cannot be replaced at once."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from evenkeel._errors import StudyError
from evenkeel._files import replace_file

NUMBERS = "numbers"  # all in one entry: safetensors writes several in an order that changes from process to process


def save_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **numbers: int) -> None:
    """Replace a checkpoint by the present state of model and optimizer, with numbers that say where it was taken."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in moments.items()}
    replace_file(path, safetensors.torch.save(tensors, {NUMBERS: json.dumps(numbers)}))


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **most: int) -> tuple[int, ...]:
    """Restore model and optimizer from a checkpoint, and return its numbers of these names.

    Args:
        path: the file.
        model: gets the weights.
        optimizer: gets its moments.
        **most: the names of the numbers, each with the greatest that it can be; the least is 0.

    Raises:
        StudyError: the checkpoint is damaged or of another model.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            kept = json.loads(file.metadata()[NUMBERS])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        model.load_state_dict(with_prefix(tensors, "model."))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in with_prefix(tensors, "optimizer.").items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor
        check_moments(moments, [p for group in optimizer.param_groups for p in group["params"]])
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        numbers = tuple(int(kept[name]) for name in most)
        if not all(0 <= number <= limit for number, limit in zip(numbers, most.values(), strict=True)):
            raise ValueError(f"{numbers} are out of range")
        return numbers
    except (safetensors.SafetensorError, RuntimeError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise StudyError(
            f"checkpoint {path} is damaged; delete the directory {path.parent} to run this arm again"
        ) from error


def check_moments(moments: dict[int, dict[str, Tensor]], parameters: list[Tensor]) -> None:
    """Raise ValueError unless each state is that of a parameter; the optimizer takes any, and fails at its step."""
    for index, state in moments.items():
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        shape = tuple(parameters[index].shape) if index < len(parameters) else None
        if shapes != {"step": (), "exp_avg": shape, "exp_avg_sq": shape}:
            raise ValueError(f"the optimizer's state {index} has the shapes {shapes}")


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
