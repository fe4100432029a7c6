"""Small models of every family, their data and their training."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from evenkeel import doctor

VOCABULARY, LENGTH, WIDTH = 24, 12, 16
Norm = Callable[[int], nn.Module]
SHIFT = [0]  # of every seed: other weights and other data for the same programs


def layer(width):
    return nn.LayerNorm(width)


def rms(width):
    return nn.RMSNorm(width, eps=1e-6)


def none(width):
    return nn.Identity()


class Mlp(nn.Module):
    """A table: linear layers, each with a norm."""

    def __init__(self, norm=layer, depth=3, activation=nn.ReLU, bias=True, scale=1.0):
        super().__init__()
        widths = [8] + [WIDTH] * depth
        parts = [[nn.Linear(a, b, bias=bias), norm(b), activation()] for a, b in itertools.pairwise(widths)]
        self.body = nn.Sequential(*(part for block in parts for part in block))
        self.head = nn.Linear(WIDTH, 3)
        with torch.no_grad():
            for module in self.body:
                if isinstance(module, nn.Linear):
                    module.weight.mul_(scale)

    def forward(self, x):
        return self.head(self.body(x))


class Cnn(nn.Module):
    """Images: convolutions, each with a norm."""

    def __init__(self, norm=nn.BatchNorm2d, depth=3, bias=False, activation=nn.ReLU, scale=1.0):
        super().__init__()
        widths = [3] + [8] * depth
        pairs = itertools.pairwise(widths)
        parts = [[nn.Conv2d(a, b, 3, padding=1, bias=bias), norm(b), activation()] for a, b in pairs]
        self.body = nn.Sequential(*(part for block in parts for part in block))
        self.head = nn.Linear(8, 3)
        with torch.no_grad():
            for module in self.body:
                if isinstance(module, nn.Conv2d):
                    module.weight.mul_(scale)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Unet(nn.Module):
    """Images to images, with a skip."""

    def __init__(self, norm=lambda width: nn.GroupNorm(4, width), bias=False, scale=1.0):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=bias), norm(8), nn.SiLU())
        self.inner = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=bias), norm(16), nn.SiLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=bias), norm(8), nn.SiLU())
        self.head = nn.Conv2d(16, 3, 1)
        with torch.no_grad():
            for module in (self.down[0], self.inner[0], self.up[0]):
                module.weight.mul_(scale)

    def forward(self, x):
        a = self.down(x)
        return self.head(torch.cat([a, self.up(self.inner(a))], 1)).mean((2, 3))


class Resnet(nn.Module):
    """Images: residual blocks."""

    def __init__(self, norm=nn.BatchNorm2d, depth=3, bias=False):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=bias)
        self.blocks = nn.ModuleList(
            nn.Sequential(norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, bias=bias)) for _ in range(depth)
        )
        self.norm, self.head = norm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x).relu().mean((2, 3)))


class Rnn(nn.Module):
    """Series: a recurrent layer between two norms."""

    def __init__(self, norm=layer, kind=nn.GRU):
        super().__init__()
        self.inside, self.norm1 = nn.Linear(8, WIDTH), norm(WIDTH)
        self.cell, self.norm2, self.head = kind(WIDTH, WIDTH, batch_first=True), norm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.norm2(self.cell(self.norm1(self.inside(x)))[0]).mean(1))


class Block(nn.Module):
    """A transformer block, before or after whose parts a norm stands."""

    def __init__(self, norm, causal, post=False, gain=1.0):
        super().__init__()
        self.norm1, self.norm2, self.causal, self.post, self.gain = norm(WIDTH), norm(WIDTH), causal, post, gain
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def attend(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.mix(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        if self.post:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.feed(x))
        x = self.gain * x + self.attend(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Transformer(nn.Module):
    """Tokens: an encoder, or a decoder that looks back alone."""

    def __init__(self, norm=layer, depth=3, causal=False, post=False, scale=1.0, gain=1.0, shift=0.0):
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(Block(norm, causal, post, gain) for _ in range(depth))
        self.norm, self.head = (nn.Identity() if post else norm(WIDTH)), nn.Linear(WIDTH, VOCABULARY, bias=False)
        with torch.no_grad():
            self.embed.weight.mul_(scale).add_(shift)
            self.places.mul_(scale)

    def forward(self, tokens):
        x = self.embed(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Vit(nn.Module):
    """Images in patches through a transformer."""

    def __init__(self, norm=layer, depth=3, gain=1.0, shift=0.0, scale=1.0):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.places = nn.Parameter(torch.randn(9, WIDTH) * 0.02 * scale + shift)
        self.blocks = nn.ModuleList(Block(norm, causal=False, gain=gain) for _ in range(depth))
        self.norm, self.head = norm(WIDTH), nn.Linear(WIDTH, 3)
        with torch.no_grad():
            self.patch.weight.mul_(scale)
            self.patch.bias.mul_(scale)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Tcn(nn.Module):
    """Series: causal convolutions over (samples, channels, positions), a result for every position."""

    def __init__(self, norm=none, depth=2):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv1d(8, 8, 3) for _ in range(depth))
        self.norms = nn.ModuleList(norm(8) for _ in range(depth))
        self.head = nn.Conv1d(8, 3, 1)

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + norm(convolution(nn.functional.pad(x, (2, 0)))).relu()
        return self.head(x)


def tables(generator, n):
    return torch.randn(n, 8, generator=generator)


def images(generator, n):
    """Noise of a different brightness and contrast in each sample, of mean 0 and deviation 1 over all."""
    bright = torch.randn(n, 1, 1, 1, generator=generator) * 0.6
    return bright + 0.8 * torch.randn(n, 3, 12, 12, generator=generator)


def series(generator, n):
    return torch.randn(n, LENGTH, 8, generator=generator)


def channels(generator, n):
    return torch.randn(n, 8, LENGTH, generator=generator)


def tokens(generator, n):
    """Counting up from a random token, in steps of 1 or 2."""
    start, step = (torch.randint(low, high, (n, 1), generator=generator) for low, high in ((0, VOCABULARY), (1, 3)))
    return (start + step * torch.arange(LENGTH)) % VOCABULARY


DRAWS = {Mlp: tables, Cnn: images, Unet: images, Resnet: images, Vit: images, Rnn: series, Tcn: channels}


def loss_of(batch):
    """The task: the next token, or the sign of the batch's own mean among three classes."""
    if not batch.is_floating_point():
        return lambda y: nn.functional.cross_entropy(y[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten())
    means = batch.float().flatten(1).mean(1)
    labels = (means > means.median()).long() + (batch.float().flatten(1)[:, 0] > 0).long()

    def loss(y):
        y = y.float()
        return nn.functional.cross_entropy(y.mean(2) if y.ndim == 3 and y.shape[1] == 3 else y, labels)

    return loss


@dataclass
class Program:
    """A model with data, which can be trained, changed and looked at."""

    model: nn.Module
    draw: Callable[..., Any]
    rows: int = 32
    seed: int = 0
    change: Callable[[Any], Any] = field(default=lambda x: x)
    dtype: torch.dtype = torch.float32

    def batch(self, number=0):
        generator = torch.Generator().manual_seed(1000 * self.seed + number)
        x = self.change(self.draw(generator, self.rows))
        return x.to(self.dtype) if x.is_floating_point() else x

    def with_model(self, edit):
        edit(self.model)
        return self

    def trained(self, steps=40, lr=3e-3, **options):
        """Train by Adam."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.0, **options)
        for step in range(steps):
            x = self.batch(step + 1)
            loss_of(x)(self.model(x)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return self

    def examine(self, optimizer=None, backward=True, training=None, mask=None):
        if training is not None:
            self.model.train(training)
        x = self.batch()
        made = None if optimizer is None else optimizer(self.model)
        loss = loss_of(x) if backward else None
        return doctor.examine(self.model, x, loss=loss, optimizer=made, mask=mask)

    def checkpoint(self):
        return doctor.checkpoint(self.model.state_dict())

    def watched(self, steps=40, every=10, optimizer=None, lr=3e-3):
        made = optimizer(self.model) if optimizer else torch.optim.AdamW(self.model.parameters(), lr, weight_decay=0)
        with doctor.watch(self.model, made, every=every) as watch:
            for step in range(steps):
                x = self.batch(step + 1)
                loss = loss_of(x)(self.model(x))
                loss.backward()
                made.step()
                watch.step(loss)
                made.zero_grad()
        return watch.report()


def program(kind, seed=0, rows=32, change=None, dtype=torch.float32, **options):
    """A program of a family."""
    seed += SHIFT[0]
    torch.manual_seed(seed)
    model = kind(**options).to(dtype)
    draw = DRAWS.get(kind, tokens)
    return Program(model, draw, rows, seed, change or (lambda x: x), dtype)


def decoder(seed=0, **options):
    return program(Transformer, seed, causal=True, **options)


def encoder(seed=0, **options):
    return program(Transformer, seed, **options)


def norms_of(model):
    """The modules that have a vector as weight, or running statistics."""
    return [
        m
        for m in model.modules()
        if hasattr(m, "running_var") or (getattr(m, "weight", None) is not None and m.weight.ndim == 1)
    ]
