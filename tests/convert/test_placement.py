"""Placement from data flow: pre, post, peri, output-only, parallel branches, and what is no residual sum."""

import pytest
import torch
from hugging_face import MODELS
from norm_models import Llama, Residual
from torch import nn

from evenkeel import InvalidArgumentError
from evenkeel.convert import Placement, plan

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own making


class Block(nn.Module):
    """A block whose names tell nothing, or the wrong thing."""

    def __init__(self, place, size=8):
        super().__init__()
        self.place = place
        self.post_norm, self.pre_norm = nn.LayerNorm(size), Llama(size)
        self.mix, self.feed, self.drop = nn.Linear(size, size), nn.Linear(size, size), nn.Dropout(0.1)
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x):
        if self.place == "pre":
            return x + self.drop(self.mix(self.post_norm(x)))
        if self.place == "post":
            return self.pre_norm(self.drop(self.mix(x)) + x)
        if self.place == "peri":
            return x + self.scale * self.post_norm(self.mix(self.pre_norm(x)))
        if self.place == "output-only":
            return x + self.drop(self.pre_norm(self.mix(x)))
        if self.place == "parallel":
            y = self.pre_norm(x)
            return x + self.mix(y) + self.feed(y)
        if self.place == "beside":
            return x + self.mix(self.pre_norm(x)) * x
        return x + self.mix(x).tanh()


EXPECTED = {
    "pre": ["pre"],
    "post": ["post"],
    "peri": ["peri"],
    "output-only": ["output-only"],
    "parallel": ["pre", "pre"],
    "beside": ["none"],
    "none": ["none"],
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", EXPECTED)
def test_placement_of_each_kind(place, training):
    model = nn.Sequential(nn.Linear(8, 8), Block(place), Block(place), nn.LayerNorm(8)).train(training)
    found = plan(model, torch.randn(3, 8)).placement()
    assert [item.placement for item in found] == EXPECTED[place] * 2
    assert [item.block for item in found] == ["1"] * len(EXPECTED[place]) + ["2"] * len(EXPECTED[place])


def test_the_evidence_names_the_norms():
    (found,) = plan(nn.Sequential(Block("peri")), torch.randn(3, 8)).placement()
    assert isinstance(found, Placement)
    assert found.norms == ("0.pre_norm", "0.post_norm")
    assert found.evidence.endswith("f begins with 0.pre_norm; f ends with 0.post_norm")
    (beside,) = plan(nn.Sequential(Block("beside")), torch.randn(3, 8)).placement()
    assert beside.evidence.endswith("0.pre_norm reads x, and so do others")


def test_a_final_norm_is_no_post_norm():
    model = nn.Sequential(Block("pre"), nn.LayerNorm(8), nn.Linear(8, 8))
    assert [item.placement for item in plan(model, torch.randn(3, 8)).placement()] == ["pre"]


def test_sums_without_a_product_are_no_branches():
    class Approximate(nn.Module):
        def forward(self, x):
            return x + 0.044715 * x**3

    model = nn.Sequential(nn.Linear(8, 8), Approximate(), Residual(nn.LayerNorm(8)))
    assert plan(model, torch.randn(3, 8)).placement() == []


@pytest.mark.parametrize(
    ("name", "place"), [("GPT2", "pre"), ("BERT", "post"), ("Gemma2", "peri"), ("Olmo2", "output-only"), ("T5", "pre")]
)
def test_models_of_transformers(name, place):
    model = MODELS[name]
    found = plan(model.build(), model.inputs()).placement()
    assert {item.placement for item in found} == {place}
    assert len(found) == {"T5": 10}.get(name, 4)


def test_without_inputs_there_is_no_data_flow():
    with pytest.raises(InvalidArgumentError, match="placement follows the data flow; give plan"):
        plan(nn.LayerNorm(8)).placement()
