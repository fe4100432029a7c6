"""Replace a model's norms by evenkeel's: same weights, same outputs, less time."""

import time

import torch
from torch import nn

import evenkeel as ek


def training_step(model, x):
    """Run forward and backward, and return outputs, gradients and the best time of ten."""
    best = float("inf")
    for _ in range(10):
        model.zero_grad()
        start = time.perf_counter()
        y = model(x)
        y.square().mean().backward()
        best = min(best, time.perf_counter() - start)
    return y.detach(), torch.cat([p.grad.flatten() for p in model.parameters()]), best


torch.manual_seed(0)
blocks = [nn.Sequential(nn.RMSNorm(512), nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()) for _ in range(4)]
model, x = nn.Sequential(*blocks), torch.randn(512, 512)

keys = list(model.state_dict())
y, gradient, before = training_step(model, x)
certificate = ek.convert.swap(model, verify=x[:8])  # refuses what is further from float64 than the original
new_y, new_gradient, after = training_step(model, x)

assert list(model.state_dict()) == keys  # checkpoints load both ways
assert all(isinstance(block[0], nn.RMSNorm) for block in model)
print(f"{certificate.swapped} norms replaced")
print(f"outputs differ by at most {float((new_y - y).abs().max()):.1e} (the largest is {float(y.abs().max()):.1f})")
print(f"gradients differ by {float((new_gradient - gradient).norm() / gradient.norm()):.1e} of their length")
print(f"a training step takes {after / before:.2f} of the time")
