"""All of `benchmarks.gpu` that a processor can stand in for: its kernels for the GPU's, its clock for events."""

import time

import pytest
import torch
from torch.overrides import TorchFunctionMode

from evenkeel.kernels import _backends


def here(argument):
    """The processor for a GPU."""
    return "cpu" if isinstance(argument, str) and argument.startswith("cuda") else argument


class OnProcessor(TorchFunctionMode):
    """Tensors of a GPU are the processor's."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*map(here, args), **{name: here(value) for name, value in (kwargs or {}).items()})


class Event:
    """What a CUDA event has."""

    def __init__(self, enable_timing):
        pass

    def record(self):
        self.seconds = time.perf_counter()

    def query(self):
        return False

    def elapsed_time(self, end):
        return (end.seconds - self.seconds) * 1e3


@pytest.fixture
def stand_in(monkeypatch):
    from benchmarks import gpu_calls, gpu_times

    monkeypatch.setitem(_backends.BACKENDS, "triton", _backends.BACKENDS["cpu"])
    monkeypatch.setattr(gpu_times, "FLUSHED", 2**12)
    monkeypatch.setattr(gpu_times, "eager_seconds", lambda call: call() is None or 1e-5)
    monkeypatch.setattr(torch, "compile", lambda call, **options: call)
    for name, value in {
        "Event": Event,
        "_sleep": lambda cycles: None,
        "synchronize": lambda: None,
        "mem_get_info": lambda: (2**40, 2**40),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    training = gpu_calls.training_steps
    monkeypatch.setattr(gpu_calls, "training_steps", lambda: training("cpu", width=64, depth=1))
    with OnProcessor():
        yield


@pytest.mark.parametrize(
    ("norm", "shape", "dtype"),
    [
        ("layer_norm", (4, 64), torch.bfloat16),
        ("rms_norm", (4, 64), torch.float32),
        ("batch_norm", (2, 64, 3, 3), torch.bfloat16),
        ("group_norm last", (2, 64, 3, 3), torch.float32),
        ("moments", (40, 16), torch.bfloat16),
        ("map", (40, 16), torch.float32),
        ("pictures", (2, 5, 4, 3), torch.uint8),
        ("training step", (), None),
    ],
)
def test_every_kind_of_case_is_timed(stand_in, norm, shape, dtype):
    from benchmarks import gpu_times

    case = gpu_times.Case(norm, shape, dtype)
    record = gpu_times.time_case(case)
    assert record.items() >= case.fields().items()
    keys = {"step"} if dtype is None else {"forward", "forward share", "eager"}
    if norm.endswith(("norm", "last")):
        keys |= {"backward", "backward share", "both", "eager both"}
    assert record["evenkeel"].keys() == record["torch"].keys() == keys
    assert str(case) in gpu_times.line_of(case, record)


def test_calls_that_only_a_gpu_makes_are_checked(stand_in, monkeypatch):
    from benchmarks import gpu, gpu_calls

    small = {"layer_norm": (7, 32), "instance_norm": (3, 8, 5, 4), "batch_norm": (3, 8, 5, 4)}
    monkeypatch.setattr(gpu_calls, "HUGE", small)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    parts = gpu.parts("cuda", "triton")
    for name in ("more than 2^31", "compiled", "second GPU"):
        assert parts[name]() == []
