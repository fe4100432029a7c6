"""Calls on a GPU as a compiler sees them: on fake tensors of a GPU that need not be here.

Derivatives are left out: autograd asks torch for the GPU. What they call has fakes, which are asked directly.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import evenkeel as ek
import evenkeel.functional as F
from evenkeel._spec import ChannelOptions, RowOptions
from evenkeel.kernels import _triton
from evenkeel.nn import _batch_norm

OPERATORS = torch.ops.evenkeel


@pytest.fixture
def operators(monkeypatch):
    """Compile a call on fake tensors without a graph break, and name the operators that it runs."""
    monkeypatch.setattr(_triton, "absence", lambda: "")
    torch._dynamo.reset()

    def trace(call, *tensors):
        found = []

        def keep(graph, inputs):
            found.append(graph)
            return graph.forward

        torch.compile(call, backend=keep, fullgraph=True)(*tensors)
        (graph,) = found
        targets = [str(node.target) for node in graph.graph.nodes]
        return {target.split(".")[1] for target in targets if target.startswith("evenkeel.")}

    with FakeTensorMode():
        yield trace


def on_gpu(*shapes, dtype=torch.float32):
    return [torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes]


def devices(results):
    return {t.device.type for t in results}


def test_a_norm_is_one_operator(operators):
    assert operators(lambda x, w: F.rms_norm(x, (8,), w, backend="triton"), *on_gpu((4, 8), 8)) == {"rows_inference"}


@pytest.mark.slow
def test_other_norms_and_tables_are_one_operator_each(operators):
    def call(x, maps, w, b, photos):
        y, _ = F.add_layer_norm(x, x, (8,), backend="triton")
        maps = F.group_norm(maps, 2, w, b, activation="silu", backend="triton")
        planes = F.image_normalize(photos, [0.4] * 3, (0.2, 0.2, 0.3), layout="CHW", backend="triton")
        return y, maps, F.column_moments(x, backend="triton").mean, planes

    wanted = {"rows_forward", "channels_forward", "column_moments"}  # pictures are plain code there
    assert operators(call, *on_gpu((4, 8), (2, 8, 3), 8, 8, (3, 5, 5))) == wanted


def test_the_plain_average_waits_for_no_number(monkeypatch):
    given = []
    monkeypatch.setattr(_batch_norm.F, "batch_norm", lambda *arguments, **options: given.append(arguments[6]))
    with FakeTensorMode():
        ek.nn.BatchNorm1d(4, momentum=None, device="cuda")(*on_gpu((6, 4)))
    (momentum,) = given
    assert (momentum.device.type, momentum.dtype, momentum.shape) == ("cuda", torch.float64, ())


def test_operators_tell_what_they_return_on_a_gpu():
    with FakeTensorMode():
        x, maps, w, b = on_gpu((4, 8), (2, 8, 3, 3), 8, 8)
        options = RowOptions(1, 1e-5, 0, 0.0, False, True)
        y, total, statistics = OPERATORS.rows_forward(x, x.half(), w, b, 1, *options, False)
        assert (y.dtype, total.dtype, tuple(statistics.shape)) == (torch.float32, torch.float16, (4, 3))
        flags = (True, True, True, True, False)
        gradients = OPERATORS.rows_backward(y, total, x, x.half(), w, b, statistics, 1, *options, *flags)
        assert [tuple(t.shape) for t in gradients] == [(4, 8), (4, 8), (8,), (8,)]
        assert devices((y, total, statistics, *gradients)) == {"cuda"}
        groups = ChannelOptions(2, 1e-5, 1, 0.0, 2)
        y, statistics, variances = OPERATORS.channels_forward(maps, w, b, None, None, None, *groups)
        gradients = OPERATORS.channels_backward(y, maps, w, b, statistics, None, False, *groups, True, True, True)
        assert (tuple(statistics.shape), tuple(variances.shape)) == ((4, 5), (4,))
        assert [t.shape for t in gradients] == [maps.shape, w.shape, b.shape]
        assert devices((y, statistics, variances, *gradients)) == {"cuda"}
