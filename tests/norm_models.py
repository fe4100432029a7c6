"""Norms as models write them, and small models that hold them."""

import torch
from torch import nn


def rms(x, eps):
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


class Llama(nn.Module):
    """Rounds before the weight."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        return self.weight * rms(hidden_states, self.variance_epsilon).to(hidden_states.dtype)


class Gemma(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        return (rms(x, self.eps) * (1.0 + self.weight.float())).type_as(x)


class L2(nn.Module):
    """Takes rows of any size, and has no weight."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return rms(x, self.eps).type_as(x)


class ChannelsFirst(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Frozen(nn.Module):
    def __init__(self, size):
        super().__init__()
        for name, value in (("weight", 1.5), ("bias", 0.5), ("running_mean", 0.25), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((size,), value))

    def forward(self, x):
        w, b, m, v = (t.reshape(1, -1, 1, 1) for t in (self.weight, self.bias, self.running_mean, self.running_var))
        scale = w * (v + 1e-5).rsqrt()
        return x * scale + (b - m * scale)


class Residual(nn.Module):
    """A norm whose result is added to the stream that it got."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return x + self.norm(x)


class Images(nn.Module):
    """Convolutions with every norm of images."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c, 8, 3, padding=1) for c in (3, 8, 8, 8, 8))
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), ChannelsFirst(8), Frozen(8)]
        )

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).relu()
        return x.mean((2, 3))


def shaken(model, seed=0):
    """The same model with random parameters."""
    torch.manual_seed(seed)
    for tensor in model.parameters():
        tensor.data += 0.3 * torch.randn_like(tensor)
    return model


def rows(kind=Llama, size=17):
    return shaken(nn.Sequential(nn.Linear(size, size), Residual(kind(size)), nn.Linear(size, size), kind(size)))
