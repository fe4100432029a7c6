"""Large outputs: blocks that wait for the next one, writes past the caches, more than 2^31 elements."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from evenkeel import functional as F

LARGE = (4096, 512)  # 8 MB in float32
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="blocks wait on Linux alone")


def run(program, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


@on_linux
def test_a_freed_output_is_used_again_and_a_live_one_is_not():
    x = torch.randn(LARGE)
    first = F.rms_norm(x, LARGE[1:], backend="cpu")
    kept, address = first.clone(), first.data_ptr()
    second = F.rms_norm(2 + x, LARGE[1:], backend="cpu")
    assert second.data_ptr() != address
    assert torch.equal(first, kept)
    view = first[:1]
    del first
    assert F.rms_norm(x, LARGE[1:], backend="cpu").data_ptr() != address  # the view still holds it
    del view
    assert F.rms_norm(x, LARGE[1:], backend="cpu").data_ptr() == address


FAULTS = """
import resource, sys, torch
from evenkeel import functional as F
torch.set_num_threads(1)
x = torch.randn(int(sys.argv[1]), 64)
def faults(**backend):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        F.layer_norm(x, (64,), **backend)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for backend in ({}, {"backend": "cpu"}):  # by a compiled node and by an operator
    faults(**backend)
    print(faults(**backend))
"""


@on_linux
@pytest.mark.parametrize("rows", [512, 2304, 4096], ids=lambda rows: f"{rows // 4} kB")
def test_a_result_that_malloc_would_give_back_costs_no_page_faults(rows):
    strict = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}  # as at the start of a process
    counts = map(int, run(FAULTS, str(rows), **strict).split())
    assert all(count < 100 for count in counts)  # 3300 and more of them came from malloc


@pytest.mark.parametrize("rows", [4096, 2**14, 100], ids=lambda rows: f"{rows} rows")
def test_a_large_result_serves_as_out_for_any_other_shape(rows):
    x = torch.randn(rows, 512)
    previous = F.layer_norm(torch.randn(LARGE), LARGE[1:], backend="cpu")[1:]
    with pytest.warns(UserWarning, match="was resized"):
        assert F.rms_norm(x, (512,), out=previous, backend="cpu") is previous
    assert torch.equal(previous, F.rms_norm(x, (512,)))
    if rows > LARGE[0]:  # it has moved to memory of torch's
        assert previous.resize_(2 * rows, 512).shape == (2 * rows, 512)


def test_a_large_result_of_a_compiled_node_can_be_resized():
    y = F.layer_norm(torch.randn(LARGE), LARGE[1:])
    first = y[:2].clone()
    assert torch.ops.evenkeel.is_pooled(y)
    y.resize_(2 * LARGE[0], LARGE[1])
    assert torch.equal(y[:2], first)
    assert y.untyped_storage().nbytes() == 2 * first.new_empty(LARGE).nbytes
    y.untyped_storage().resize_(0)


PASSES = """
import torch
from evenkeel import functional as F
torch.set_num_threads(1)
x, dy = torch.randn(4096, 512, requires_grad=True), torch.randn(4096, 512)
def addresses():
    y = F.layer_norm(x, (512,))
    (dx,) = torch.autograd.grad(y, x, dy)
    return y.data_ptr(), dx.data_ptr()
print(addresses() == addresses(), len(set(addresses())))
"""


@on_linux
def test_what_is_written_past_the_caches_has_blocks_of_its_own():
    # of 8 MB, the forward moves 16 MB and the backward 24; where both stay in the caches, the latest block is taken
    assert run(PASSES, EVENKEEL_CACHE_KB="48,2048,16384").split() == ["True", "2"]
    assert run(PASSES, EVENKEEL_CACHE_KB="48,2048,65536").split() == ["False", "2"]


def test_a_large_parameter_is_refused_whole():
    parameter = torch.nn.Parameter(F.layer_norm(torch.randn(LARGE), LARGE[1:], backend="cpu"))
    before = parameter.detach().clone()
    with torch.no_grad(), pytest.raises(RuntimeError, match="require grad"), pytest.warns(UserWarning, match="resized"):
        F.rms_norm(torch.randn(2 * LARGE[0], LARGE[1]), LARGE[1:], out=parameter, backend="cpu")
    assert torch.equal(parameter, before)


def test_memory_of_others_is_not_replaced():
    array = np.zeros(4, dtype=np.float32)
    with pytest.raises(RuntimeError, match="not resizable"), pytest.warns(UserWarning, match="was resized"):
        F.rms_norm(torch.randn(8), (8,), out=torch.from_numpy(array), backend="cpu")


USES_MEMORY = """
import torch
from evenkeel import functional as F
def megabytes():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1]) // 1024
x = torch.randn(4096, 1024)  # 16 MB
F.rms_norm(x, (1024,), backend="cpu")
before = megabytes()
outputs = [F.rms_norm(x, (1024,), backend="cpu") for _ in range(10)]
during = megabytes()
del outputs
print(during - before, megabytes() - before)
"""


@on_linux
@pytest.mark.parametrize("limit", [0, 40])
def test_waiting_blocks_hold_no_more_than_the_limit(limit):
    during, after = map(int, run(USES_MEMORY, EVENKEEL_POOL_MB=str(limit), MALLOC_MMAP_THRESHOLD_="1000000").split())
    assert during >= 128
    assert after <= limit + 16  # the block that waited before, and what Python itself took


MARKS = """
import torch
from evenkeel import functional as F
def marked():
    return sum(int(l.split()[1]) for l in open("/proc/self/smaps") if l.startswith("LazyFree")) // 1024
x = torch.randn(4096, 1024)  # 16 MB
outputs = [F.rms_norm(x, (1024,), backend="cpu") for _ in range(4)]
for _ in range(4):
    outputs.pop()
    print(marked())
F.rms_norm(x, (1024,), backend="cpu")  # takes the latest block and frees it again
print(marked())
"""


@on_linux
def test_the_system_may_take_all_but_the_latest_waiting_blocks():
    assert run(MARKS, EVENKEEL_POOL_MB="64").split() == ["0", "0", "16", "32", "32"]


def test_threads_do_not_share_a_block():
    failures = []

    def work(seed):
        x = torch.randn(LARGE, generator=torch.Generator().manual_seed(seed))
        expected = F.rms_norm(x, LARGE[1:], backend="cpu").clone()
        same = [torch.equal(F.rms_norm(x, LARGE[1:], backend="cpu"), expected) for _ in range(20)]
        failures.extend(seed for ok in same if not ok)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


FORKS = """
import os, torch
from evenkeel import functional as F
torch.set_num_threads(2)
x = torch.randn(4096, 512)
waiting = F.layer_norm(x, (512,), backend="cpu")
expected = waiting.numpy().tobytes()
del waiting
child = os.fork()
if child == 0:  # the parent's waiting block is the child's own copy
    outputs = [F.layer_norm(x, (512,), backend="cpu") for _ in range(3)]
    os._exit(0 if all(y.numpy().tobytes() == expected for y in outputs) else 3)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, F.layer_norm(x, (512,), backend="cpu").numpy().tobytes() == expected)
"""


@on_linux
def test_a_forked_child_has_blocks_of_its_own():
    assert run(FORKS, PYTHONWARNINGS="ignore").split() == ["0", "True"]


@pytest.mark.parametrize("features", [1040, 1023])  # rows on cache lines, and not
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_writing_past_the_caches_does_not_change_a_bit(dtype, features):
    rows = (12 << 20) // features // dtype.itemsize
    x, dy = (torch.randn(rows, features).to(dtype) for _ in range(2))
    weight = torch.randn(features).to(dtype)
    leaf = x.requires_grad_()
    y = F.layer_norm(leaf, (features,), weight, backend="cpu")
    (dx,) = torch.autograd.grad(y, leaf, dy)
    for part in (slice(0, 100), slice(rows - 100, rows)):
        leaf = x.detach()[part].clone().requires_grad_()
        y_part = F.layer_norm(leaf, (features,), weight, backend="cpu")
        assert torch.equal(y[part], y_part)
        assert torch.equal(dx[part], torch.autograd.grad(y_part, leaf, dy[part])[0])


@pytest.mark.slow
@pytest.mark.alone
def test_more_than_two_to_the_31_elements():
    features = 4096
    rows = 2**31 // features + 3
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 10 << 30:
        pytest.skip("needs 10 GB of free memory: input and output have 4.3 GB each")
    x = torch.zeros(rows, features, dtype=torch.bfloat16)
    ends = torch.tensor([0, 1, rows - 3, rows - 2, rows - 1])
    x[ends] = torch.randn(5, features).bfloat16()
    assert x.numel() > 2**31
    weight, options = torch.randn(features), (1, 1, 1e-5, 0, 0.0, False, False)
    y, _, statistics = torch.ops.evenkeel.rows_forward(x, None, weight, None, *options, False)
    assert torch.equal(y[ends], F.layer_norm(x[ends], (features,), weight, backend="cpu"))
    assert (y[rows // 2] == 0).all()

    def dweight_of(x, statistics):
        needed = (False, False, True, False)  # dx would be 4.3 GB more
        gradients = torch.ops.evenkeel.rows_backward(
            x, None, x, None, weight, None, statistics, *options, *needed, False
        )
        return gradients[2]

    dweight, few = dweight_of(x, statistics), dweight_of(x[ends], statistics[ends])
    torch.testing.assert_close(dweight, few)  # the other rows are 0; only the order of the sum differs
