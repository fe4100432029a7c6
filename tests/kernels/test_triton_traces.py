"""Calls on a GPU as a compiler sees them: graphs of the operators on fake tensors of a GPU that need not be here."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import evenkeel as ek
import evenkeel.functional as F
from evenkeel.kernels import _triton


class TracedError(Exception):
    """What a graph that cannot run here raises."""


@pytest.fixture
def graphs(monkeypatch):
    """The graphs, forward and backward, of a call whose tensors are on a GPU."""
    monkeypatch.setattr(_triton, "absence", lambda: "")
    torch._dynamo.reset()

    def trace(call, *tensors):
        found = []

        def keep(graph, inputs):
            def stop(*arguments):
                raise TracedError

            found.append(graph)
            return make_boxed_func(stop)

        def on_gpu(*given):
            return call(*(t.to("cuda") for t in given))

        backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
        with pytest.raises(TracedError):
            torch.compile(on_gpu, backend=backend, fullgraph=True)(*tensors)
        return found

    return trace


def operators(graph):
    """Our operators in a graph, all of whose results are on the GPU."""
    called = [node for node in graph.graph.nodes if str(node.target).startswith("evenkeel.")]
    for node in called:
        results = node.meta["val"]
        assert {t.device.type for t in (results if isinstance(results, list | tuple) else [results])} == {"cuda"}
    return {str(node.target).split(".")[1] for node in called}


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def test_a_training_call_is_two_graphs_of_one_operator_each(graphs):
    forward, backward = graphs(lambda x, w, b: F.layer_norm(x, (8,), w, b, backend="triton"), *leaves((4, 8), 8, 8))
    assert operators(forward) == {"rows_forward"}
    assert operators(backward) == {"rows_backward"}


CALLS = {
    "rms_norm": (lambda x, w: F.rms_norm(x, (8,), w, backend="triton"), ((4, 8), 8), "rows_forward", "rows_backward"),
    "add_rms_norm": (
        lambda x, r, w: F.add_rms_norm(x, r, (8,), w, backend="triton"),
        ((4, 8), (4, 8), 8),
        "rows_forward",
        "rows_backward",
    ),
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b, activation="silu", backend="triton"),
        ((2, 4, 3), 4, 4),
        "channels_forward",
        "channels_backward",
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True, backend="triton"),
        ((2, 4, 3, 3), 4, 4),
        "channels_forward",
        "channels_backward",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_norm_is_two_graphs(graphs, name):
    call, shapes, *wanted = CALLS[name]
    assert [operators(graph) for graph in graphs(call, *leaves(*shapes))] == [{one} for one in wanted]


@pytest.mark.slow
def test_a_module_that_averages_its_statistics_has_no_graph_break(graphs):
    norm = ek.nn.BatchNorm1d(4, momentum=None, backend="triton")

    def call(x, *buffers):
        held = dict(zip(("running_mean", "running_var", "num_batches_tracked"), buffers, strict=True))
        return torch.func.functional_call(norm, held | {"weight": x[0], "bias": x[1]}, (x,))

    tensors = torch.randn(6, 4), torch.zeros(4), torch.ones(4), torch.tensor(0)
    (graph,) = graphs(call, *tensors)
    assert operators(graph) == {"channels_forward"}


@pytest.mark.slow
def test_inference_and_tables_are_one_graph(graphs):
    def call(x, shift, scale):
        y = F.layer_norm(x, (8,), backend="triton")
        return y, F.column_affine(x, shift, scale, backend="triton"), F.column_moments(x, backend="triton").mean

    (graph,) = graphs(call, torch.randn(4, 8), *(torch.rand(8, dtype=torch.float64) for _ in range(2)))
    assert operators(graph) == {"rows_inference", "column_affine", "column_moments"}
