"""What massive values cost the others: in a norm that computes in float16, and in a layer that rounds to int8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evenkeel.recognition import Tensors, apply_norm

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evenkeel.doctor.probes._norms import Site

__all__ = ["lost_in_half", "lost_in_int8", "rounds_to_int8"]

MASSIVE = 100.0  # times the median size
NARROW = (torch.int8, torch.uint8, torch.qint8, torch.quint8)
NOTHING = 1e-6  # of the ordinary values
ODD = 0.2  # how far a layer may be from f(-x) = -f(x) and still count as linear


def massive(x: Tensor) -> Tensor:
    """Which values are out of proportion to the others that are not zero."""
    sizes = x.abs().float()
    return sizes >= MASSIVE * torch.where(sizes > 0, sizes, torch.nan).nanmedian()


def lost_in_half(site: Site, x: Tensor, output: Tensor) -> Tensor:
    """How far a float16 norm's result is from that of float32, in parts of it: the worst row with massive values."""
    names = ("weight", "bias")
    weight, bias = (None if (t := site.tensor(name)) is None else t.detach().float() for name in names)
    wide = x.detach().float()
    exact = apply_norm(site.spec, site.layout, wide, Tensors(weight, bias))
    axis = 1 if site.layout.channel_axis == 1 else -1
    error = (output.float() - exact).norm(dim=axis) / exact.norm(dim=axis).clamp(min=torch.finfo(torch.float32).tiny)
    # what is not finite is another rule's
    return torch.where(massive(wide).any(axis) & error.isfinite(), error, 0.0).amax()


def rounds_to_int8(module: nn.Module) -> bool:
    """Whether a module holds whole numbers of 8 bits: quantized weights, and maybe inputs that it rounds."""
    own = [*module._parameters.values(), *module._buffers.values()]
    return any(t is not None and t.ndim > 1 and (t.dtype in NARROW or "Int8" in type(t).__name__) for t in own)


def lost_in_int8(module: nn.Module, x: Tensor) -> Tensor:
    """What a linear layer loses of the ordinary values beside the massive ones, in parts of their result.

    A layer whose weights alone are rounded is linear and loses nothing: f(x) is the sum of its parts.
    """
    x = x.detach()
    large = massive(x)
    rest, alone = torch.where(large, 0, x), torch.where(large, x, 0)
    try:
        whole, ordinary, opposite, apart, nothing = (
            module.forward(part).float()
            for part in (x, rest, -rest, alone, NOTHING * rest)  # of zeros a scale would be zero
        )
    except Exception:  # anybody's module, which may take more than one argument
        return torch.full((), torch.nan, device=x.device)
    own = ordinary - nothing
    size = own.norm().clamp(min=torch.finfo(torch.float32).tiny)
    linear = (own + opposite - nothing).norm() <= ODD * size
    return torch.where(large.any() & linear, (whole - apart - own).norm() / size, 0.0)
