"""The Triton kernels of row norms, interpreted on the CPU: errors in ulps, and bits that must not change."""

import sys
from types import SimpleNamespace

import pytest
import torch
import triton_calls_worker
import triton_worker

import evenkeel.functional as F
from evenkeel import BackendError, kernels_available
from evenkeel.functional._specs import row_spec
from evenkeel.kernels import _triton
from evenkeel.kernels.triton._launch import backward_launch, forward_launch
from evenkeel.kernels.triton._layout import reach

IN_HALF = ("mode", "residual, rounded", "residual, unrounded")  # what they write in 16 bits is rounded once


def limit_of(case, name):
    """The contract: 3 ulps in float32, 0.51 where 16 bits are rounded once; the other numbers count differences."""
    if case.startswith(("regime", "length", "long, moments", "long, rms", "long, l2")) or name.endswith("ulps"):
        return 3.0
    if case == "like the CPU":
        return 6.0 if name.startswith("float") else 1.02  # each may be 3 ulps off, in 16 bits 0.51
    if case.startswith("residual"):
        narrow = {"y", "dx"} if case in IN_HALF else {"dresidual"} if case == "residual, half" else set()
        return 0.0 if name == "sum" else 0.51 if name in narrow else 3.0
    if case.startswith("mode") or name.startswith("half"):
        return 0.51
    if name.startswith("odd block"):
        return 3.0
    if name.startswith("closeness"):  # of values near 1 whose y has 24 bits, divided by weights from 0.5 on
        return 1e-5
    return 0.001 if name.endswith("share that differs") else 0.0


def test_kernels():
    triton_worker.check(triton_worker, triton_worker.FAST, limit_of)


def test_calls():
    triton_worker.check(triton_calls_worker, triton_calls_worker.CASES, limit_of)


@pytest.mark.slow
def test_kernels_at_length():
    triton_worker.check(triton_worker, triton_worker.SLOW, limit_of)


def test_launches_are_powers_of_two_that_hold_a_row():
    for features in (1, 16, 17, 768, 2048, 8192, 8193, 16384, 16385, 2**18):
        for launch in (forward_launch(features), backward_launch(features)):
            assert launch.looped or launch.block >= features
            assert launch.block & (launch.block - 1) == launch.rows & (launch.rows - 1) == 0
            assert launch.block * launch.rows <= 512 * launch.warps * (2 if features > 8192 else 1)

        assert backward_launch(features).looped or backward_launch(features).chunk % backward_launch(features).rows == 0


def test_layouts_are_walked_without_copies_where_that_can_be():
    whole = torch.zeros(3, 4, 5, 96)
    one, two, three = whole[..., :32], whole[:, 1:3, :, :32], whole[:, 1:3, 1::2, :32]
    for view, inner in ((one, 1), (two, 10)):
        rows = reach((view, None), 1, 32)
        assert rows.tensors[0] is view
        assert rows.inner == inner
    assert reach((three,), 1, 32).tensors[0] is not three
    together = reach((two, two.contiguous()), 1, 32)
    assert together.strides == [1920, 96, 320, 32]


def test_it_says_why_it_cannot_run():
    expected = "torch sees no GPU here"
    assert kernels_available()["triton"].startswith(("available: rows", expected, "Triton is not"))
    if not torch.cuda.is_available():
        assert kernels_available()["triton"] == expected
        with pytest.raises(BackendError, match="backend='triton' cannot run this call: torch sees no GPU here"):
            F.rms_norm(torch.ones(2, 4), (4,), backend="triton")


def test_auto_leaves_it_alone_until_it_was_measured(monkeypatch):
    from evenkeel.kernels import _backends

    asked = []
    monkeypatch.setitem(
        _backends.BACKENDS, "triton", _backends.BACKENDS["triton"]._replace(supports=lambda *call: asked.append(call))
    )
    x = torch.ones(2, 4, device="meta")
    assert not _backends.runs_kernel("rows", "auto", None, x)
    assert asked == []
    assert _backends.runs_kernel("rows", "triton", None, x)
    assert len(asked) == 1


def fake(dtype=torch.float32, device="cuda:0"):
    """What a refusal looks at of a tensor on a GPU."""
    return SimpleNamespace(dtype=dtype, device=device, is_cuda=device.startswith("cuda"))


@pytest.mark.parametrize(
    ("pattern", "options", "tensors", "reason"),
    [
        ("rows", {}, [], ""),
        ("rows", {}, [fake()], ""),
        ("rows", {}, [fake(torch.float16), None, fake(torch.float32)], ""),
        ("elements", {}, [fake()], "it has no kernel for this norm yet"),
        ("columns", {}, [fake(torch.uint8), fake(torch.float64)], ""),
        ("images", {}, [fake(torch.uint32)], "it does not take torch.uint32"),
        ("rows", {"groups": 2}, [fake()], "it has no kernel for groups or gates of rows"),
        ("rows", {}, [fake(torch.bool)], "it does not take torch.bool"),
        ("rows", {"cast": "weight"}, [fake()], "it has no kernel for cast='weight'"),
        ("rows", {}, [fake(device="cpu")], "a tensor is on cpu"),
        ("rows", {}, [fake(torch.float64)], "it does not take torch.float64"),
        ("rows", {}, [fake(), fake(device="cuda:1")], "the tensors are on cuda:0, cuda:1"),
        ("rows", {"cast": "early"}, [fake(torch.float16), None, fake()], "it has no kernel for cast='early' with"),
        ("rows", {"cast": "early"}, [fake(torch.float16), fake(), fake()], ""),
    ],
)
def test_refusals(monkeypatch, pattern, options, tensors, reason):
    spec = row_spec("norm", "moments", 1e-5, **options)
    monkeypatch.setattr(_triton._cpu, "PLAIN_TYPES", (SimpleNamespace,))
    refusal = _triton.refusal(pattern, spec, tuple(tensors))
    assert refusal.startswith(reason)
    assert bool(refusal) == bool(reason)


def test_refuses_subclasses(monkeypatch):
    monkeypatch.setattr(_triton._cpu, "PLAIN_TYPES", ())
    assert _triton.refusal("rows", None, (fake(),)) == "it does not take the tensor subclass SimpleNamespace"


def test_the_dispatcher_finds_the_operators():
    for name, operator in _triton.OPERATORS.items():
        if operator.pattern:
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"evenkeel::{name}", "CUDA")


def test_the_benchmark_says_in_one_line_that_there_is_no_gpu(monkeypatch, capsys):
    from benchmarks import gpu

    monkeypatch.setattr(sys, "argv", ["gpu", "--check", "--bench"])
    if not torch.cuda.is_available():
        assert gpu.main() == 2
        assert capsys.readouterr() == ("", "the GPU kernels cannot run here: torch sees no GPU here\n")


def test_the_check_passes_what_is_right_and_finds_what_is_not(monkeypatch):
    from benchmarks import gpu

    case = ("layer_norm", (9, 64), torch.float32, "N(0,1)", "cpu")
    assert gpu.problems(*case, "cpu") == []
    for sample in gpu.SAMPLES:  # of some channels a ReLU leaves the smallest values alone
        assert gpu.problems("inference relu", (5, 96, 4, 4), torch.float32, sample, "cpu", "cpu") == []
    norm = gpu.NORMS["layer_norm"]
    for broken, word in (
        (lambda x, w, b, **o: norm.call(x, w, b, **o) * (1 + 1e-6 * (x.dtype == torch.float32)), "R = "),
        (
            lambda x, w, b, **o: norm.call(x, w, b, **o) + (1e-7 * x.shape[0] if o["backend"] == "cpu" else 0),
            "alone has other bits",
        ),
    ):
        monkeypatch.setitem(gpu.NORMS, "layer_norm", norm._replace(plain=broken))
        assert any(word in problem for problem in gpu.problems(*case, "cpu"))


def test_the_check_passes_channel_norms():
    from benchmarks import gpu

    for name in gpu.CHANNEL_NORMS:
        for dtype, sample in ((torch.float32, "1e18"), (torch.float16, "N(0,1)")):
            assert gpu.problems(name, (3, 6, 5, 7), dtype, sample, "cpu", "cpu") == []


def test_the_check_of_calls_passes_what_is_right_and_finds_what_is_not(monkeypatch):
    from benchmarks import gpu_calls

    parts = gpu_calls.parts({}, {}, "cpu", "cpu", True)
    assert [part() for part in parts.values()] == [[], []]
    right = gpu_calls.F.layer_norm
    wrong = lambda x, **options: right(x, **options) * (1 + 0.5 * (not x.is_contiguous()))  # noqa: E731
    monkeypatch.setattr(gpu_calls.F, "layer_norm", wrong)
    monkeypatch.setattr(gpu_calls, "ulp_error", lambda a, b: 7.0)
    found = [problem for part in parts.values() for problem in part()]
    assert found[0] == "a view of every third row has other bits than a copy"
    assert found[-1] == "momentum None, mask True: running_var is 7.00 ulps off"


def test_the_benchmark_trains_a_model():
    from benchmarks import gpu_calls

    owner, step = next(gpu_calls.training_steps("cpu", width=64, depth=1))
    step()
    assert owner == "Hugging Face"


def test_gpus_older_than_the_compiled_code_are_named(monkeypatch):
    found = {0: (8, 9), 1: (7, 5)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
    monkeypatch.setattr(torch.cuda, "get_device_capability", found.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(_triton, "MISSING", "")
    _triton.too_old.cache_clear()
    reason = (
        "GPU 1 has compute capability 7.5, the kernels take 8.0 (Ampere) and later; "
        "hide it with CUDA_VISIBLE_DEVICES if another GPU has that"
    )
    assert (_triton.availability(), _triton.supports("rows", None, ())) == (reason, reason)
    _triton.too_old.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: pytest.fail("CUDA was started"))
    assert _triton.supports("rows", None, (torch.zeros(1),)) == "a tensor is on cpu"
    monkeypatch.setattr(torch.version, "hip", "7.0")  # whose numbers mean something else
    assert _triton.availability().startswith("available: ")
    _triton.too_old.cache_clear()
