"""Norms inside torch.compile (Inductor): as an operator of ours, or traced into plain code that fuses with neighbours.

"evenkeel" is what `backend="auto"` does while compiling; "operator" and "traced" are the two things it can do.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import evenkeel as ek
from benchmarks.timing import OURS, Call, Case, repeated

Build = Callable[..., nn.Module]
BACKENDS = {OURS: "auto", "operator": "cpu", "traced": "reference"}
TURN = 8  # calls in a row: alternating single calls find each other's memory and measure the allocator


class Pointwise(nn.Module):
    """A norm between an addition and a GELU: nothing but neighbours that fuse."""

    def __init__(self, norm: Build, width: int) -> None:
        super().__init__()
        self.norm = norm(width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return nn.functional.gelu(self.norm(x + residual))


class FeedForward(nn.Module):
    """A pre-norm feed-forward block with a residual."""

    def __init__(self, norm: Build, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = x + residual
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Convolution(nn.Module):
    """A convolution, a norm, SiLU and a residual."""

    def __init__(self, norm: Build, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = norm(width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual + nn.functional.silu(self.norm(self.convolution(x)))


# norm, what stands around it, width, shape of the input
WORK: tuple[tuple[str, type[nn.Module], int, tuple[int, ...]], ...] = (
    ("LayerNorm", Pointwise, 256, (4096, 256)),
    ("LayerNorm", Pointwise, 1024, (1024, 1024)),
    ("RMSNorm", Pointwise, 1024, (1024, 1024)),
    ("LayerNorm", FeedForward, 256, (512, 256)),
    ("RMSNorm", FeedForward, 768, (256, 768)),
    ("BatchNorm2d", Convolution, 32, (8, 32, 28, 28)),
    ("GroupNorm", Convolution, 32, (8, 32, 28, 28)),
)


def build(norm: str, modules: Any, **options: str) -> Build:
    """Return what makes the norm from a width."""
    if norm == "GroupNorm":
        return lambda width: modules.GroupNorm(8, width, **options)
    return partial(getattr(modules, norm), **options)


def compiled(block: type[nn.Module], norm: Build, width: int) -> nn.Module:
    """Return the block with the same parameters for each norm, compiled."""
    torch.manual_seed(0)
    module = block(norm, width)
    module.compile(dynamic=False)
    return module


def forward(module: nn.Module, x: Tensor, residual: Tensor) -> Call:
    """Return a call that runs the block without gradients."""

    def call() -> None:
        with torch.no_grad():
            module(x, residual)

    return call


def both_passes(module: nn.Module, x: Tensor, residual: Tensor) -> Call:
    """Return a call that runs the block forward and backward."""
    leaves = tuple(t.clone().requires_grad_() for t in (x, residual))
    wanted = (*leaves, *module.parameters())
    return lambda: torch.autograd.grad(module(*leaves), wanted, residual)


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for name, block, width, shape in WORK:
        torch._dynamo.reset()
        x, residual = torch.randn(2, *shape)
        norms = {owner: build(name, ek.nn, backend=backend) for owner, backend in BACKENDS.items()}
        norms["torch"] = build(name, nn)
        modules = {owner: compiled(block, norm, width) for owner, norm in norms.items()}
        title = f"{name} in {block.__name__}, {'x'.join(map(str, shape))}"
        for label, run in (("forward", forward), ("forward + backward", both_passes)):
            yield Case(
                name=f"compiled {label}, {title}",
                calls={owner: repeated(run(module, x, residual), TURN) for owner, module in modules.items()},
            )
