"""LayerNorm and RMSNorm over the last axis, forward, and forward with backward."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import evenkeel as ek
from benchmarks.timing import Call, Case

Norm = Callable[..., Tensor]
NORMS: dict[str, tuple[Norm, Norm]] = {
    "LayerNorm": (ek.functional.layer_norm, torch.nn.functional.layer_norm),
    "RMSNorm": (ek.functional.rms_norm, torch.nn.functional.rms_norm),
}
SHAPES = ((4096, 768), (8192, 4096))


def forward(norm: Norm, x: Tensor, affine: tuple[Tensor, ...]) -> Call:
    """Return a call that runs a norm without gradients."""

    def call() -> None:
        with torch.no_grad():
            norm(x, x.shape[-1:], *affine)

    return call


def both_passes(norm: Norm, x: Tensor, affine: tuple[Tensor, ...], gradient: Tensor) -> Call:
    """Return a call that runs a norm forward and backward."""
    leaves = tuple(t.clone().requires_grad_() for t in (x, *affine))
    return lambda: torch.autograd.grad(norm(leaves[0], x.shape[-1:], *leaves[1:]), leaves, gradient)


def cases() -> Iterator[Case]:
    """Yield the cases; outputs are allocated anew in each call, the copy writes where it wrote before."""
    for rows, features in SHAPES:
        x = torch.randn(rows, features)
        gradient, target = torch.randn_like(x), torch.empty_like(x)
        weight, bias = torch.ones(features), torch.zeros(features)
        for name, (ours, theirs) in NORMS.items():
            affine = (weight, bias) if name == "LayerNorm" else (weight,)
            owners = {"evenkeel": ours, "torch": theirs, "torch.compile": torch.compile(theirs, dynamic=False)}
            copy = {"copy": lambda x=x, target=target: target.copy_(x)}
            title = f"float32, {rows}x{features}"
            yield Case(
                name=f"{name} forward, {title}", calls=copy | {by: forward(f, x, affine) for by, f in owners.items()}
            )
            yield Case(
                name=f"{name} forward + backward, {title}",
                calls=copy | {by: both_passes(f, x, affine, gradient) for by, f in owners.items()},
            )
