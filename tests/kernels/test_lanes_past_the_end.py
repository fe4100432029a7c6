"""The last vector of a row computes with zeros behind the row, not with what memory holds there.

Such a number may be denormal, and a processor then takes up to a hundred times as long for the same result: a time that
no test of values sees, but the processor's flag of results too small for a normal number does.
"""

import ctypes
import os
import platform
import random
import subprocess
import sys
from functools import partial

import channel_calls
import pytest
import torch
from settings import thread_count

from evenkeel import functional as F

LEVELS = {"avx2": ("avx2",), "avx512": ("avx2", "avx512")}
ROW_NORMS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
DTYPES = (torch.float32, torch.bfloat16, torch.float64)  # float16's results may be denormal themselves
DENORMAL_OR_TOO_SMALL = 0x02 | 0x10  # of x86, as <fenv.h> has them
CALLS = 1000
# what malloc gives is full of numbers whose products with others are too small; no memory is that of an earlier call
POISON = {"MALLOC_PERTURB_": "127", "EVENKEEL_POOL_MB": "0"}
PROGRAM = "import kernels.test_lanes_past_the_end as t; t.work(int(__import__('sys').argv[1]))"

x86 = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="reads the flags of x86")


def laid_out(draw, shape):
    x = torch.randn(shape).to(draw.choice(DTYPES))
    return x.contiguous(memory_format=torch.channels_last) if len(shape) == 4 and draw.random() < 0.5 else x


def both_ways(norm, *inputs):
    """What calls a norm of tensors and takes the gradients of all of them."""
    leaves = [x.requires_grad_() for x in inputs]
    cotangent = torch.randn_like(leaves[0])

    def call():
        y = norm(*leaves)
        torch.autograd.grad(y[0] if isinstance(y, tuple) else y, leaves, cotangent)

    return call


def drawn_channels(draw):
    """A norm of channels, both ways: its description and what calls it."""
    norm = draw.choice((*channel_calls.NORMS, "of each channel"))
    side = draw.choice((2, 3, 4, 5, 7, 14))
    shape = (draw.randint(2, 9), channel_calls.GROUPS * draw.choice((1, 2, 3, 5, 12, 20, 25, 100)), side, side)
    options = {"eps_mode": draw.choice(("inside", "outside", "clamp"))}
    if norm != "instance_norm":
        options["activation"] = draw.choice((None, None, "relu", "silu"))
    x = laid_out(draw, shape)
    name = f"{norm} {x.dtype} {shape} {options}"
    if draw.random() < 0.2:
        options["mask"] = torch.rand(shape[0], *shape[2:]) < 0.7
    of_each = partial(F.group_norm, num_groups=shape[1])
    call = of_each if norm == "of each channel" else partial(channel_calls.call, norm)
    parameters = [torch.randn(shape[1], dtype=x.dtype) for _ in range(2)]
    both = both_ways(lambda x, w, b: call(x, weight=w, bias=b, **options), x, *parameters)
    return f"{name} {'mask' if 'mask' in options else ''}", both


def drawn_rows(draw):
    """A norm of rows, both ways, moments of a table, or pictures."""
    shape = (draw.randint(1, 40), draw.choice((3, 5, 9, 20, 31, 33, 65, 100, 333)))
    x = laid_out(draw, shape)
    name = draw.choice((*ROW_NORMS, "column_moments", "image_normalize"))
    if name == "column_moments":
        return f"{name} {x.dtype} {shape}", lambda: F.column_moments(x)
    if name == "image_normalize":
        pictures = torch.randint(0, 256, (2, 3, draw.randint(1, 9), draw.randint(1, 40)), dtype=torch.uint8)
        return f"{name} {pictures.shape}", lambda: F.image_normalize(pictures, [0.5] * 3, [0.25] * 3, layout="CHW")
    inputs = (x, torch.randn_like(x)) if name.startswith("add") else (x,)
    weight = torch.randn(shape[1], dtype=x.dtype)
    call = getattr(F, name)
    return f"{name} {x.dtype} {shape}", both_ways(lambda *t: call(*t[:-1], shape[1:], t[-1]), *inputs, weight)


def work(seed):
    """Run drawn calls and print those during which a number became or was too small."""
    draw, flags = random.Random(seed), ctypes.CDLL("libm.so.6")
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    for _ in range(CALLS):
        name, call = draw.choice((drawn_channels, drawn_channels, drawn_rows))(draw)
        flags.feclearexcept(DENORMAL_OR_TOO_SMALL)
        call()
        if flags.fetestexcept(DENORMAL_OR_TOO_SMALL):
            sys.stdout.write(name + "\n")


@x86
def test_no_number_of_memory_behind_a_row_is_computed_with():
    seed = random.randrange(10**6)
    for level in LEVELS[torch.ops.evenkeel.simd_level()]:
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | POISON | {"EVENKEEL_SIMD": level, "PYTHONPATH": path}
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(seed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [], f"seed {seed}, {level}"


@x86
def test_the_flags_tell_of_a_number_that_is_too_small():
    flags = ctypes.CDLL("libm.so.6")
    with thread_count(1):
        flags.feclearexcept(DENORMAL_OR_TOO_SMALL)
        F.layer_norm(torch.full((2, 5), 1e-40), (5,), backend="cpu")
        assert flags.fetestexcept(DENORMAL_OR_TOO_SMALL)
