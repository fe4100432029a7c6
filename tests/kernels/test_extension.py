"""The compiled extension in a forked child, where it is missing, and where it is old."""

import os
import subprocess
import sys

import pytest
import torch

from evenkeel._spec import ChannelOptions, RowOptions

FORK_PROGRAM = """
import os, sys, torch
from evenkeel import functional as F
x = torch.randn(4096, 768)
expected = F.layer_norm(x, (768,), backend="cpu").numpy().tobytes()  # starts the threads
child = os.fork()
if child == 0:  # nothing of torch that runs in parallel here: that would hang
    os._exit(0 if F.layer_norm(x, (768,), backend="cpu").numpy().tobytes() == expected else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_does_not_hang():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK_PROGRAM], timeout=60, check=False)
    assert done.returncode == 0


def test_a_missing_extension_is_told_and_never_silent(tmp_path):
    program = (
        "import torch, evenkeel as ek\n"
        "from evenkeel.kernels import _cpu, _rows, _small\n"
        "_cpu.MISSING, _rows.normalize = 'the compiled extension is not installed', _small.decline\n"
        "print(ek.kernels_available()['cpu'])\n"
        "print(ek.functional.layer_norm(torch.ones(2, 3), (3,)).sum().item())\n"
        "with torch.no_grad():\n    print(ek.functional.layer_norm(torch.ones(2, 3), (3,)).sum().item())\n"
        "try:\n    ek.functional.layer_norm(torch.ones(2, 3), (3,), backend='cpu')\n"
        "except ek.BackendError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    out = done.stdout.splitlines()
    assert out[0] == "the compiled extension is not installed"
    assert out[1] == out[2] == "0.0"
    assert out[3].startswith("backend='cpu' cannot run this call: the compiled extension is not installed")


def test_a_processor_without_the_instructions_runs_the_reference():
    program = (
        "import torch, evenkeel as ek\n"
        "print(ek.kernels_available()['cpu'])\n"
        "print(ek.functional.layer_norm(torch.ones(2, 3), (3,)).sum().item())\n"
    )
    environment = {**os.environ, "EVENKEEL_SIMD": "none"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    reason, total = done.stdout.splitlines()
    assert reason.startswith("this processor has no AVX2, FMA and F16C, or EVENKEEL_SIMD=none asks for plain PyTorch")
    assert total == "0.0"


def test_an_extension_older_than_the_code_is_told():
    program = (
        "import evenkeel.kernels._operators as operators\n"
        "print(repr(operators.load()))\n"
        "print(operators.load((*operators.OPERATORS, 'rows_of_tomorrow')))\n"
        "operators.has_argument = lambda operator, name: False\n"
        "print(operators.load())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "''",
        "the compiled extension is older than this code (it lacks rows_of_tomorrow); reinstall evenkeel",
        "the compiled extension is older than this code (it lacks rows_forward with a residual); reinstall evenkeel",
    ]


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        *((f"rows_{name}", RowOptions) for name in ("forward", "inference", "out", "backward")),
        *((f"channels_{name}", ChannelOptions) for name in ("forward", "backward")),
    ],
)
def test_a_specs_encoding_has_the_order_of_the_schema(operator, options):
    names = [argument.name for argument in getattr(torch.ops.evenkeel, operator).default._schema.arguments]
    first = names.index(options._fields[0])
    assert tuple(names[first : first + len(options._fields)]) == options._fields
