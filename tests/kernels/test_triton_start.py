"""How GPU kernels are started: compiled once for what the code depends on, then found by a short key."""

import collections
import importlib
import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evenkeel._spec import ACTIVATIONS, ChannelOptions
from evenkeel.kernels.triton import _channel_calls, _layout, _start

DOCS = Path(__file__).parents[2] / "docs"


class Kernel:
    """Stands in for a jitted function: it tells who was started with what."""

    __name__ = "kernel"
    arg_names = ("x", "y", "count", "eps", "N", "num_warps", "enable_fp_fusion")

    def __init__(self):
        self.compilations, self.starts = [], []

    def __getitem__(self, grid):
        def compile_and_run(*arguments, **constants):
            self.compilations.append((grid, arguments, constants))
            return self.compiled(len(self.compilations))

        return compile_and_run

    def compiled(self, number):
        outer = self

        class Compiled:
            def __getitem__(self, grid):
                return lambda *arguments: outer.starts.append((number, grid, arguments))

        return Compiled()


@pytest.fixture
def device(monkeypatch):
    """The number of the current device."""
    current = SimpleNamespace(number=0)
    active = SimpleNamespace(get_current_device=lambda: current.number)
    monkeypatch.setattr(_start, "driver", SimpleNamespace(active=active))
    return current


@pytest.fixture
def program():
    found = _start.Program(Kernel(), 8, N=64)
    found.direct = True
    return found


def test_what_was_compiled_is_started_with_all_arguments_in_their_order(program, device):
    x = torch.zeros(64)
    program((3,), (x, None), (5,), (0.5,))
    program((4, 2), (x, None), (7,), (0.25,))
    grid, arguments, constants = program.kernel.compilations[0]
    assert (grid, arguments) == ((3,), (x, None, 5, 0.5))
    assert constants == {"N": 64, "num_warps": 8, "enable_fp_fusion": False}
    assert len(program.kernel.compilations) == 1
    assert program.kernel.starts == [(1, (4, 2, 1, 1), (x, None, 7, 0.25, 64, 8, False))]


def test_it_is_compiled_anew_where_the_code_would_differ(program, device):
    x = torch.zeros(64)
    cases = [
        ((x, None), (5,)),
        ((x.half(), None), (5,)),
        ((x[1:], None), (5,)),
        ((x, x), (5,)),
        ((None, x), (5,)),
        ((x, None), (2**31,)),
    ]
    for _ in range(2):
        for tensors, integers in cases:
            program((1,), tensors, integers, (0.5,))
    assert len(program.kernel.compilations) == len(cases)
    assert [number for number, *_ in program.kernel.starts] == [1, 2, 3, 4, 5, 6]
    device.number = 1
    program((1,), (x, None), (5,), (0.5,))
    assert len(program.kernel.compilations) == len(cases) + 1


def test_amd_code_depends_on_the_size_of_what_a_tensor_lies_in():
    x = torch.empty(2**29, device="meta")
    small, large = (
        SimpleNamespace(dtype=t.dtype, data_ptr=lambda: 0, untyped_storage=t.untyped_storage)
        for t in (x[:9].clone(), x)
    )
    assert _start.kind_of_bounded(small) != _start.kind_of_bounded(large)
    assert _start.kind_of(small) == _start.kind_of(large)


def test_a_warp_of_64_threads_stands_for_two_of_32(monkeypatch):
    monkeypatch.setattr(_start, "threads_of_warp", lambda: 64)
    assert [_start.Program(Kernel(), warps).constants["num_warps"] for warps in (1, 4, 32)] == [1, 2, 16]


def test_programs_are_told_apart_by_every_constant():
    kernel = Kernel()
    one = _start.program(kernel, 4, N=64, LOW=0.0)
    assert _start.program(kernel, 4, N=64, LOW=0.0) is one
    for other in ({"N": 64, "LOW": -0.0}, {"N": 64, "LOW": None}, {"N": 65, "LOW": 0.0}):
        assert _start.program(kernel, 4, **other) is not one
    assert _start.program(kernel, 8, N=64, LOW=0.0) is not one


def test_a_context_is_entered_for_another_device_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: f"context of {device}")

    def on(index):
        return _start.on_device(SimpleNamespace(is_cuda=True, get_device=lambda: index, device=f"cuda:{index}"))

    assert on(0) is _start.HERE
    assert on(1) == "context of cuda:1"
    assert _start.on_device(torch.zeros(1)) is _start.HERE


def test_kernels_take_tensors_then_integers_that_are_not_specialized_then_numbers(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    variants, compiler = (importlib.import_module(name) for name in ("gpu_variants", "gpu_compiled"))
    for variant in variants.variants():
        kinds = []
        for parameter in variant.kernel.params:
            if parameter.is_constexpr:
                kinds.append(3)
            elif parameter.name in variant.pointers:
                kinds.append(0)
            else:
                kinds.append(2 if parameter.name in compiler.FLOATS else 1)
                assert kinds[-1] == 2 or parameter.do_not_specialize, (variant.name, parameter.name)
        assert kinds == sorted(kinds), variant.name


def test_a_division_by_multiplication_is_exact_below_2_to_the_31():
    generator = random.Random(5)
    drawn = [generator.randrange(1, 2**31) for _ in range(300)]
    powers = [2**k + d for k in range(1, 31) for d in (-1, 0, 1)]
    for divisor in {1, 2**31 - 1, *drawn, *(number >> 20 or 1 for number in drawn), *powers}:
        factor, shift = _layout.dividing(divisor)
        assert -(2**31) <= factor < 2**31
        multiples = [divisor * k for k in (1, 2, (2**31 - 1) // divisor)]
        for n in {0, 1, 2**31 - 1, *(m + d for m in multiples for d in (-1, 0, 1)), generator.randrange(2**31)}:
            if 0 <= n < 2**31:
                assert (2 * n * (factor % 2**32)) >> (32 + shift) == n // divisor, (n, divisor)
    assert _layout.dividing(2**31) == (0, 0)


def steps_of(norm, positions, *, last, masked):
    """The programs of all that a channel norm may start."""
    groups = {"batch": 0, "inference": 0, "instance": -1, "group": 4}[norm]
    options = ChannelOptions(groups, 1e-5, 0, 0.0, ACTIVATIONS["silu"])
    layout = torch.channels_last if last else None
    call = _channel_calls.Call((8, 64, positions, 1), layout, options, norm == "inference", masked)
    names = ["measure", "merge", "write", "sums", "means", "parameters", "gradient"]
    names += ["group_forward", "group_gradient", "group_parameters"] if call.by_group else []
    return {name: getattr(call, name).program for name in names}


@pytest.mark.parametrize("norm", ["batch", "inference", "instance", "group"])
def test_a_new_size_of_maps_starts_what_is_compiled_already(norm):
    generator = random.Random(7)
    for last, masked in itertools.product((False, True), repeat=2):
        found = collections.defaultdict(set)
        for _ in range(400):
            for name, program in steps_of(norm, generator.randrange(2048, 2**20), last=last, masked=masked).items():
                found[name].add(id(program))
        # for places that divide into vectors of 1, 2, 4 and 8; merges for their numbers of parts, to a power of two
        most = {name: 7 if name in ("merge", "means", "parameters", "group_parameters") else 4 for name in found}
        assert all(len(programs) <= most[name] for name, programs in found.items()), (last, masked)
        short = [steps_of(norm, positions, last=last, masked=masked)["write"] for positions in range(1, 2048)]
        assert len(set(map(id, short))) <= 4 * 12
