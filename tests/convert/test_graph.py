"""The data flow of a run: who made and who reads each tensor, through views, writes and calls of modules."""

import pytest
import torch
from hugging_face import MODELS
from torch import nn

from evenkeel.convert._graph import trace
from evenkeel.recognition import Call

X = torch.randn(2, 3, 8)


class Flow(nn.Module):
    """A model of one function."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(modules)

    def forward(self, x):
        return self.function(x, *self.inner)


def flow(function, *modules, units=()):
    return trace(Flow(function, *modules), Call.of(X), units)


def ops(graph):
    return [node.op.removeprefix("aten.") for node in graph.nodes]


def test_operations_are_recorded_with_their_parameters_and_calls():
    linear = nn.Linear(8, 4)
    graph = flow(lambda x, f: f(x).relu(), linear)
    product = next(node for node in graph.nodes if node.op == "aten.addmm")
    assert product.arguments["self"].tensor is linear.bias
    assert product.inputs[2].producer.inputs[0].names == ("inner.0.weight",)
    assert [call.name for call in product.calls] == ["", "inner.0"]
    assert graph.results[0].producer.op == "aten.relu"
    assert graph.results[0].is_result
    assert [call.name for call in graph.calls] == ["", "inner.0"]
    assert graph.calls[1].outputs[0].readers[0].op == "aten.relu"


def test_a_unit_is_one_operation():
    norm = nn.LayerNorm(8)
    graph = flow(lambda x, f: x + f(x), norm, units=[norm])
    assert ops(graph) == ["module", "add"]
    node = graph.node_of(norm)
    assert node.inputs == graph.calls_of(norm)[0].inputs
    assert node.outputs[0].readers == [graph.nodes[1]]
    assert node.inputs[0].readers == graph.nodes
    assert flow(lambda x, f: f(f(x)), norm, units=[norm]).node_of(norm) is None


def test_a_value_that_is_written_into_is_another_and_so_are_its_views():
    def written(x):
        y = x * 2
        view = y.view(6, 8)
        y.add_(1)
        return y, view

    graph = flow(written)
    whole, view = graph.results
    assert whole.producer.op == "aten.add_"
    assert whole.producer.inputs[0].producer.op == "aten.mul"
    assert view.producer.op == "written through a view"
    assert view.producer.inputs[0].producer.op == "aten.view"


def test_what_torch_does_not_see_is_the_module_around_it():
    class Unseen(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.numpy() * 2)

    unseen = Unseen()
    graph = flow(lambda x, f: f(x) + 1, unseen)
    assert ops(graph)[-2:] == ["module", "add"]
    assert graph.nodes[-2].module is unseen
    assert graph.nodes[-1].inputs == graph.nodes[-2].outputs


def test_a_run_leaves_no_marks():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.random.get_rng_state()
    graph = trace(model, Call.of(X))
    assert {"native_batch_norm", "bernoulli_"} <= set(ops(graph))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_compiled_model_is_followed_as_it_was():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    assert ops(trace(torch.compile(model), Call.of(X))) == ops(trace(model, Call.of(X)))


@pytest.mark.parametrize("name", ["GPT2", "BERT", "T5v1.1", "Whisper", "Mamba2", "CLIP"])
def test_models_of_transformers_are_followed(name):
    model = MODELS[name].build()
    graph = trace(model, Call.of(MODELS[name].inputs()))
    read = {id(value.tensor) for node in graph.nodes for value in node.inputs}
    assert {n for n, p in model.named_parameters() if id(p) not in read} <= {"decoder.embed_tokens.weight"}
    assert all(value.producer is not None for value in graph.results)
