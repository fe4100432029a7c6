"""Numbers that strain kernels in float32: name -> (sample of a shape, eps)."""

import torch

BOTH = {
    "N(0,1)": (lambda shape: torch.randn(shape), 1e-5),
    "mean 1e4 spread 1": (lambda shape: 1e4 + torch.randn(shape), 1e-5),
    "mean 1e4 spread 0.01": (lambda shape: 1e4 + 0.01 * torch.randn(shape), 1e-5),
    "mean 1e6 spread 1": (lambda shape: 1e6 + torch.randn(shape), 1e-5),
    "1e18": (lambda shape: 1e18 * torch.randn(shape), 1e-5),
    "up to 3e38": (lambda shape: 3e38 * (2 * torch.rand(shape) - 1), 1e-5),
}
CHANNELS = BOTH | {
    "1e-20, eps 1e-60": (lambda shape: 1e-20 * torch.randn(shape), 1e-60),
    "1e-30, eps 1e-80": (lambda shape: 1e-30 * torch.randn(shape), 1e-80),
}
FIRST = torch.tensor(0)
# a shape is (rows, features)
ROWS = BOTH | {
    "3e38 and 1": (lambda shape: torch.where(torch.rand(shape) < 0.1, 3e38, 1.0), 1e-5),
    "1e-20, eps 0": (lambda shape: 1e-20 * torch.randn(shape), 0.0),
    "1e-30, eps 0": (lambda shape: 1e-30 * torch.randn(shape), 0.0),
    "an outlier first": (
        lambda shape: torch.randn(shape).index_put_((torch.arange(0, shape[0], 8), FIRST), torch.tensor(1e6)),
        1e-5,
    ),
}
