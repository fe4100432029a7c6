"""What the parts and cases of `benchmarks.gpu` do where a GPU, memory, time or a peer lets them down."""

import math
import sys
import time

import pytest
import torch


@pytest.fixture
def timed(monkeypatch):
    """Times that need no GPU: every call takes two seconds on the GPU, and three in Python."""
    from benchmarks import gpu_record, gpu_times

    def seconds(taken):
        return lambda call: call() is None or taken

    monkeypatch.setattr(gpu_times, "on_device_seconds", seconds(2.0))
    monkeypatch.setattr(gpu_times, "eager_seconds", seconds(3.0))
    monkeypatch.setattr(gpu_record, "settle", lambda: None)
    return gpu_times


def test_times_keep_what_a_contender_cannot_do(timed):
    x, w, b = torch.ones(3, 8), torch.ones(8).requires_grad_(), torch.zeros(8).requires_grad_()
    _, whole, _ = timed.row_contenders("layer_norm", w, b)
    found = timed.times_of(whole, x, x, 1.0)
    assert (found["forward share"], found["backward share"], found["both"]) == (0.5, 0.75, 2.0)
    assert (found["eager"], found["eager both"]) == (3.0, 3.0)
    forward_only = timed.Contender("peer", lambda x: x.detach() * 2)
    found = timed.times_of(forward_only, x, x, 1.0)
    assert found["forward"] == 2.0
    assert "does not require grad" in found["error"]
    case = timed.Case("layer_norm", (3, 8), torch.bfloat16)
    line = timed.line_of(case, {"norm": "layer_norm", "copy": 1e-5, "peer": found | {"eager": 7e-6}})
    assert line.startswith("layer_norm 3x8 bfloat16: copy 10.0 us; peer 0.50 (7 us) RuntimeError: element 0 of tensors")


def test_our_own_errors_and_a_broken_gpu_are_no_result(timed, monkeypatch):
    def wrong(x):
        raise ValueError("illegal")

    x = torch.ones(3, 8)
    assert timed.times_of(timed.Contender("peer", wrong), x, x, 1.0) == {"error": "ValueError: illegal"}
    with pytest.raises(ValueError, match=r"^illegal$"):
        timed.times_of(timed.Contender("evenkeel", wrong), x, x, 1.0)
    monkeypatch.setattr(timed, "is_broken", lambda: True)
    with pytest.raises(RuntimeError, match=r"^peer: ValueError: illegal$"):
        timed.times_of(timed.Contender("peer", wrong), x, x, 1.0)


def test_the_gpu_waits_longer_where_python_is_slower_than_it(monkeypatch):
    from benchmarks import gpu_times

    class Event:
        waits = 0

        def __init__(self, enable_timing):
            pass

        def record(self):
            pass

        def query(self):
            return Event.waits < 4 * gpu_times.CYCLES

        def elapsed_time(self, end):
            return Event.waits / gpu_times.CYCLES

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device, **options: zeros(1, **options))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: setattr(Event, "waits", cycles))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert gpu_times.on_device_seconds(lambda: None) == 4e-3


def test_a_slow_moment_does_not_move_the_eager_time(monkeypatch):
    from benchmarks import gpu_times

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ticks = iter([0.0, 1.0, 10.0, 11.0, 20.0, 25.0, 30.0, 31.0, 40.0, 41.0])
    monkeypatch.setattr(gpu_times.time, "perf_counter", lambda: next(ticks))
    assert gpu_times.eager_seconds(lambda: None) == 0.1


def test_every_case_has_a_name_of_its_own():
    from benchmarks import gpu_times

    cases = gpu_times.cases()
    assert len({str(case) for case in cases}) == len(cases)


@pytest.mark.parametrize(("norm", "tensors"), [("layer_norm", 4), ("group_norm last", 7), ("map", 6)])
def test_a_case_for_which_memory_lacks_is_left_out(monkeypatch, norm, tensors):
    from benchmarks import gpu_record, gpu_times

    case = gpu_times.Case(norm, (1024, 1024), torch.float32)
    free = tensors * 2**22 + gpu_times.FLUSHED
    for kind in ("time_norm", "time_table"):
        monkeypatch.setattr(gpu_times, kind, lambda case: {"copy": 1.0})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 0))
    assert gpu_times.time_case(case)["copy"] == 1.0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free - 1, 0))
    with pytest.raises(gpu_record.LeftOutError, match=r"takes 0.5 GiB of memory, 0.5 are free"):
        gpu_times.time_case(case)


def test_more_than_2_31_elements_are_left_out_of_a_small_gpu(monkeypatch):
    from benchmarks import gpu_calls, gpu_record

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (12 * 2**30, 0))
    with pytest.raises(gpu_record.LeftOutError, match=r"takes 12.9 GiB of memory, 12.0 are free"):
        list(gpu_calls.huge_problems("triton"))


SAID = "========= COMPUTE-SANITIZER\nrows: green\n========= Invalid read\n=========     at here\n"


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (0, "========= COMPUTE-SANITIZER\nrows: green\n========= ERROR SUMMARY: 0 errors\n", []),
        (3, "rows: green\n========= Target application returned an error\n", []),
        (9, SAID, ["compute-sanitizer: Invalid read at here"]),
        (1, "rows: R = 9\n========= ERROR SUMMARY: 0 errors\n", ["compute-sanitizer: rows: R = 9"]),
        (None, "========= COMPUTE-SANITIZER\nrows: green\n", []),
        (None, SAID, ["compute-sanitizer: Invalid read at here"]),
    ],
)
def test_the_check_runs_under_the_sanitizer_where_it_is(monkeypatch, status, text, said):
    from benchmarks import gpu_calls, gpu_record

    monkeypatch.setattr(gpu_calls, "output_within", lambda seconds, command: (status, text))
    monkeypatch.setattr(gpu_calls.shutil, "which", lambda name: "/bin/compute-sanitizer")
    assert list(gpu_calls.sanitizer_problems()) == said
    monkeypatch.setattr(gpu_calls, "output_within", lambda seconds, command: (None, "========= COMPUTE-SANITIZER"))
    with pytest.raises(gpu_record.LeftOutError, match="no part was over in 9 s"):
        list(gpu_calls.sanitizer_problems(9))
    monkeypatch.setattr(gpu_calls.shutil, "which", lambda name: None)
    with pytest.raises(gpu_record.LeftOutError, match="not installed"):
        list(gpu_calls.sanitizer_problems())


def test_a_command_ends_in_its_time_with_all_that_it_has_started():
    from benchmarks import gpu_calls

    child = "import subprocess, sys; print('green', flush=True); subprocess.run(['sleep', '60'])"
    started = time.monotonic()
    assert gpu_calls.output_within(3, [sys.executable, "-c", child]) == (None, "green\n")
    assert time.monotonic() - started < 30
    assert gpu_calls.output_within(60, [sys.executable, "-c", "exit(3)"]) == (3, "")


def test_the_sanitizer_is_begun_only_where_its_time_is_left():
    from benchmarks import gpu

    def sanitizer(seconds):
        return next(job.seconds for job in gpu.check_jobs(False, seconds) if job.name == "sanitizer")

    assert (sanitizer(math.inf), sanitizer(500), sanitizer(100)) == (240, 240, 50)
