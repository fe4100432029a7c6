"""What each process of the tests of converted parallel models does: wrap, swap, verify, train, revert."""

import warnings

import torch
from norm_models import Gemma, Llama, Residual, shaken
from torch import nn

from evenkeel.convert import plan


def model():
    return shaken(nn.Sequential(nn.Linear(8, 8), Residual(Llama(8)), nn.Linear(8, 8), Residual(Gemma(8)), Llama(8)))


def batch():
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(6))


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sharded(net):
    from torch.distributed.fsdp import fully_shard

    for block in (net[1], net[3]):
        fully_shard(block)
    return fully_shard(net)


WRAPPERS = {"DistributedDataParallel": nn.parallel.DistributedDataParallel, "fully_shard": sharded}


def gradients(wrapped, rank, count):
    y = wrapped(batch().chunk(count)[rank])
    (y.square().sum() * count).backward()
    found = [whole(p.grad).clone() for p in wrapped.parameters()]
    for parameter in wrapped.parameters():
        parameter.grad = None
    return [whole(y.detach()), *found]


def worker(rank, count):
    found = {}
    for name, wrap in WRAPPERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its deprecations
            wrapped = wrap(model())
            before = gradients(wrapped, rank, count)
            parameters, kinds = list(wrapped.parameters()), [type(module) for module in wrapped.modules()]
            chosen = plan(wrapped, batch())
            certificate = chosen.apply(verify=batch().chunk(count)[rank])
            after = gradients(wrapped, rank, count)
            same = [a is b for a, b in zip(parameters, wrapped.parameters(), strict=True)]
            chosen.revert()
        found[name] = {
            "swapped": certificate.swapped,
            "checks": [check.passed for check in certificate.model],
            "sites": [len(entry.checks) for entry in certificate.entries],
            "before": before,
            "after": after,
            "identity": all(same),
            "reverted": [type(module) for module in wrapped.modules()] == kinds,
        }
    return found
