"""Synchronized BatchNorm: processes with unequal batches against one process with the whole batch."""

import copy

import pytest
import sync_batch_norm_worker as setting
import torch
from processes import run_in_processes

from evenkeel import BackendError, InvalidInputError, nn
from evenkeel import functional as F
from evenkeel.testing import ulp_error

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.fixture(scope="module", params=[2, 3], ids=lambda count: f"{count} processes")
def runs(request, tmp_path_factory):
    return run_in_processes(setting.worker, request.param, tmp_path_factory.mktemp("sync"))


@pytest.mark.parametrize("name", setting.CASES)
def test_many_processes_are_one(runs, name):
    x, cotangent, mask, _ = setting.data(name, len(runs))
    norm = setting.module(name, nn.SyncBatchNorm, torch.float64)  # without a process group: the reference
    norm.backend = "reference"
    whole = setting.step(norm, x.double(), cotangent.double(), mask)
    for key in ("y", "dx"):
        mine = torch.cat([run[name][key] for run in runs])
        by_channel, expected = (t.transpose(0, 1).flatten(1) for t in (mine, whole[key]))
        assert ulp_error(by_channel, expected) <= (0.51 if mine.dtype == torch.bfloat16 else 3.0), key
    for key in {"dweight", "dbias"} & whole.keys():
        parts = torch.stack([run[name][key] for run in runs])  # each rounded in its own process before they are added
        error = (parts.double().sum(0) - whole[key]).abs()
        assert (error <= 3 * torch.finfo(parts.dtype).eps * parts.abs().sum(0).max().double()).all(), key
    for key in BUFFERS:
        if key in whole:
            torch.testing.assert_close(runs[0][name][key].double(), whole[key].double(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", setting.CASES)
def test_every_process_remembers_the_same_bits(runs, name):
    for run in runs[1:]:
        for key in BUFFERS:
            assert key not in run[name] or torch.equal(run[name][key], runs[0][name][key])


def test_second_derivatives_cross_processes(runs):
    x, cotangent, _, _ = setting.data("unequal", len(runs))
    dx, dweight = setting.hessian_product(setting.module("unequal", nn.SyncBatchNorm), x, cotangent)
    torch.testing.assert_close(torch.cat([run["second derivative"][0] for run in runs]), dx)
    torch.testing.assert_close(sum(run["second derivative"][1] for run in runs), dweight)


def test_evaluation_and_a_group_of_one_are_batch_norm(runs):
    x, _, _, sizes = setting.data("unequal", len(runs))
    for rank, part in enumerate(x.split(sizes)):
        assert torch.equal(runs[rank]["evaluation"], setting.module("unequal", nn.BatchNorm1d).eval()(part))
        assert torch.equal(runs[rank]["alone"], setting.module("unequal", nn.BatchNorm1d)(part))


def test_no_channels_are_nothing_to_normalize(runs):
    assert [run["no channels"] for run in runs] == [(rank + 2, 0, 3) for rank in range(len(runs))]


def test_every_process_raises_or_none(runs):
    for run in runs:
        assert run["one value"].startswith("InvalidInputError: Expected more than 1 value per channel when training")
        assert run["cpu"].startswith("BackendError: backend='cpu' cannot run this call: it has no kernel")


def test_data_parallel_training_of_a_converted_network(runs):
    assert max(run["parallel"] for run in runs) < 1e-5


def test_without_a_process_group_it_is_batch_norm():
    x, mask = torch.randn(3, 4, 5), torch.arange(5) < torch.tensor([[5], [2], [1]])
    for arguments in ((x,), (x, mask)):
        assert torch.equal(nn.SyncBatchNorm(4)(*arguments), nn.BatchNorm1d(4)(*arguments))


def test_a_group_of_one_normalizes_as_batch_norm():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        running = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        alone = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        y = F.sync_batch_norm(x, *running, eps_mode="outside", weight=torch.arange(3.0), weight_offset=1.0)
        expected = F.batch_norm(x, *alone, torch.arange(3.0), training=True, eps_mode="outside", weight_offset=1.0)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(running, alone)
        cotangent = torch.randn(5, 3, dtype=torch.float64)
        torch.testing.assert_close(*(torch.autograd.grad(result, x, cotangent) for result in (y, expected)))
        with pytest.raises(BackendError, match="it has no kernel for this norm"):
            F.sync_batch_norm(x, None, None, backend="cpu")
    finally:
        torch.distributed.destroy_process_group()


def test_conversion_keeps_parameters_options_and_sharing():
    norm = nn.BatchNorm2d(4, eps=1e-3, momentum=None, eps_mode="outside", weight_offset=1.0, cast="early").eval()
    model = torch.nn.ModuleDict(
        {"a": norm, "b": norm, "c": torch.nn.BatchNorm1d(3, affine=False), "d": nn.GroupNorm(2, 4)}
    )
    kept = dict(model.state_dict())
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model, "group")
    assert converted is model
    assert model["a"] is model["b"]
    assert type(model["a"]) is type(model["c"]) is nn.SyncBatchNorm
    assert type(model["d"]) is nn.GroupNorm
    assert model["a"].weight is norm.weight
    assert model["a"].running_var is norm.running_var
    assert model["a"].spec == norm.spec
    assert (model["a"].momentum, model["a"].process_group, model["a"].training) == (None, "group", False)
    assert (model["c"].weight, model["c"].training) == (None, True)
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
    assert type(nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(3))) is nn.SyncBatchNorm


class WithActivation(torch.nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (WithActivation(4), "0 is a WithActivation, whose own forward"),
        (nn.LazyBatchNorm1d(), "run the model on one"),
        (nn.BatchNorm2d(4, activation="relu"), "0 has an activation, which SyncBatchNorm has not"),
    ],
    ids=["own forward", "lazy", "activation"],
)
def test_conversion_refuses_what_it_would_lose(norm, message):
    model = torch.nn.Sequential(norm, nn.BatchNorm2d(4))
    with pytest.raises(InvalidInputError, match=message):
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert type(model[1]) is nn.BatchNorm2d


def test_copies_keep_everything_but_share_no_memory():
    norm = nn.SyncBatchNorm(4, eps_mode="clamp")
    other = copy.deepcopy(norm)
    assert other.spec == norm.spec
    assert other.running_mean is not norm.running_mean
