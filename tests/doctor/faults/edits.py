"""Faults: what is done to a sound program so that it has one."""

import copy
import itertools

import torch
from doctor.faults.families import (
    Cnn,
    norms_of,
    program,
)
from torch import nn

BF16, HALF = torch.bfloat16, torch.float16


def slow(model, lr=1e-4):
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)


def after(made, edit):
    """A program whose model was changed."""
    with torch.no_grad():
        edit(made.model)
    return made


def of_weights(share, value=0.0):
    """Set a share of every norm's weight."""

    def edit(model):
        for norm in norms_of(model):
            norm.weight[: int(share * norm.weight.numel())] = value

    return edit


def matrices_alone(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.ndim > 1], lr=1e-3)


def all_decay(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def strange(part, value):
    def edit(model):
        getattr(norms_of(model)[-1], part)[1] = value

    return edit


def forgotten_statistics(model):
    """As load_state_dict(strict=False) leaves them where the file has none."""
    for norm in norms_of(model):
        norm.reset_running_stats()


def set_momentum(value):
    def edit(model):
        for norm in norms_of(model):
            norm.momentum = value

    return edit


def quiet_layers(model):
    """Most of what goes into a norm carries nothing."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module is not getattr(model, "head", None):
            module.weight[: int(0.75 * len(module.weight))] *= 1e-5


def freeze_norms(model):
    for norm in norms_of(model):
        norm.requires_grad_(False)


def average(made):
    """A moving average of the parameters that leaves the buffers out."""
    copied = copy.deepcopy(made.model)
    made.trained(10)
    with torch.no_grad():
        for mine, theirs in zip(copied.parameters(), made.model.parameters(), strict=True):
            mine.lerp_(theirs, 0.5)
    made.model = copied
    return made


class HandNorm(nn.Module):
    """Written by hand, in the dtype of its input."""

    def __init__(self, width, eps=1e-8, center=True):
        super().__init__()
        self.weight, self.eps, self.center = nn.Parameter(torch.ones(width)), eps, center

    def forward(self, x):
        if self.center:
            x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Twice(nn.Sequential):
    """A norm of a norm."""

    def __init__(self, norm, width):
        super().__init__(norm(width), norm(width))


class WrongAxis(nn.Module):
    """Series through a linear layer and a norm that takes positions for channels, or over the last axis."""

    def __init__(self, first, norm, head=None):
        super().__init__()
        self.first, self.norm, self.head = first, norm, head or nn.LazyLinear(3)

    def forward(self, x):
        return self.head(self.norm(self.first(x)).relu().flatten(1))


def wrong_axis(first, norm, draw_as, seed):
    made = program(draw_as, seed)
    made.model = WrongAxis(first, norm)
    made.model(made.batch())
    return made.examine()


class Pooled(nn.Module):
    """A norm over one position for every sample: after a global pooling."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(self.first(x).mean((2, 3), keepdim=True)).flatten(1))


def pooled(seed, rows):
    made = program(Cnn, seed, rows=rows)
    made.model = Pooled()
    return made.examine()


def constant_result(model):
    """Layers that give constants in most channels."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module is not getattr(model, "head", None):
            module.weight[: int(0.75 * len(module.weight))] = 0.0


def louder(factor):
    def edit(model):
        for module in itertools.islice((m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))), 1):
            module.weight.mul_(factor)

    return edit


def growing(model):
    """Blocks that add ever more to their stream."""
    for number, block in enumerate(model.blocks):
        block.out.weight.mul_(2.0**number)
        block.feed[2].weight.mul_(2.0**number)


def with_padding(made, seed, channels_last=False):
    """Zeros at the end of most rows, whose real elements have another mean."""
    mask = torch.arange(12) < torch.randint(3, 8, (32, 1), generator=torch.Generator().manual_seed(seed))
    shape = mask.unsqueeze(-1) if channels_last else mask.unsqueeze(1)
    made.change = lambda x: (x + 1.0) * shape
    return made.examine(mask=mask)


class Sequence(nn.Module):
    """One convolution over a series, and a norm over all positions."""

    def __init__(self, norm, width=8):
        super().__init__()
        self.first, self.norm, self.head = nn.Conv1d(8, width, 1), norm(width), nn.Conv1d(width, 3, 1)

    def forward(self, x):
        return self.head(self.norm(self.first(x)).relu())


class CausalSum(nn.Module):
    """The mean so far, and a norm over (samples, channels, positions)."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.head = norm(8), nn.Conv1d(8, 3, 1)

    def forward(self, x):
        return self.head(self.norm(x.cumsum(2) / torch.arange(1, 13)))


class TimeNorm(nn.Module):
    """A norm of (samples, positions, features) over the positions."""

    def __init__(self, width, make):
        super().__init__()
        self.inner = make(width)

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


def replaced(made, model):
    made.model = model
    return made


def untracked(kind):
    return lambda width: kind(width, track_running_stats=False)


def scaled(factor, shift=0.0):
    return lambda x: x * factor + shift


def of_scales(spread):
    return lambda x: x * torch.logspace(0, spread, 8)


def constant(columns):
    return lambda x: torch.cat([torch.full_like(x[:, :columns], 2.0), x[:, columns:]], 1)


def moved_data(made, change, training=None):
    """A trained program on other data."""
    made.change = change
    return made.examine(training=training)


def brightness(strength):
    """Another mean in every sample."""
    return lambda x: x * 0.2 + strength * torch.randn(len(x), *(1,) * (x.ndim - 1), generator=fixed())


def fixed():
    return torch.Generator().manual_seed(5)


def with_nan(x):
    other = x.clone()
    other[0, 0, 0] = torch.nan
    return other
