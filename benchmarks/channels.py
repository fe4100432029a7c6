"""Batch-, Instance- and GroupNorm, contiguous and channels-last, with and without the activation after them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

import evenkeel as ek
from benchmarks.timing import Call, Case

Norm = Callable[..., Tensor | tuple[Tensor, ...]]
Key = tuple[str, str, str]
GROUPS = 32
Torch = torch.nn.functional
Ours = ek.functional


def silu_after(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return torch's GroupNorm followed by its SiLU."""
    return Torch.silu(Torch.group_norm(x, GROUPS, weight, bias))


NORMS: dict[str, tuple[Norm, Norm]] = {
    "BatchNorm": (
        lambda x, w, b: Ours.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: Torch.batch_norm(x, None, None, w, b, training=True),
    ),
    "InstanceNorm": (
        lambda x, w, b: Ours.instance_norm(x, weight=w, bias=b),
        lambda x, w, b: Torch.instance_norm(x, weight=w, bias=b),
    ),
    "GroupNorm": (lambda x, w, b: Ours.group_norm(x, GROUPS, w, b), lambda x, w, b: Torch.group_norm(x, GROUPS, w, b)),
    "GroupNorm + SiLU": (lambda x, w, b: Ours.group_norm(x, GROUPS, w, b, activation="silu"), silu_after),
}
# Limits by norm, passes and layout, in shares of a contender's time; elsewhere never slower than torch.
NEVER_SLOWER = {"torch": 1.0}
LIMITS: dict[Key, dict[str, float]] = {
    ("BatchNorm", "forward + backward", "contiguous"): {"copy": 5.5, "torch": 1.0},
    ("InstanceNorm", "forward", "contiguous"): {"torch": 0.35},
    ("GroupNorm", "forward + backward", "contiguous"): {"torch": 0.8},
    ("GroupNorm", "forward + backward", "channels-last"): {"torch": 0.8},
    ("GroupNorm + SiLU", "forward + backward", "contiguous"): {"torch": 0.5},
    ("GroupNorm + SiLU", "forward + backward", "channels-last"): {"torch": 0.5},
}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
IMAGES = (32, 64, 56, 56)
# Awkward ones: few channels, few positions, a sequence, a volume; never slower than torch.
AWKWARD: tuple[tuple[str, tuple[int, ...], str], ...] = (
    ("BatchNorm", (32, 3, 224, 224), "channels-last"),
    ("BatchNorm", (32, 256, 7, 7), "contiguous"),
    ("BatchNorm", (32, 256, 7, 7), "channels-last"),
    ("BatchNorm", (32, 256, 14, 14), "channels-last"),
    ("BatchNorm", (32, 512, 7, 7), "channels-last"),
    ("BatchNorm", (32, 2048, 7, 7), "channels-last"),
    ("BatchNorm", (32, 1024, 14, 14), "channels-last"),
    ("BatchNorm", (32, 64, 1000), "contiguous"),
    ("BatchNorm", (4, 32, 16, 56, 56), "contiguous"),
    ("GroupNorm", (4096, 512), "contiguous"),
    ("GroupNorm", (32, 256, 7, 7), "contiguous"),
    ("GroupNorm", (32, 256, 7, 7), "channels-last"),
    ("GroupNorm", (32, 256, 2, 2), "channels-last"),
    ("GroupNorm + SiLU", (32, 256, 16, 16), "contiguous"),
    ("InstanceNorm", (32, 256, 7, 7), "contiguous"),
)


def forward(norm: Norm, *tensors: Tensor) -> Call:
    """Return a call that runs a norm without gradients."""

    def call() -> None:
        with torch.no_grad():
            norm(*tensors)

    return call


def both_passes(norm: Norm, gradient: Tensor | Sequence[Tensor], *tensors: Tensor) -> Call:
    """Return a call that runs a norm forward and backward, to all its inputs, from the gradient of each result."""
    leaves = tuple(t.clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors)
    return lambda: torch.autograd.grad(norm(*leaves), leaves, gradient)


def pair(name: str, shape: tuple[int, ...], layout: str, limits: dict[Key, dict[str, float]]) -> Iterator[Case]:
    """Yield a norm's forward, and forward with backward."""
    x, gradient = (torch.randn(shape).contiguous(memory_format=LAYOUTS[layout]) for _ in range(2))
    weight, bias = torch.rand(shape[1]), torch.rand(shape[1])
    target = torch.empty_like(x)
    copy = {"copy": lambda: target.copy_(x)}
    ours, theirs = NORMS[name]
    owners = {"evenkeel": ours, "torch": theirs}
    title = f"float32, {'x'.join(map(str, shape))}, {layout}"
    for passes in ("forward", "forward + backward"):
        calls = {
            by: forward(f, x, weight, bias) if passes == "forward" else both_passes(f, gradient, x, weight, bias)
            for by, f in owners.items()
        }
        yield Case(
            name=f"{name} {passes}, {title}",
            calls=copy | calls,
            limits=limits.get((name, passes, layout), NEVER_SLOWER),
        )


def cases() -> Iterator[Case]:
    """Yield the cases; results are allocated anew in each call, by us and by torch, the copy writes where it wrote."""
    for layout in LAYOUTS:
        for name in NORMS:
            yield from pair(name, IMAGES, layout, LIMITS)
    for name, shape, layout in AWKWARD:
        yield from pair(name, shape, layout, {})
