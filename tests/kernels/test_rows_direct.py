"""Row kernels called past torch's dispatcher: the operators' bits, and the operators wherever one would notice."""

import ctypes
import gc
import re
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from settings import Seen, thread_count
from torch.fx.experimental.proxy_tensor import make_fx

from evenkeel import functional as F
from evenkeel.functional import _rows_autograd
from evenkeel.functional._specs import row_spec
from evenkeel.kernels import _operators, _rows, _small

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OPTIONS = row_spec("layer_norm", "moments", 1e-5).row_options


def by_operator(call, *args, **options):
    """The same call through the dispatcher, which a mode asks for."""
    with Seen() as seen:
        result = call(*args, **options)
    assert seen.names
    return result


@pytest.fixture
def counted(monkeypatch):
    """How many calls went past the dispatcher, of backward nodes in Python."""
    done = []
    monkeypatch.setattr(_rows_autograd, "nodes", None)
    for name in ("normalize", "differentiate"):
        function = getattr(_rows, name)

        def counting(*args, function=function, name=name):
            result = function(*args)
            done.extend([name] if result is not None else [])
            return result

        monkeypatch.setattr(_rows, name, counting)
    return done


def sample(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def same(first, second):
    pairs = list(zip(first, second, strict=True))
    assert all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs if a is not None)
    return all(a is b or torch.equal(a, b) for a, b in pairs)


def test_small_tensors_go_past_the_dispatcher(counted):
    x = sample(2, 8).requires_grad_()
    y = F.layer_norm(x, (8,))
    y.backward(torch.ones_like(y))
    with torch.no_grad():
        F.rms_norm(x, (8,))
    with torch.inference_mode():
        F.layer_norm(x.detach(), (8,))
    assert counted == ["normalize", "differentiate", "normalize", "normalize"]


@pytest.mark.parametrize("eps_mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("statistic", ["rms", "moments", "l2"])
@pytest.mark.parametrize("affine_dtype", [None, *FLOATS], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bits_are_the_operators(counted, dtype, affine_dtype, statistic, eps_mode):
    x, dy = sample(5, 3, 33, dtype=dtype), sample(5, 3, 33, dtype=dtype).flip(0)
    affine = (
        (None, None) if affine_dtype is None else (sample(3, 33, dtype=affine_dtype), sample(3, 33).to(affine_dtype))
    )
    options = row_spec("norm", statistic, 1e-5, eps_mode, 0.5).row_options
    y, statistics = _rows.normalize_small(x, (3, 33), *affine, options, True)
    backward = (dy, None, (x, None, *affine, statistics), 2, options, (True, False, True, True), False)
    gradients = _rows.rows_backward(*backward)
    assert counted == ["normalize", "differentiate"]
    forward = torch.ops.evenkeel.rows_forward.default
    assert same((y, statistics), by_operator(forward, x, None, *affine, 2, *options, False)[::2])
    assert same(gradients, [g if g.numel() else None for g in by_operator(_rows.rows_backward, *backward)])


@pytest.mark.parametrize("needed", [(True, False, False), (False, True, False), (False, False, True)])
@pytest.mark.parametrize("from_output", [False, True])
def test_only_the_needed_gradients_are_made(needed, from_output):
    x, weight, bias = sample(6, 40), 1 + 0.1 * sample(40), 0.1 * sample(40)
    y, _, statistics = torch.ops.evenkeel.rows_forward.default(x, None, weight, bias, 1, *OPTIONS, from_output)
    saved = (y if from_output else x, None, weight, bias, statistics)
    needed = (needed[0], False, *needed[1:])
    args = (x.flip(0), None, saved, 1, OPTIONS, needed, from_output)
    gradients = _rows.rows_backward(*args)
    assert [g is not None for g in gradients] == list(needed)
    assert same(gradients, [g if g.numel() else None for g in by_operator(_rows.rows_backward, *args)])


# straddling the sizes from which other Python threads may run, tasks are shared, and the operators take over
@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 2048, 4095])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sizes_at_which_the_way_changes(counted, rows, threads):
    x, weight = sample(rows, 256), sample(256)
    with thread_count(threads), torch.no_grad():
        y = F.layer_norm(x, (256,), weight)
    assert counted == ["normalize"]
    with torch.no_grad():
        assert torch.equal(y, by_operator(F.layer_norm, x, (256,), weight))
        F.layer_norm(sample(4096, 256), (256,))
    assert counted == ["normalize"]


class Own(torch.Tensor):
    """A subclass."""


# with the values of the tensor that they are made from
UNUSUAL = {
    "negated view": lambda t: torch._neg_view(-t),
    "every second": lambda t: t.repeat_interleave(2, 0)[::2],
    "subclass": lambda t: t.as_subclass(Own),
    "double": lambda t: t.double(),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_tensors_give_the_same(counted, name):
    change = UNUSUAL[name]
    x, weight, bias = sample(4, 6), sample(6), sample(6).flip(0)
    with torch.no_grad():
        expected = F.layer_norm(x, (6,), weight, bias)
        assert counted.pop() == "normalize"
        with_parameters = F.layer_norm(x, (6,), change(weight), bias), F.layer_norm(x, (6,), weight, change(bias))
        y = F.layer_norm(change(x), (6,), weight, bias)
    assert counted == (["normalize"] * 3 if name == "double" else [])
    assert all(torch.equal(found, expected) for found in with_parameters)
    torch.testing.assert_close(y.as_subclass(torch.Tensor).float(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "x",
    [
        sample(0, 6),
        sample(4, 6).to("meta"),
        torch._efficientzerotensor(4, 6),
        torch._to_functional_tensor(sample(4, 6)),
    ],
    ids=["empty", "meta", "no memory", "functional"],
)
def test_tensors_without_memory_take_the_ordinary_way(counted, x):
    with torch.no_grad():
        y = F.rms_norm(x, (6,))
    assert counted == []
    assert y.shape == x.shape


@pytest.mark.parametrize("shape", [(5,), (4, 6, 1), (2, 4, 6), (), ("6",)], ids=str)
def test_a_wrong_shape_is_told_as_before(counted, shape):
    with torch.no_grad(), pytest.raises((RuntimeError, TypeError)) as told:
        F.layer_norm(sample(4, 6), shape)
    with pytest.raises(type(told.value)) as told_otherwise:
        F.layer_norm(sample(4, 6), shape, backend="cpu")
    assert counted == []
    assert str(told.value) == str(told_otherwise.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": sample(5)},
        {"weight": sample(1, 6)},
        {"bias": torch.ones(6, dtype=torch.int64)},
        {"eps": "small"},
        {"weight_offset": None},
        {"eps_mode": "beside"},
        {"eps_mode": ["inside"]},
    ],
    ids=str,
)
def test_wrong_arguments_are_told_as_before(counted, wrong):
    with torch.no_grad(), pytest.raises((RuntimeError, TypeError, ValueError)) as told:
        F.layer_norm(sample(4, 6), (6,), **wrong)
    with pytest.raises(type(told.value)) as told_otherwise:
        F.layer_norm(sample(4, 6), (6,), **wrong, backend="cpu")
    assert counted == []
    assert str(told.value) == str(told_otherwise.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_whoever_watches_sees_an_operator(counted):
    x = sample(4, 6)
    with torch.no_grad(), Seen() as seen:
        F.layer_norm(x, (6,))
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        F.layer_norm(x, (6,))
    assert seen.names == ["rows_inference"]
    assert "evenkeel::rows_inference" in {event.key for event in profile.key_averages()}
    with torch.no_grad():
        made = make_fx(lambda t: F.layer_norm(t, (6,)), pre_dispatch=True)(x)
        traced = torch.jit.trace(lambda t: F.layer_norm(t, (6,)), x, check_trace=False)
        mapped = torch.func.vmap(lambda t: F.layer_norm(t, (6,)))(x)
        assert counted == []
        torch.testing.assert_close(traced(2 * x - 1), F.layer_norm(2 * x - 1, (6,)))
        assert torch.equal(made(2 * x - 1), F.layer_norm(2 * x - 1, (6,)))
        torch.testing.assert_close(mapped, F.layer_norm(x, (6,)))


def test_without_the_extension_the_operators_serve(monkeypatch):
    x = sample(4, 6).requires_grad_()

    def run():
        y = F.layer_norm(x, (6,))
        with torch.no_grad():
            return y, F.rms_norm(x, (6,)), *torch.autograd.grad(y, x, sample(4, 6).flip(0))

    expected = run()
    monkeypatch.setattr(_rows, "normalize", _small.decline)
    monkeypatch.setattr(_rows, "differentiate", _small.decline)
    assert same(run(), expected)


def test_outputs_are_contiguous_whatever_single_axes_say(counted):
    x = sample(2, 6, 1, 1).to(memory_format=torch.channels_last)
    assert x.stride() != sample(2, 6, 1, 1).stride()
    with torch.no_grad():
        assert F.layer_norm(x, (6, 1, 1)).stride() == (6, 1, 1, 1)
    assert counted == ["normalize"]


def test_what_is_saved_can_be_moved_elsewhere():
    x = sample(8, 64).requires_grad_()

    def pack(saved):
        copy = saved.detach().clone()
        if saved.data_ptr() != x.data_ptr():
            saved.untyped_storage().resize_(0)
        return copy

    expected = torch.autograd.grad(F.layer_norm(x, (64,)).square().sum(), x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda copy: copy):
        y = F.layer_norm(x, (64,))
    assert same(torch.autograd.grad(y.square().sum(), x), expected)


def test_an_interruption_is_not_swallowed():
    class Eps:
        def __float__(self):
            raise KeyboardInterrupt

    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        F.layer_norm(sample(4, 6), (6,), eps=Eps())


@pytest.mark.parametrize("exchange", [None, 123])
def test_a_torch_without_exchange_functions_does_without(monkeypatch, exchange):
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", exchange)
    assert _small.load() is None


class DirectPattern(ctypes.Structure):
    """`evenkeel::DirectRows` and `evenkeel::DirectChannels` of csrc."""

    _fields_ = (("layout", ctypes.c_size_t), ("forward", ctypes.c_void_p), ("backward", ctypes.c_void_p))


PATTERNS = ("evenkeel_direct_rows", "evenkeel_direct_channels")


def prepare(tables):
    """Whether the extension takes the functions that give these tables."""
    exchange = torch.Tensor.__dlpack_c_exchange_api__
    addresses = [ctypes.cast(table, ctypes.c_void_p).value for table in tables]
    return _small.calls.prepare(*addresses, exchange, torch, torch.nn.Parameter, torch.Tensor)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_library_with_another_layout_is_refused(pattern):
    library = ctypes.CDLL(str(_operators.LIBRARY))
    tables = {name: getattr(library, name) for name in PATTERNS}
    tables[pattern].restype = ctypes.POINTER(DirectPattern)
    own = tables[pattern]().contents
    other = DirectPattern(own.layout + 1, own.forward, own.backward)
    assert prepare(tables.values())
    tables[pattern] = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(other))
    assert not prepare(tables.values())


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_layout_tells_the_order_of_members_of_one_size(tmp_path):
    sources = Path(__file__).parents[2] / "csrc"
    program = tmp_path / "main.cpp"
    includes = '#include <cstdio>\n#include "rows/direct.h"\n'
    program.write_text(includes + 'int main() { std::printf("%zu", evenkeel::layout_of_rows()); }')
    header = tmp_path / "rows" / "kernels.h"  # found before that of the sources
    header.parent.mkdir()

    def layout(*swapped):
        other = dict(zip(swapped, reversed(swapped), strict=True))
        text = (sources / "rows" / "kernels.h").read_text()
        header.write_text(re.sub(r"\w+", lambda word: other.get(word[0], word[0]), text))
        folders = ["-iquote", tmp_path, "-iquote", sources]
        subprocess.run(["g++", "-std=c++20", *folders, program, "-o", tmp_path / "main"], check=True)
        return int(subprocess.check_output([tmp_path / "main"]))

    swaps = [(), ("early", "rounded"), ("rows", "features"), ("weight", "bias"), ("x", "residual")]
    assert len({layout(*swapped) for swapped in swaps}) == len(swaps)


def test_nothing_is_held_or_lost():
    x, weight = sample(4, 6), torch.nn.Parameter(sample(6))
    held = [x, weight, None, torch.empty_like]
    gc.collect()  # what other tests left refers to None thousands of times
    before = [sys.getrefcount(each) for each in held]
    for _ in range(1000):
        y, statistics = _small.normalize(x, 1, weight, None, OPTIONS, True)
        gradients = _small.differentiate(x, x, weight, None, statistics, 1, OPTIONS, True, True, False, False)
        assert _small.normalize(x, (5,), weight, None, OPTIONS, True) is None
        assert _small.normalize(x, 1, weight, None, OPTIONS._replace(eps="eps"), True) is None
    del _
    after = [sys.getrefcount(each) for each in held]
    # other code may take or drop a reference to None meanwhile, but not a thousand
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))
    for made in (y, statistics, *gradients[:2]):
        assert sys.getrefcount(made) <= 5
    watched = weakref.ref(statistics)
    del statistics, made
    assert watched() is None
