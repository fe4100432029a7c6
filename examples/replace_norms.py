"""Replace a model's norms by evenkeel's: same weights, same outputs, less time."""

import time

import torch
from torch import nn

import evenkeel as ek

# How each of torch's norms is built again; its state dict brings the rest.
BUILD = {
    nn.LayerNorm: lambda n: ek.nn.LayerNorm(n.normalized_shape, n.eps, n.elementwise_affine, bias=n.bias is not None),
    nn.RMSNorm: lambda n: ek.nn.RMSNorm(n.normalized_shape, n.eps, n.elementwise_affine),
    nn.GroupNorm: lambda n: ek.nn.GroupNorm(n.num_groups, n.num_channels, n.eps, n.affine),
}


def replace_norms(model):
    """Put evenkeel's norms in the place of torch's, and return how many."""
    count = 0
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if type(norm) in BUILD:  # a subclass may compute something else
                new = BUILD[type(norm)](norm)
                new.load_state_dict(norm.state_dict())
                tensor = next(norm.parameters(), torch.empty(0))
                setattr(parent, name, new.to(tensor.device, tensor.dtype).train(norm.training))
                count += 1
    return count


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
count = replace_norms(model)
new_y, new_gradient, after = training_step(model, x)

assert list(model.state_dict()) == keys  # checkpoints load both ways
assert all(isinstance(block[0], nn.RMSNorm) for block in model)
print(f"{count} norms replaced")
print(f"outputs differ by at most {float((new_y - y).abs().max()):.1e} (the largest is {float(y.abs().max()):.1f})")
print(f"gradients differ by {float((new_gradient - gradient).norm() / gradient.norm()):.1e} of their length")
print(f"a training step takes {after / before:.2f} of the time")
