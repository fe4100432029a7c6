"""Run public functions on the Triton kernels in the interpreter, as `triton_worker` does the operators.

Usage: TRITON_INTERPRET=1 python tests/triton_calls_worker.py CASE...   (JSON: case -> name of a number -> number)
"""

import sys

import torch
from triton_worker import kernels, main, random, regime, same

from evenkeel import functional as F
from evenkeel.testing import ulp_error


def count_calls():
    """Let every norm run here what `backend="triton"` runs on a GPU, and tell which operators are called."""
    from evenkeel.kernels import _backends, _channels, _rows

    called = []

    class Spy:
        def __getattr__(self, name):
            called.append(name)
            return getattr(kernels(), name)

    _backends.BACKENDS["triton"] = _backends.BACKENDS["triton"]._replace(supports=lambda *call: "")
    for doors in (_rows, _channels):
        doors.is_direct, doors.kernels = (lambda x: True), Spy
    # small tensors of the CPU have kernels of their own
    _rows.differentiate = _channels.differentiate_channels = lambda *arguments: None
    return called


def whole_calls():
    """The public functions, from the choice of the backend to the gradients, beside the reference in float64."""
    called, found = count_calls(), {}
    tensors, dy = (random(7, 24), random(7, 24), random(24), random(24)), random(7, 24)
    norms = {
        "layer_norm": lambda x, r, w, b, **o: F.layer_norm(x, (24,), w, b, **o),
        "rms_norm": lambda x, r, w, b, **o: F.rms_norm(x, (24,), w, cast="early", weight_offset=1.0, **o),
        "normalize": lambda x, r, w, b, **o: F.normalize(x, **o),
        "add_layer_norm": lambda x, r, w, b, **o: sum(F.add_layer_norm(x, r, (24,), w, b, **o)),
    }
    for name, norm in norms.items():
        results = []
        for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
            leaves = [t.to(dtype).requires_grad_() for t in map(torch.clone, tensors)]
            y = norm(*leaves, backend=backend)
            gradients = torch.autograd.grad(y, leaves, dy.to(dtype), allow_unused=True)
            results.append([y.detach(), *(g for g in gradients if g is not None)])
        found |= {f"{name} {i} ulps": ulp_error(a, b) for i, (a, b) in enumerate(zip(*results, strict=True))}
    found["operators"] = float({"rows_forward", "rows_backward"} - set(called) != set())
    return found


def shards():
    """A DTensor has the bits of its rows, and gradients with its placements."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    called, mesh = count_calls(), init_device_mesh("cpu", (1,))
    tensors, dy = (random(6, 5, 24), random(24), random(24)), random(6, 5, 24)

    def trained(leaves, dy):
        y = F.layer_norm(leaves[0], (24,), *leaves[1:], backend="triton")
        return y, *torch.autograd.grad(y, leaves, dy)

    plain = trained([t.clone().requires_grad_() for t in tensors], dy)
    placed = [distribute_tensor(t, mesh, [Shard(0)]).requires_grad_() for t in tensors]
    whole = [t.full_tensor() for t in trained(placed, distribute_tensor(dy, mesh, [Shard(0)]))]
    distributed.destroy_process_group()
    found = {str(i): same(a.detach(), b.detach()) for i, (a, b) in enumerate(zip(whole, plain, strict=True))}
    return found | {"calls": float(called.count("rows_forward") != 2 or called.count("rows_backward") != 2)}


def short_rows():
    """dγ and dβ of rows that are many and short."""
    found = {}
    for rows, features in ((105, 9), (144, 8), (144, 20), (40, 33)):
        errors = regime("N(0,1)", "moments", "inside", rows, features)
        found |= {f"{rows}x{features} {name} ulps": errors[name] for name in ("dweight", "dbias")}
    return found


CASES = {"whole calls": (whole_calls, ()), "shards": (shards, ()), "short rows": (short_rows, ())}

if __name__ == "__main__":
    main(CASES, sys.argv[1:])
