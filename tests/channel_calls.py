"""Calls of the per-channel norms under one signature, and how far their results are off."""

import torch

from evenkeel import functional as F
from evenkeel.testing import ulp_error

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NORMS = ("batch_norm", "inference", "instance_norm", "group_norm")
MEASURED = ("batch_norm", "instance_norm", "group_norm")  # statistics of this input
GROUPS = 2
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def call(norm, x, weight=None, bias=None, **options):
    options = {"backend": "cpu", "eps": 1e-5, **options}
    if norm == "batch_norm":
        return F.batch_norm(x, None, None, weight, bias, training=True, **options)
    if norm == "inference":
        running = torch.linspace(-1, 1, x.shape[1], dtype=torch.float64)
        return F.batch_norm(x, running, 1 + running.square(), weight, bias, **options)
    if norm == "instance_norm":
        return F.instance_norm(x, weight=weight, bias=bias, **options)
    return F.group_norm(x, GROUPS, weight, bias, **options)


def rows(norm, t):
    """A view in which the last axis is what shares a statistic."""
    if norm == "instance_norm":
        return t.flatten(2)
    return t.unflatten(1, (GROUPS, -1)).flatten(2) if norm == "group_norm" else t.transpose(0, 1).flatten(1)


def tensors(x):
    generator = torch.Generator().manual_seed(1)
    weight, bias = (torch.randn(x.shape[1], generator=generator).to(x.dtype) for _ in range(2))
    return weight, bias, torch.randn(x.shape, generator=generator).to(x.dtype)


def results(norm, x, dtype=None, **options):
    """y, dx, dweight and dbias under a fixed random cotangent; ``dtype`` converts everything first."""
    weight, bias, cotangent = tensors(x)
    leaves = [t.to(dtype or x.dtype).detach().requires_grad_() for t in (x, weight, bias)]
    y = call(norm, *leaves, **options)
    return (y.detach(), *torch.autograd.grad(y, leaves, cotangent.to(y.dtype)))


def errors(norm, mine, exact):
    spread = [(rows(norm, a), rows(norm, b)) for a, b in zip(mine[:2], exact[:2], strict=True)]
    return [ulp_error(a, b) for a, b in (*spread, *zip(mine[2:], exact[2:], strict=True))]


def same_bits(a, b):
    return all(torch.equal(s, t) for s, t in zip(a, b, strict=True))
