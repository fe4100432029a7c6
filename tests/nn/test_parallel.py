"""The norms under data, sequence and tensor parallelism on two processes, against one process."""

import parallel_worker
import pytest
import torch
from processes import run_in_processes

from evenkeel import functional

SHARDINGS = ("axis 0", "axis 1", "axis 2", "axis -1", "replicated", "partial")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run_in_processes(parallel_worker.worker, 2, tmp_path_factory.mktemp("parallel"))


@pytest.mark.parametrize("wrapper", ["DistributedDataParallel", "fully_shard"])
def test_data_parallel_gradients_are_those_of_the_whole_batch(runs, wrapper):
    wanted = parallel_worker.expected()
    found = [run["data_parallel"][wrapper] for run in runs]
    torch.testing.assert_close(torch.cat([run["y"] for run in found]), wanted["y"])
    assert set(found[0]) == set(wanted) - {"dx"}
    for name in set(found[0]) - {"y"}:
        torch.testing.assert_close(found[0][name], wanted[name])
        assert torch.equal(found[0][name], found[1][name])


def test_a_sequence_parallel_plan_gives_what_one_process_gives(runs):
    wanted = parallel_worker.expected()
    found = [run["sequence_parallel"] for run in runs]
    assert set(found[0]) == set(wanted)
    for name in ("y", "dx"):
        torch.testing.assert_close(torch.cat([run[name] for run in found], dim=1), wanted[name])
    for name in set(found[0]) - {"y", "dx"}:
        torch.testing.assert_close(found[0][name], wanted[name])


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_distributed_tensors(runs, norm, sharding):
    found, (x, cotangent, affine) = runs[0]["shards"]
    kept, tensors = found[f"{norm}, {sharding}"]
    assert kept == {"axis 0": "S(0)", "axis 1": "S(1)"}.get(sharding, "R")  # the normalized axis is gathered
    leaves = [t.clone().requires_grad_() for t in (x, *(affine if norm == "layer_norm" else affine[:1]))]
    y = getattr(functional, norm)(leaves[0], (8,), *leaves[1:], eps=1e-5)
    (first,) = torch.autograd.grad((y**3).sum(), leaves[0], create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), leaves[0], retain_graph=True)
    y.backward(cotangent)
    for mine, wanted in zip(tensors, [y.detach(), second, *(leaf.grad for leaf in leaves)], strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(tensors[0], y)  # a row's bits do not depend on where it is normalized


def test_distributed_tensors_run_the_kernels_and_do_not_mix(runs):
    operators, errors = runs[0]["kernels_seen"]
    assert operators == ["evenkeel::rows_inference"]
    assert errors[0].startswith("InvalidInputError: rms_norm: got mixed torch.Tensor and DTensor")
    assert "got mixed torch.Tensor and DTensor" in errors[1]  # torch's own
