"""Averages of weights: with the statistics that they need, and with those that a copy began with."""

import copy

import torch
from doctor.faults.families import loss_of

from evenkeel import doctor

__all__ = ["averaged", "by_torch", "kept", "with_its_model"]


def forget(average, model):
    """Leave the buffers as they are."""


def copy_buffers(average, model):
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(theirs)


def average_buffers(average, model):
    """As timm's: everything that a state dict holds, whole numbers too."""
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(0.9 * mine + 0.1 * theirs)


def average_floats(average, model):
    """As averages that leave whole numbers out."""
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        if mine.is_floating_point():
            mine.lerp_(theirs, 0.1)


BUFFERS = {"forgotten": forget, "copied": copy_buffers, "averaged": average_buffers, "floats": average_floats}


def train(made, steps, at, buffers, watched=False, lr=1e-2):
    """Train, and average by hand from a copy after some steps on; return the average and the report, if any."""
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=lr, weight_decay=0.0)
    watch, average = None, None
    for step in range(steps):
        if step == at:
            average = copy.deepcopy(made.model)
            if watched:
                watch = doctor.watch(made.model, optimizer, every=10, averaged=average).__enter__()
        x = made.batch(step + 1)
        loss = loss_of(x)(made.model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if average is not None:
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), made.model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
                BUFFERS[buffers](average, made.model)
        if watch is not None:
            watch.step(loss)
    return average, watch


def update(made, average, batches=8):
    """The statistics of the average's own weights, on some batches."""
    torch.optim.swa_utils.update_bn([made.batch(n) for n in range(batches)], average)


def averaged(made, at=1, buffers="forgotten", steps=200, training=False, recomputed=False):
    """One batch through the average."""
    average, _ = train(made, steps, at, buffers)
    if recomputed:
        update(made, average)
    made.model = average
    return made.examine(training=training)


def with_its_model(made, at=1, buffers="forgotten", names=("model", "model_ema"), steps=200, recomputed=False):
    """A checkpoint of both."""
    average, _ = train(made, steps, at, buffers)
    if recomputed:
        update(made, average)
    parts = {names[0]: made.model.state_dict(), names[1]: average.state_dict()}
    return doctor.checkpoint({f"{part}.{name}": t for part, state in parts.items() for name, t in state.items()})


def kept(made, at=0, buffers="forgotten", steps=60, recomputed=False):
    """A training under watch, with its average."""
    average, watch = train(made, steps, at, buffers, watched=True)
    if recomputed:
        update(made, average)
    return watch.report()


def by_torch(made, kind="ema", recomputed=True, checkpoint=False):
    """torch's own averages."""
    swa_utils = torch.optim.swa_utils
    function = swa_utils.get_ema_multi_avg_fn(0.9) if kind == "ema" else None
    average = swa_utils.AveragedModel(made.model, multi_avg_fn=function)
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(120):
        x = made.batch(step + 1)
        loss_of(x)(made.model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if kind == "ema" or step > 90:
            average.update_parameters(made.model)
    if recomputed:
        update(made, average)
    if checkpoint:
        parts = {"model": made.model.state_dict(), "swa_model": average.state_dict()}
        return doctor.checkpoint(parts)
    made.model = average
    return made.examine(training=False)
