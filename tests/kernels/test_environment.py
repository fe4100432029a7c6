"""The environment variables of the kernels, and the caches of the processor that they can replace."""

import json
import os
import subprocess
import sys

import pytest
import torch
from bits import digest

from evenkeel import functional as F
from evenkeel.cli import main

# Of tiny caches everything is written past them and a row is taken at a time, of huge ones nothing and many.
TINY, HUGE = "1,1,0", "4000,4000000,4000000"
MALFORMED = [
    ("EVENKEEL_CACHE_KB", "48,2048"),
    ("EVENKEEL_CACHE_KB", "48,2048,16384,1"),
    ("EVENKEEL_CACHE_KB", "48,2048,-1"),
    ("EVENKEEL_CACHE_KB", "48, 2048, 16384"),
    ("EVENKEEL_CACHE_KB", "48,2048,99999999999999999999"),
    ("EVENKEEL_POOL_MB", "256MB"),
    ("EVENKEEL_POOL_MB", "-1"),
    ("EVENKEEL_SIMD", "sse9"),
]
# each in a copy of one process that has imported torch; the kernels look at the variables when evenkeel is imported
REFUSED = """
import json, multiprocessing, os, sys, torch
def told(name, value):
    os.environ[name] = value
    import evenkeel as ek
    x = torch.ones(2, 3)
    small = lambda: ek.functional.layer_norm(x, (3,))
    with_out = lambda: ek.functional.layer_norm(x, (3,), out=torch.empty(2, 3))
    large = lambda: torch.no_grad()(ek.functional.rms_norm)(torch.ones(4096, 512), (512,))
    differentiated = lambda: ek.functional.rms_norm(x.requires_grad_(), (3,))
    channels = lambda: ek.functional.instance_norm(torch.ones(2, 3, 4))
    found = []
    for call in (small, with_out, large, differentiated, channels):
        try:
            call()
        except ek.InvalidArgumentError as error:
            found.append(str(error))
    print(json.dumps([found, ek.functional.layer_norm(x, (3,), backend="reference").sum().item()]))
for case in json.loads(sys.argv[1]):
    process = multiprocessing.get_context("fork").Process(target=told, args=case)
    process.start()
    process.join()
"""


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def digest_of_every_pattern():
    """The hash of what kernels of every pattern give, also apart, on no cache lines and beyond the range of floats."""
    torch.manual_seed(0)
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for features in (1024, 333):
            x, dy = (torch.randn(40, features).to(dtype).requires_grad_() for _ in range(2))
            weight, bias = (torch.randn(features).to(dtype).requires_grad_() for _ in range(2))
            y = F.layer_norm(x, (features,), weight, bias, backend="cpu")
            results += [y, *torch.autograd.grad(y, (x, weight, bias), dy)]
            results += F.add_rms_norm(x, dy, (features,), weight, backend="cpu")
        for features in (1, 31, 77, 336):
            x = torch.randn(5, 9, features + 3).to(dtype)[..., 2:-1].transpose(0, 1)
            x[3, 2] *= 1e-30
            x[6, 1:3] *= 1e30 if dtype != torch.float16 else 1e4
            x.requires_grad_()
            y = F.layer_norm(x, (features,), backend="cpu")
            results += [y, *torch.autograd.grad(y, x, torch.randn_like(y))]
            shifted = torch.empty(x.numel() + 1, dtype=dtype)[1:].view(x.shape)  # on no cache line
            results.append(F.rms_norm(x.detach(), (features,), out=shifted, backend="cpu"))
        for memory_format in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(4, 32, 12, 11).to(dtype).to(memory_format=memory_format).requires_grad_()
            y = F.group_norm(x, 8, activation="silu", backend="cpu")
            results += [y, *torch.autograd.grad(y, x, torch.randn_like(y))]
            x = torch.randn(5, 72, 7, 7).to(dtype).to(memory_format=memory_format)
            x[:, 5] *= 1e-30
            x[:, 6:8] *= 1e30 if dtype != torch.float16 else 1e4
            x.requires_grad_()
            for y in (F.batch_norm(x, None, None, training=True, backend="cpu"), F.group_norm(x, 8, backend="cpu")):
                results += [y, *torch.autograd.grad(y, x, torch.randn_like(y))]
            results.append(
                F.group_norm(x.detach()[..., :2, :2].contiguous(memory_format=memory_format), 2, backend="cpu")
            )
        mean, variance = torch.randn(37), torch.rand(37) + 0.1
        for positions in (16, 17, 25, 31, 49):
            x = torch.randn(9, 37, positions).to(dtype)
            results.append(F.batch_norm(x, mean, variance, backend="cpu"))
            results.append(F.batch_norm(x, None, None, training=True, activation="relu", backend="cpu"))
        for channels in (24, 33, 80, 120, 333):  # rows that are no cache lines, and joined to some
            mean, variance, weight = torch.randn(channels), torch.rand(channels) + 5, torch.randn(channels)
            x = torch.randn(8, channels, 12, 12).to(dtype).contiguous(memory_format=torch.channels_last)
            for activation in (None, "silu"):
                results.append(F.batch_norm(x, mean, variance, weight, activation=activation, backend="cpu"))
        table, column = torch.randn(300, 7).to(dtype), torch.randn(7, dtype=torch.float64)
        results.append(torch.ops.evenkeel.column_affine(table, column, column, column, None, None, dtype))
        pixels, colour = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8), torch.rand(3, dtype=torch.float64)
        results.append(torch.ops.evenkeel.image_normalize(pixels, colour, colour + 1, 255.0, dtype))
    return digest(results)


@pytest.mark.parametrize("caches", [TINY, HUGE])
def test_the_caches_do_not_change_a_bit(caches):
    program = "import kernels.test_environment as t; print(t.digest_of_every_pattern())"
    path = os.pathsep.join(filter(None, sys.path))
    found = run("-c", program, EVENKEEL_CACHE_KB=caches, PYTHONPATH=path).stdout.strip()
    assert found == digest_of_every_pattern()


def test_the_caches_decide_what_is_written_past_them():
    program = (
        "import json, torch, evenkeel\ntorch.set_num_threads(3)\nprint(json.dumps(torch.ops.evenkeel.memory_choices()))"
    )
    first, second, third, cores, source, past, in_order, pooled, limit = json.loads(
        run("-c", program, EVENKEEL_CACHE_KB="48,2048,16384", EVENKEEL_POOL_MB="7").stdout
    )
    assert (first, second, third, source) == (48 << 10, 2 << 20, 16 << 20, "EVENKEEL_CACHE_KB")
    assert past == 3 * second + -(-3 // cores) * third
    assert in_order in (past // 2, past)  # the latter on AMD, of three threads that share this little
    assert (pooled, limit) == (128 << 10, 7 << 20)


def test_the_processor_tells_plausible_caches():
    first, second, third, cores, _, past, *_ = torch.ops.evenkeel.memory_choices()
    assert 8 << 10 <= first <= second <= past
    assert 1 <= cores <= (os.cpu_count() or 1)
    assert third == 0 or third >= second // 4


def test_a_malformed_variable_is_refused_by_every_kernel():
    done = run("-c", REFUSED, json.dumps(MALFORMED))
    for (name, value), line in zip(MALFORMED, done.stdout.splitlines(), strict=True):
        refused, total = json.loads(line)
        assert len(refused) == 5
        assert all(said.startswith(f"{name} must be ") and said.endswith(f"is {value!r}") for said in refused)
        assert total == 0.0


def test_the_command_line_refuses_a_malformed_variable_in_one_line():
    done = run("-m", "evenkeel", "info", EVENKEEL_CACHE_KB="large")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("evenkeel: error: EVENKEEL_CACHE_KB must be the first-")
    assert done.stderr.count("\n") == 1


def test_an_empty_variable_is_an_unset_one():
    empty = dict.fromkeys(("EVENKEEL_CACHE_KB", "EVENKEEL_POOL_MB", "EVENKEEL_SIMD"), "")
    program = "import json, torch, evenkeel; print(json.dumps(torch.ops.evenkeel.memory_choices()))"
    unset, told = run("-c", program), run("-c", program, **empty)  # not here, where a test may have left other threads
    assert len(json.loads(told.stdout)) > 5
    assert told.stdout == unset.stdout


def test_info_shows_the_choices(capsys: pytest.CaptureFixture[str]):
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["compiled"]
    assert facts["caches"].endswith(")")
    assert f"({torch.get_num_threads()} threads)" in facts["streaming"]
    assert facts["pool"] == "outputs from 128 kB; at most 256 MB wait"
