"""The parts of every training in the lab: its batches, its optimizer, the backward pass, the validation loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evenkeel._errors import StudyError
from evenkeel._options.study import Compute
from evenkeel.lab.training._corpus import Corpus
from evenkeel.lab.transformer import Transformer, derive_seed, next_token_loss

PLAIN = Compute()


def check_device(compute: Compute) -> None:
    """Raise `StudyError` unless there is the device to compute on."""
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise StudyError("there is no GPU that torch can use (torch.cuda.is_available() is false); choose --device cpu")


def autocast(compute: Compute) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which losses are computed in the precision asked for."""
    if compute.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(compute.device, dtype=torch.bfloat16)


def sample_windows(corpus: Corpus, seed: int, step: int, *, batch: int, context: int) -> Tensor:
    """Return the sequences of a training step, drawn by seed and step alone: (batch, context + 1)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "batch", step))
    starts = torch.randint(len(corpus.train) - context, (batch, 1), generator=generator)
    return corpus.train[starts + torch.arange(context + 1)].long()


def even_windows(corpus: Corpus, count: int, *, context: int) -> Tensor:
    """Return evenly spaced sequences of the validation text, the same for everyone: (count, context + 1)."""
    text = corpus.validation
    starts = torch.linspace(0, len(text) - context - 1, count, dtype=torch.float64).long()[:, None]
    return text[starts + torch.arange(context + 1)].long()


@torch.no_grad()
def validation_loss(
    model: Transformer, corpus: Corpus, *, batches: int, batch: int, context: int, compute: Compute = PLAIN
) -> float:
    """Return the mean loss over evenly spaced batches of the validation text; BatchNorm uses its running statistics."""
    model.eval()
    windows = even_windows(corpus, batches * batch, context=context).to(compute.device)
    with autocast(compute):
        losses = [next_token_loss(model, part) for part in windows.split(batch // compute.accumulate)]
    return torch.stack(losses).mean().item()


def make_optimizer(model: Transformer, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW with weight decay on the matrices of linear maps only."""
    matrices = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    decayed = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in decayed]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)


def loss_backward(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    windows: Tensor,
    *,
    compute: Compute = PLAIN,
    forward: Callable[..., Tensor] | None = None,
) -> float:
    """Compute the gradients of the loss on a batch (batch, context + 1), and return the loss.

    Args:
        model: gets the gradients.
        optimizer: of its parameters.
        windows: the batch.
        compute: how.
        forward: the compiled model; None means the model itself.
    """
    optimizer.zero_grad()
    parts = windows.to(compute.device).chunk(compute.accumulate)
    total = 0.0
    for part in parts:
        with autocast(compute):
            loss = next_token_loss(model if forward is None else forward, part)
        if len(parts) > 1:
            loss = loss / len(parts)
        loss.backward()
        total += loss.item()
    return total
