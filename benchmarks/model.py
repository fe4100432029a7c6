"""One training step of whole models with our norms, with torch's, and with nothing in their place.

The share of a step that norms take is 1 - (step with identities instead of norms) / (step with norms): what a norm
that cost nothing would save. A profiler would miss what norms do to their neighbours' memory.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import evenkeel as ek
from benchmarks.timing import OURS, WITHOUT_NORMS, Call, Case, repeated
from evenkeel.lab import Transformer, find_arm

BATCH, CONTEXT, WIDTH, DEPTH, HEADS = 8, 128, 256, 4, 4
TURN = 3  # steps in a row: alternating single steps find each other's memory and measure the allocator


class Residual(nn.Module):
    """Two 3x3 convolutions with BatchNorm around a shortcut; the first may halve the image."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
            ek.nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            ek.nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), ek.nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.body(x))


def residual_network() -> nn.Module:
    """A ResNet for 32x32 images: three stages of two blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        ek.nn.BatchNorm2d(32),
        nn.ReLU(),
        *(Residual(c, out, stride) for c, out, stride in ((32, 32, 1), (32, 64, 2), (64, 128, 2))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def transformer(arm: str) -> nn.Module:
    """The lab's transformer with the norms and placement of an arm."""
    return Transformer(find_arm(arm), depth=DEPTH, width=WIDTH, heads=HEADS, context=CONTEXT)


def torchs(norm: nn.Module) -> nn.Module:
    """torch's module of the same kind."""
    if isinstance(norm, ek.nn.LayerNorm):
        return nn.LayerNorm(norm.normalized_shape, norm.eps)
    if isinstance(norm, ek.nn.RMSNorm):
        return nn.RMSNorm(norm.normalized_shape, norm.eps)
    return nn.BatchNorm2d(norm.num_features, norm.eps)  # type: ignore[arg-type]


def with_norms(model: nn.Module, replace: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Put something in the place of each of our norms."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, ek.nn.LayerNorm | ek.nn.RMSNorm | ek.nn.BatchNorm2d):
                setattr(parent, name, replace(child))
    return model


def training_step(model: nn.Module, x: Tensor, target: Tensor) -> Call:
    """Return a call that runs forward, backward and an SGD step; so small that values stay finite without norms."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(x)
        nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten()).backward()
        optimizer.step()

    return step


def case(name: str, build: Callable[[], nn.Module], x: Tensor, target: Tensor) -> Case:
    """Return one model three times."""
    owners: dict[str, Callable[[nn.Module], nn.Module]] = {
        OURS: lambda norm: norm,
        "torch": torchs,
        WITHOUT_NORMS: lambda norm: nn.Identity(),
    }
    steps = {owner: training_step(with_norms(build(), replace), x, target) for owner, replace in owners.items()}
    return Case(name=f"training step, {name}", calls={owner: repeated(step, TURN) for owner, step in steps.items()})


def cases() -> Iterator[Case]:
    """Yield the cases."""
    tokens, following = torch.randint(0, 256, (2, BATCH, CONTEXT))
    size = f"depth {DEPTH}, width {WIDTH}, {BATCH}x{CONTEXT} tokens"
    for label, arm in (("LayerNorm", "pre-layer"), ("RMSNorm", "pre-rms")):
        yield case(f"transformer with {label}, {size}", partial(transformer, arm), tokens, following)
    images, classes = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    yield case("residual network with BatchNorm, 16 images of 32x32", residual_network, images, classes)
