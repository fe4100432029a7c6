"""Pre-LN to RMSNorm: exact where the stream can lose its mean, refused with the reason everywhere else."""

import copy
import dataclasses

import pytest
import torch
from hugging_face import ENCODER, MODELS, PICTURE, TEXT, Model, pictures
from norm_models import shaken
from torch import nn

import evenkeel as ek
from evenkeel import ConversionError
from evenkeel.convert import plan, to_rms_norm
from evenkeel.lab import Transformer, find_arm

GALLERY = {
    "GPT2": (MODELS["GPT2"], 5, 5),
    "GPTNeoX": (MODELS["GPTNeoX"], 5, 5),
    "OPT": (Model("OPTForCausalLM", TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32}), 5, 5),
    "Phi": (Model("PhiForCausalLM", TEXT), 3, 3),
    "BLOOM": (Model("BloomForCausalLM", TEXT | {"n_layer": 2, "n_head": 4}), 5, 6),  # one goes into the table
    "ViT": (MODELS["ViT"], 5, 5),
    "Dinov2, LayerScale": (Model("Dinov2ForImageClassification", ENCODER | PICTURE, pictures), 4, 5),
    "Whisper": (MODELS["Whisper"], 11, 12),  # the last of the encoder is returned
}
TOKENS = torch.randint(0, 256, (2, 7), generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A sublayer with a norm before it."""

    def __init__(self, size=8, norm=nn.LayerNorm, dropout=0.0):
        super().__init__()
        self.norm, self.up, self.down = norm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(self.up(self.norm(x)).relu()))


def small(*, norm=nn.LayerNorm, dropout=0.0, head=True):
    last = [nn.LayerNorm(8), nn.Linear(8, 3, bias=False)] if head else []
    blocks = [Block(norm=norm, dropout=dropout) for _ in range(2)]
    return shaken(nn.Sequential(nn.Linear(4, 8), *blocks, *last))


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def turned(model, x, count, of, checked=None):
    """Turn the norms, compare with float64, and demand that all goes back bit for bit."""
    state, tied = {name: value.clone() for name, value in model.state_dict().items()}, dict(model.named_parameters())
    kinds = [type(module) for module in model.modules()]
    certificate = to_rms_norm(model, x, verify=x)
    done = [entry for entry in certificate.entries if entry.action == "to_rms_norm"]
    assert (len(done), len(certificate.entries)) == (count, of)
    assert certificate.model
    assert all(check.passed for check in certificate.model)
    assert sum(bool(entry.checks) for entry in done) == (count if checked is None else checked)
    names = {name for name, module in model.named_modules() if isinstance(module, nn.RMSNorm)}
    assert names == {entry.site for entry in done}
    assert all(isinstance(model.get_submodule(name), nn.LayerNorm) for name in names)
    certificate.plan.revert()
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in tied.items()}
    return certificate


@pytest.mark.parametrize("name", GALLERY)
def test_models_of_transformers_with_random_weights(name):
    torch.manual_seed(0)
    model, count, of = GALLERY[name]
    built = shaken(model.build())
    certificate = turned(built, model.inputs(), count, of)
    notes = " ".join(entry.note for entry in certificate.entries)
    assert ("is untied from" in notes) == (name in ("GPT2", "OPT", "BLOOM", "Whisper"))
    assert ("subtracts a mean, since the stream is written by gelu" in notes) == (name == "Whisper")
    assert ("word_embeddings_layernorm is in the table" in notes) == (name == "BLOOM")


def test_an_encoder_alone_and_what_it_hands_over():
    model = shaken(MODELS["Whisper"].build().model.encoder)
    turned(model, torch.randn(2, 8, 20), 4, 5)


@pytest.mark.parametrize("options", [{}, {"bias": False, "feed_forward": "swiglu"}], ids=["plain", "gated"])
def test_the_model_of_the_study(options):
    arm = dataclasses.replace(find_arm("pre-layer"), **options)
    turned(shaken(Transformer(arm, depth=2, width=16, heads=2, context=8)), TOKENS, 5, 5)


def test_a_converted_model_computes_the_same_as_layer_norms_too():
    model = small()
    wanted, norms = model(X), copy.deepcopy(model)
    to_rms_norm(model, X)
    torch.testing.assert_close(model(X), wanted, rtol=1e-5, atol=1e-5)
    assert isinstance(model[3], ek.nn.RMSNorm)
    norms[4].bias = nn.Parameter(torch.zeros(3))
    norms.load_state_dict(model.state_dict())  # into LayerNorms
    torch.testing.assert_close(norms(X), wanted, rtol=1e-5, atol=1e-5)
    assert float(model[0].weight.detach().mean(0).abs().max()) < 1e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(dtype):
    turned(small().to(dtype), X.to(dtype), 3, 3)


def test_a_residual_that_is_added_in_place():
    def forward(model, h):
        h += model.block.down(model.block.up(model.block.norm(h)).relu())
        return model.last(model.norm(h))

    model = Through(forward)
    model.norm = nn.LayerNorm(8)
    shaken(model)
    with torch.no_grad():  # it has no gradients: what a norm keeps for them is written into
        wanted = model(X)
        certificate = to_rms_norm(model, X)
        torch.testing.assert_close(model(X), wanted, rtol=1e-5, atol=1e-5)
    assert [entry.action for entry in certificate.entries] == ["to_rms_norm"] * 2


def test_an_encoder_of_torch():
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True, dropout=0.0)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = shaken(nn.Sequential(nn.Linear(4, 8), stack, nn.LayerNorm(8), nn.Linear(8, 3)))
    turned(model.eval(), X.view(1, 5, 4), 5, 5, checked=3)  # attention reads a norm and writes the stream


def test_every_eps_and_weight_stays():
    model = small()
    for k, module in enumerate(m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        module.eps = 10.0 ** -(k + 2)
    weights = {name: p for name, p in model.named_parameters() if name.endswith("norm.weight")}
    to_rms_norm(model, X, verify=X)
    assert [m.eps for m in model.modules() if isinstance(m, nn.RMSNorm)] == [1e-2, 1e-3, 1e-4]
    assert all(model.get_parameter(name) is parameter for name, parameter in weights.items())


def test_it_is_an_action_among_others():
    found = plan(model := small(), X, actions=("to_rms_norm", "fold_affine", "swap"))
    assert [site.action for site in found.sites] == ["to_rms_norm"] * 3
    wanted = model(X)
    assert found.apply(verify=X).verified
    found.revert()
    assert torch.equal(model(X), wanted)
    only = plan(model, X, actions=["to_rms_norm"], where=lambda module, name: name == "2.norm")
    certificate = only.apply(verify=X)  # the other norms do not see the mean
    assert [type(m.norm) is nn.LayerNorm for m in model[1:3]] == [True, False]
    assert [entry.site for entry in certificate.entries] == ["2.norm"]


def refused(model, x=X):
    with pytest.raises(ConversionError) as caught:
        to_rms_norm(model, x)
    return str(caught.value)


class Through(nn.Module):
    """A model whose stream something else reads or writes."""

    def __init__(self, function):
        super().__init__()
        self.function, self.first, self.block, self.last = function, nn.Linear(4, 8), Block(), nn.Linear(8, 2)

    def forward(self, x):
        return self.function(self, self.first(x))


READERS = {
    "linear": (lambda m, x: m.last(m.block(x)), r"also read by addmm in last, for which its mean counts"),
    "relu": (lambda m, x: m.last(m.block.norm(x.relu())), "written by relu"),
    "returned": (lambda m, x: m.block(x), "the model returns the stream itself"),
    "a number": (lambda m, x: m.last(m.block.norm(x + 1.0)), "written by add"),
    "a number that is divided": (lambda m, x: m.last(m.block.norm(1.0 / x)), "written by reciprocal"),
    "a factor of each feature": (lambda m, x: m.last(m.block.norm(x * x[:1].tanh())), "written by mul"),
}


@pytest.mark.parametrize("name", READERS)
def test_streams_whose_mean_counts(name):
    function, why = READERS[name]
    model = Through(function)
    before = copy.deepcopy(model.state_dict())
    assert why in refused(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_dropout_inside_the_stream():
    model = small(dropout=0.1)
    assert "dropout in training takes single features out of the stream; call eval() before" in refused(model.train())
    turned(model.eval(), X, 3, 3)


def test_post_norms_and_norms_of_sums_of_embeddings_are_left():
    found = plan(MODELS["BERT"].build(), MODELS["BERT"].inputs(), actions=["to_rms_norm"])
    reasons = {site.name: site.reason for site in found.sites}
    assert all(reasons.values())
    assert "for which its mean counts" in reasons["bert.encoder.layer.0.output.LayerNorm"]


def test_embeddings_of_an_rms_norm_model_are_not_centred():
    assert "it has no LayerNorm" in refused(MODELS["Llama"].build(), MODELS["Llama"].inputs())
    mixed = small(norm=nn.RMSNorm)
    before = copy.deepcopy(mixed.state_dict())
    assert "the stream is also read by a RMSNorm in 2, for which its mean counts" in refused(mixed)
    assert all(torch.equal(value, before[key]) for key, value in mixed.state_dict().items())


def test_a_writer_that_something_else_uses():
    ones = torch.ones(1, 8)
    model = Through(lambda m, x: m.last(m.block.norm(x)) + nn.functional.linear(ones, m.first.weight.mT).sum())
    assert "first.weight is also read by mm in the model" in refused(model)


def test_a_model_as_it_starts_with_weights_of_one_and_biases_of_zero():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Block(), nn.LayerNorm(8), nn.Linear(8, 3, bias=False))
    turned(model, X, 2, 2)
    to_rms_norm(model, X)
    assert model[3].bias is None


def test_a_bias_without_a_place_keeps_its_norm():
    model = small(head=False)
    model.append(nn.LayerNorm(8))
    nn.init.normal_(model[3].bias)
    certificate = to_rms_norm(model, X, verify=X)
    assert [entry.reason for entry in certificate.entries] == ["", "", "the model returns its result"]


def test_a_mean_that_stays_is_found(monkeypatch):
    from evenkeel.convert._recentre import Recentre

    model = small()
    wanted = model(X)
    monkeypatch.setattr(Recentre, "apply", lambda self, weights: None)
    with pytest.raises(ConversionError, match=r"1\.norm: the mean of its input is .* ulps of its largest element"):
        to_rms_norm(model, X)
    assert torch.equal(model(X), wanted)
