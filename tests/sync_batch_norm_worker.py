"""What each process of the synchronized BatchNorm tests computes, and the same in one process with the whole batch."""

import copy
import warnings

import torch

from evenkeel import nn

# name -> (sizes of the batches by rank, shape of one example, input (scale, mean), masked, options)
CASES = {
    "unequal": ((3, 5, 1), (4, 6), (1.0, 0.0), False, {}),
    "an empty batch": ((0, 4, 2), (4, 6), (1.0, 0.0), False, {}),
    "vectors": ((11, 14, 9), (5,), (1.0, 0.0), False, {}),
    "images": ((2, 1, 3), (3, 4, 4), (1.0, 0.0), False, {}),
    "masked": ((3, 5, 2), (4, 6), (1.0, 0.0), True, {}),
    "mean 1e4": ((3, 5, 1), (4, 60), (1.0, 1e4), False, {}),
    "huge": ((3, 5, 1), (4, 6), (1e19, 0.0), False, {}),
    "near the largest": ((3, 5, 1), (4, 6), (5e37, 0.0), False, {"track_running_stats": False}),
    "tiny": ((3, 5, 1), (4, 6), (1e-25, 0.0), False, {"eps": 1e-60}),
    "outside, 1 + weight": ((3, 5, 1), (4, 6), (1.0, 0.0), False, {"eps_mode": "outside", "weight_offset": 1.0}),
    "clamp": ((3, 5, 1), (4, 6), (0.1, 0.0), False, {"eps_mode": "clamp", "eps": 0.05}),
    "clamped": ((3, 5, 1), (4, 6), (0.1, 0.0), False, {"eps_mode": "clamp", "eps": 0.5}),
    "momentum None": ((3, 5, 1), (4, 6), (1.0, 0.0), True, {"momentum": None}),
    "without affine": ((3, 5, 1), (4, 6), (1.0, 0.0), False, {"affine": False}),
    "not tracked": ((3, 5, 1), (4, 6), (1.0, 0.0), False, {"track_running_stats": False}),
    "bfloat16": ((3, 5, 1), (4, 6), (1.0, 0.0), False, {}),
}


def data(name, count):
    """Input, cotangent and mask of the whole batch, and the number of examples of each rank."""
    sizes, example, (scale, mean), masked, _ = CASES[name]
    sizes = sizes[:count]
    shape = (sum(sizes), *example)
    generator = torch.Generator().manual_seed(len(name))
    x = mean + scale * torch.randn(shape, generator=generator)
    cotangent = torch.randn(shape, generator=generator)
    if name == "bfloat16":
        x, cotangent = x.bfloat16(), cotangent.bfloat16()
    lengths = torch.arange(shape[0]) % (example[-1] + 1)  # the first example is nothing but padding
    mask = torch.arange(example[-1]) < lengths[:, None] if masked else None
    if masked:
        x = torch.where(mask[:, None], x, torch.nan)  # what lies in the padding must not matter
    return x, cotangent, mask, sizes


def module(name, kind, dtype=torch.float32):
    torch.manual_seed(7)
    norm = kind(CASES[name][1][0], **CASES[name][4])
    if norm.affine:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return norm.to(dtype)


def step(norm, x, cotangent, mask):
    """y, dx, the gradients of the parameters and the buffers after two forward passes and a backward."""
    leaf = x.clone().requires_grad_()
    norm(x, mask) if mask is not None else norm(x)
    y = norm(leaf, mask) if mask is not None else norm(leaf)
    y.backward(cotangent.to(y.dtype))
    found = {"y": y.detach(), "dx": leaf.grad}
    found |= {f"d{key}": value.grad for key, value in norm.named_parameters()}
    return found | {key: value.clone() for key, value in norm.named_buffers()}


def hessian_product(norm, x, cotangent):
    """Of a function that is not quadratic, so that every term of the second derivative counts."""
    leaf = x.double().requires_grad_()
    (first,) = torch.autograd.grad(norm.double()(leaf), leaf, cotangent.double(), create_graph=True)
    return torch.autograd.grad((first**3).sum(), [leaf, norm.weight])


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def worker(rank, count):
    results = {}
    for name in CASES:
        x, cotangent, mask, sizes = data(name, count)
        own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        norm = module(name, nn.SyncBatchNorm)
        results[name] = step(norm, x[own], cotangent[own], None if mask is None else mask[own])
    x, cotangent, _, sizes = data("unequal", count)
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    results["second derivative"] = hessian_product(module("unequal", nn.SyncBatchNorm), x[own], cotangent[own])
    results["evaluation"] = module("unequal", nn.SyncBatchNorm).eval()(x[own])
    alone = [torch.distributed.new_group([r]) for r in range(count)][rank]
    results["alone"] = module("unequal", lambda *a, **k: nn.SyncBatchNorm(*a, process_group=alone, **k))(x[own])
    single = torch.randn(int(rank == 0), 4)  # one value per channel in all processes
    results["no channels"] = nn.SyncBatchNorm(0)(torch.randn(rank + 2, 0, 3)).shape
    results["one value"] = error_of(lambda: nn.SyncBatchNorm(4)(single))
    results["cpu"] = error_of(lambda: nn.SyncBatchNorm(4, backend="cpu")(torch.randn(2, 4)))
    results["parallel"] = data_parallel(rank, count)
    return results


def data_parallel(rank, count):
    """A network with converted BatchNorms under DistributedDataParallel: the gradients after one step."""
    torch.manual_seed(3)
    plain = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
    x = torch.randn(2 * count, 2, 8, 8)
    synchronized = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its deprecations
        wrapped = torch.nn.parallel.DistributedDataParallel(synchronized)
    wrapped(x[2 * rank : 2 * rank + 2]).square().mean().backward()
    plain(x).square().mean().backward()
    pairs = zip(plain.parameters(), synchronized.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs)
