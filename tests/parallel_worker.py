"""What each process of the data- and tensor-parallel tests computes, beside one process with the whole batch."""

import copy
import warnings

import torch
import torch.nn.functional as F

from evenkeel import functional, nn


class Block(torch.nn.Module):
    """A pre-norm feed-forward block with both row norms and a per-group norm."""

    def __init__(self, modules=nn):
        super().__init__()
        self.norm = modules.LayerNorm(8)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.final = modules.RMSNorm(8, eps=1e-6)

    def forward(self, x):
        return self.final(x + self.down(F.gelu(self.up(self.norm(x)))))


def block():
    torch.manual_seed(5)
    model = Block()
    for norm in (model.norm, model.final):
        torch.nn.init.normal_(norm.weight)
    return model


def batch():
    generator = torch.Generator().manual_seed(6)
    return torch.randn(4, 6, 8, generator=generator), torch.randn(4, 6, 8, generator=generator)


def expected():
    """Output and gradients of one process."""
    model, (x, cotangent) = block(), batch()
    x.requires_grad_()
    y = model(x)
    y.backward(cotangent)
    return {"y": y.detach(), "dx": x.grad, **{name: p.grad for name, p in model.named_parameters()}}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def data_parallel(rank, count):
    """DistributedDataParallel and fully_shard: the mean over processes of the gradients is the whole batch's."""
    from torch.distributed.fsdp import fully_shard

    found = {}
    for wrap in (torch.nn.parallel.DistributedDataParallel, fully_shard):
        model, (x, cotangent) = block(), batch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its deprecations
            wrapped = wrap(model)
            y = wrapped(x.chunk(count)[rank])
            (y * cotangent.chunk(count)[rank] * count).sum().backward()
        gradients = {name: whole(p.grad) for name, p in model.named_parameters()}
        found[wrap.__name__] = {"y": y.detach(), **gradients}
    return found


def sequence_parallel(rank, count):
    """Megatron's plan: norms on shards of the sequence, feed-forward on shards of the features."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (count,))
    model, (x, cotangent) = block(), batch()
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "final": SequenceParallel(),
    }
    prepare = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),))
    parallelize_module(model, mesh, {**plan, "": prepare})
    leaf = x.chunk(count, dim=1)[rank].clone().requires_grad_()
    y = model(leaf)
    y = y.to_local() if hasattr(y, "to_local") else y
    y.backward(cotangent.chunk(count, dim=1)[rank])
    gradients = {name: whole(p.grad) for name, p in model.named_parameters()}
    return {"y": y.detach(), "dx": leaf.grad, **gradients}


def shards(rank, count):
    """Each norm of an input sharded along each axis (one size is not divisible), or only a part of a sum."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh, found = init_device_mesh("cpu", (count,)), {}
    generator = torch.Generator().manual_seed(1)
    x, cotangent, *affine = (torch.randn(s, generator=generator) for s in ((5, 6, 8), (5, 6, 8), (8,), (8,)))
    placements = {f"axis {d}": Shard(d) for d in (0, 1, 2, -1)} | {"replicated": Replicate(), "partial": Partial()}
    for name, placement in placements.items():
        for norm in ("layer_norm", "rms_norm"):
            parameters = affine if norm == "layer_norm" else affine[:1]
            if name == "partial":
                value = DTensor.from_local(x / count, mesh, [placement]).requires_grad_()
            else:
                value = distribute_tensor(x, mesh, [placement]).requires_grad_()
            leaves = [value, *(distribute_tensor(p, mesh, [Replicate()]).requires_grad_() for p in parameters)]
            y = getattr(functional, norm)(leaves[0], (8,), *leaves[1:], eps=1e-5)
            (first,) = torch.autograd.grad((y**3).sum(), leaves[0], create_graph=True)
            (second,) = torch.autograd.grad((first**2).sum(), leaves[0], retain_graph=True)
            y.backward(distribute_tensor(cotangent, mesh, y.placements))
            kept = str(y.placements[0])
            tensors = [t.detach() for t in (y, second, *(leaf.grad for leaf in leaves))]
            found[f"{norm}, {name}"] = (kept, [whole(t) for t in tensors])
    return found, (x, cotangent, affine)


def kernels_seen(rank, count):
    """The operators that a norm of a distributed tensor runs, and what mixing kinds of tensors says."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (count,))
    x = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        functional.rms_norm(x, (8,))
    errors = []
    for arguments in ((x, (8,), torch.ones(8)), (torch.ones(4, 8), (8,), distribute_tensor(torch.ones(8), mesh))):
        try:
            functional.rms_norm(*arguments)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return sorted(event.key for event in profile.key_averages() if "evenkeel" in event.key), errors


def worker(rank, count):
    parts = (data_parallel, sequence_parallel, shards, kernels_seen)
    return {part.__name__: copy.deepcopy(part(rank, count)) for part in parts}
