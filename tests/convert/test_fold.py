"""Folds: what is exact is folded into the products around a norm, everything else is refused with the reason."""

import copy

import pytest
import torch
from hugging_face import MODELS
from norm_models import Gemma, Llama, shaken
from torch import nn
from torch.nn.utils import parametrizations

import evenkeel as ek
from evenkeel import ConversionError, InvalidArgumentError
from evenkeel.convert import plan

FOLDS = ("fold_batch_norm", "fold_affine", "fold_scaler")
IMAGES = torch.randn(2, 4, 9, 7, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))


def batch_norm(kind=nn.BatchNorm2d, size=4, **options):
    """A norm whose statistics, weight and bias are not those of a new one."""
    norm = kind(size, **options)
    with torch.no_grad():
        for tensor, low in ((norm.weight, 0.5), (norm.running_var, 0.3), (norm.running_mean, -1.0), (norm.bias, -1.0)):
            if tensor is not None:
                tensor.copy_(torch.rand(size) * 2 + low)
    return norm


def affine(kind, *arguments, **options):
    norm = kind(*arguments, **options)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return norm


def fold(model, x, *actions):
    """Fold, and demand that the result is the same, that the rest is named, and that all goes back."""
    model.eval()
    wanted, state = model(x), {name: value.clone() for name, value in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    held = dict(model.named_parameters())
    found = plan(model, x, actions=actions or FOLDS)
    certificate = found.apply(verify=x)
    assert all(check.passed for entry in certificate.entries for check in entry.checks)
    assert len(certificate.model) == 2
    mine = dict(model.named_parameters())
    assert all(mine[name] is parameter for name, parameter in held.items())
    close = 3e-2 if x.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(model(x), wanted, rtol=close, atol=close)
    found.revert()
    assert [type(module) for module in model.modules()] == kinds
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(x), wanted)
    return found


def reason(model, x, action):
    """Why nothing is folded."""
    (site,) = [site for site in plan(model, x, actions=[action]).sites if site.action == "leave"]
    return site.reason


CONVOLUTIONS = {
    "plain": lambda: nn.Conv2d(4, 4, 3, padding=1),
    "no bias": lambda: nn.Conv2d(4, 4, 3, padding="same", bias=False),
    "grouped": lambda: nn.Conv2d(4, 4, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2),
    "reflected": lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1),
    "grouped transposed": lambda: nn.ConvTranspose2d(4, 4, 3, stride=2, groups=2, bias=False),  # FX folds it wrongly
    "channels last": lambda: nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_batch_norm_after_a_convolution(name):
    model = nn.Sequential(CONVOLUTIONS[name](), batch_norm(), nn.ReLU())
    (site,) = fold(model, IMAGES).sites
    assert (site.action, site.note, site.watched) == ("fold_batch_norm", "into 0", ("1",))


@pytest.mark.parametrize("name", ["grouped", "depthwise", "reflected", "channels last"])
def test_a_batch_norm_before_a_convolution(name):
    model = nn.Sequential(nn.ReLU(), batch_norm(), CONVOLUTIONS[name]())
    assert fold(model, IMAGES).sites[0].watched == ("2",)


def test_a_batch_norm_between_two_linears_and_one_through_a_transpose():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8, bias=False), batch_norm(nn.BatchNorm1d, 8)

        def forward(self, x):
            return self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)

    assert fold(Tokens(), ROWS).sites[0].action == "fold_batch_norm"
    model = Tokens()
    model.linear.bias = nn.Parameter(torch.randn(8))  # of a strided input it is added by itself
    assert fold(model, ROWS.mT.contiguous().mT).sites[0].action == "fold_batch_norm"
    model = nn.Sequential(
        nn.Linear(8, 8), batch_norm(nn.BatchNorm1d, 8), nn.Linear(8, 2), batch_norm(nn.BatchNorm1d, 2)
    )
    assert [site.note for site in fold(model, ROWS[0]).sites] == ["into 0", "into 2"]


def test_two_batch_norms_around_one_convolution_round_once():
    model = nn.Sequential(nn.ReLU(), batch_norm(), nn.Conv2d(4, 4, 1, bias=False), batch_norm())
    found = fold(model, IMAGES)
    assert [site.note for site in found.sites] == ["into 2", "into 2"]
    exact = copy.deepcopy(model).double()
    plan(exact, IMAGES.double(), actions=["fold_batch_norm"]).apply()
    found.apply()
    assert torch.equal(model[2].weight, exact[2].weight.float())
    assert torch.equal(model[2].bias, exact[2].bias.float())


def test_a_folded_state_loads_into_the_model_it_was():
    model = nn.Sequential(nn.Conv2d(4, 4, 3), batch_norm()).eval()
    other = copy.deepcopy(model)
    wanted = model(IMAGES)
    plan(model, IMAGES, actions=["fold_batch_norm"]).apply()
    assert model[1](IMAGES) is IMAGES
    assert isinstance(model[1], nn.BatchNorm2d)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(IMAGES), wanted, rtol=1e-5, atol=1e-5)


class Reused(nn.Module):
    """One convolution in two places, of which one has a batch norm."""

    def __init__(self, twice):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 1), batch_norm()
        self.again = nn.Conv2d(4, 4, 1)
        if twice == "the weight":
            self.again.weight = self.convolution.weight
        self.twice = twice

    def forward(self, x):
        y = self.norm(self.convolution(x))
        if self.twice == "the function":
            return y + nn.functional.conv2d(x, self.convolution.weight)
        return y + (self.convolution if self.twice == "the module" else self.again)(x)


@pytest.mark.parametrize("twice", ["the module", "the weight", "the function"])
def test_a_convolution_that_another_place_uses_is_not_changed(twice):
    model = Reused(twice).eval()
    assert "convolution.weight is also read by convolution in" in reason(model, IMAGES, "fold_batch_norm")


def test_batch_norms_that_are_left():
    def left(*modules, x=IMAGES):
        return reason(nn.Sequential(*modules).eval(), x, "fold_batch_norm")

    assert "2 pads with zeros" in left(nn.ReLU(), batch_norm(), nn.Conv2d(4, 4, 3, padding=1))
    assert "2 pads with zeros" in left(nn.ReLU(), batch_norm(), nn.ConvTranspose2d(4, 4, 3))
    assert "the batch" in left(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
    assert "which is no product" in left(nn.ReLU(), batch_norm(), nn.ReLU())
    assert "called 2 times" in left(nn.Conv2d(4, 4, 1), norm := batch_norm(), norm)
    training = nn.Sequential(nn.Conv2d(4, 4, 1), batch_norm())
    assert "call eval() before" in reason(training, IMAGES, "fold_batch_norm")
    convolution = parametrizations.weight_norm(nn.Conv2d(4, 4, 1))
    assert "which is no product with a parameter" in left(convolution, batch_norm())


def test_a_norm_without_shift_goes_through_zero_padding():
    norm = batch_norm(affine=False)
    norm.running_mean.zero_()
    assert fold(nn.Sequential(nn.ReLU(), norm, nn.Conv2d(4, 4, 3, padding=1)), IMAGES).sites[0].action != "leave"


def test_hooks_take_part():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), batch_norm()).eval()
    handle = model[0].register_forward_hook(lambda module, given, result: result.relu())
    assert "relu in the model" in reason(model, IMAGES, "fold_batch_norm")
    handle.remove()
    assert fold(model, IMAGES).sites[0].action == "fold_batch_norm"


NORMS = {
    "LayerNorm": lambda: nn.LayerNorm(8),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "ours": lambda: ek.nn.LayerNorm(8),
    "Llama": lambda: Llama(8),
    "Gemma, 1 + w": lambda: Gemma(8),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_the_affine_of_a_norm_goes_into_every_reader(name, dtype):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = affine(NORMS[name])
            self.a, self.b, self.c = nn.Linear(8, 3), nn.Linear(8, 3, bias=False), nn.Linear(8, 8)

        def forward(self, x):
            y = self.norm(x)
            return x[..., :3] + self.a(y[:, 1:]).sum(1, keepdim=True) * self.b(y) + self.c(y.reshape(-1, 8))[:1, :3]

    model = Branches().to(dtype)
    found = fold(model, ROWS.to(dtype))
    assert found.sites[0].note == "into a, b, c"
    found.apply()
    offset = 1.0 if "1 + w" in name else 0.0
    assert torch.equal(model.norm.weight + offset, torch.ones(8, dtype=dtype))
    assert (model.b.bias is not None) == hasattr(model.norm, "bias")


def test_an_affine_before_convolutions_of_images():
    assert fold(nn.Sequential(affine(nn.GroupNorm, 2, 4), nn.Conv2d(4, 6, 3)), IMAGES).sites[0].note == "into 1"


def test_a_shared_norm_with_the_readers_of_all_its_calls():
    class Shared(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.norm, self.a, self.b = affine(nn.LayerNorm, 8), nn.Linear(8, 8), linear

        def forward(self, x):
            return self.b(self.norm(self.a(self.norm(x))))

    assert fold(Shared(nn.Linear(8, 8)), ROWS).sites[0].note == "into a, b"
    model = Shared(nn.Linear(8, 8))
    model.b = model.a
    assert fold(model, ROWS).sites[0].note == "into a"
    model = Shared(nn.Linear(8, 8))
    model.b.bias = model.a.bias
    assert "is the bias of several weights" in reason(model, ROWS, "fold_affine")


def test_affines_that_are_left():
    def left(*modules, x=ROWS):
        return reason(nn.Sequential(*modules), x, "fold_affine")

    assert left(affine(nn.LayerNorm, 8)) == "the model returns its result"
    assert "gelu in 1" in left(affine(nn.LayerNorm, 8), nn.GELU())
    assert "nothing to fold" in left(nn.LayerNorm(8), nn.Linear(8, 8))
    assert "several axes" in left(affine(nn.LayerNorm, (5, 8)), nn.Linear(8, 8))
    assert "mul in 1" in left(affine(nn.LayerNorm, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    norm, linear = affine(nn.LayerNorm, 8), nn.Linear(8, 8)
    assert "1.weight is also read by addmm in 1" in left(norm, linear, linear)
    other = affine(nn.LayerNorm, 8)
    other.weight = norm.weight
    found = plan(nn.Sequential(norm, nn.Linear(8, 8), other, nn.Linear(8, 8)), ROWS, actions=["fold_affine"])
    assert [site.reason for site in found.sites] == ["0.weight is also 2.weight"] * 2


class Function(nn.Module):
    """A norm, what reads it, and a parameter of the model's own."""

    def __init__(self, function):
        super().__init__()
        self.norm, self.linear, self.function = affine(nn.LayerNorm, 8), nn.Linear(8, 3), function
        self.weight, self.bias = nn.Parameter(torch.randn(8, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.function(self, self.norm(x))


FUNCTIONS = {
    "written into": (lambda m, y: m.linear(y.relu_()), "read by relu_ in the model"),
    "written through a view": (lambda m, y: (y[:, :2].add_(1), m.linear(y))[1], "read by add_ in the model"),
    "in Python": (lambda m, y: m.linear(y) * y.sum().item(), "read by sum in the model"),
    "in numpy": (lambda m, y: m.linear(y) + torch.from_numpy(y.detach().numpy()).sum(), "read by detach in the model"),
    "by an einsum": (lambda m, y: torch.einsum("btd,dh->bth", y, m.weight), "read by bmm in the model"),
    "from the left": (lambda m, y: m.weight.mT @ y.mT, "weight has no bias, and no place for one"),
    "some tokens": (lambda m, y: m.linear(y[y.sum(-1) > 0]), "read by"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_that_something_else_reads(name):
    function, why = FUNCTIONS[name]
    assert why in reason(Function(function).eval(), ROWS, "fold_affine")


def test_products_that_the_model_writes_itself():
    assert fold(Function(lambda m, y: y @ m.weight + m.bias), ROWS).sites[0].note == "into weight"


def test_attention_of_torch():
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True, dropout=0.0)
    found = fold(shaken(layer), ROWS)
    assert [site.note for site in found.sites] == ["into self_attn", "into linear1"]


class Int8(nn.Module):
    """A weight of 8 bits with a factor, as quantized layers hold it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (3, 8), dtype=torch.int8))
        self.register_buffer("factor", torch.rand(3))

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.factor


def test_quantized_layers_are_left():
    model = nn.Sequential(affine(nn.LayerNorm, 8), Int8())
    assert "which is no product with a parameter" in reason(model, ROWS, "fold_affine")


def test_the_final_norm_does_not_go_into_tied_embeddings():
    model = MODELS["GPT2"].build()
    found = plan(model, MODELS["GPT2"].inputs(), actions=["fold_affine"])
    reasons = {site.name: site.reason for site in found.sites if site.reason}
    assert list(reasons) == ["transformer.ln_f"]
    assert "wte.weight is also read by embedding in transformer.wte" in reasons["transformer.ln_f"]


def test_post_norms_are_not_absorbed():
    model, inputs = MODELS["Gemma2"].build(), MODELS["Gemma2"].inputs()
    found = plan(model, inputs, actions=["fold_affine"])
    left = {site.name.rpartition(".")[2] for site in found.sites if site.action == "leave"}
    assert left >= {"post_attention_layernorm", "post_feedforward_layernorm"}
    assert all("add in" in site.reason for site in found.sites if "post_" in site.name)
    assert all(check.passed for check in found.apply(verify=inputs).model)


@pytest.mark.parametrize("name", ["Llama", "BERT", "ResNet"])
def test_models_of_transformers_are_folded_and_swapped(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name].build().eval(), MODELS[name].inputs()
    shaken(model)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    found = plan(model, inputs, actions=(*FOLDS, "swap"))
    certificate = found.apply(verify=inputs)
    assert any(entry.action.startswith("fold") for entry in certificate.entries)
    assert [entry.checks for entry in certificate.entries if entry.action.startswith("fold") and not entry.checks] == []
    found.revert()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("layer", ["linear", "convolution", "pixels"])
def test_a_scaler_goes_into_the_first_layer(layer):
    if layer == "linear":
        scaler, first, x = ek.nn.FeatureAffine(torch.arange(8.0), torch.rand(8) + 0.1), nn.Linear(8, 3), ROWS
    elif layer == "convolution":
        scaler, first, x = ek.nn.FeatureAffine([1.0] * 4, [0.2] * 4, [3.0] * 4, axis=1), nn.Conv2d(4, 4, 3), IMAGES
    else:
        scaler, first, x = ek.nn.PixelNormalize([0.5] * 3, [0.2] * 3), nn.Conv2d(3, 4, 3), 255 * torch.rand(2, 3, 5, 5)
    model = nn.Sequential(scaler, first, nn.ReLU())
    found = fold(model, x)
    assert [(site.sought, site.note) for site in found.sites] == [("fold_scaler", "into 1")]


def test_scalers_that_are_left():
    linear = nn.Linear(2, 2)
    clipped = nn.Sequential(ek.nn.FeatureAffine([1.0, 2.0], [1.0, 1.0], clip=(0.0, 1.0)), linear)
    assert reason(clipped, torch.randn(3, 2), "fold_scaler") == "it clips to (0.0, 1.0)"
    counts = nn.Sequential(ek.nn.FeatureAffine([1.0, 2.0], [1.0, 1.0]), linear)
    assert "integers" in reason(counts, torch.ones(3, 2, dtype=torch.int64), "fold_scaler")


def test_a_scaler_of_large_means_is_too_far_and_goes_back():
    model = nn.Sequential(ek.nn.FeatureAffine([1e7] * 8, [1.0] * 8), nn.Linear(8, 3))
    x = ROWS + 1e7
    wanted = model(x)
    with pytest.raises(ConversionError, match=r"^0: the result is .* ulps from float64.*nothing was changed"):
        plan(model, x, actions=["fold_scaler"]).apply(verify=x)
    assert torch.equal(model(x), wanted)


def test_actions_are_named_and_chosen():
    model = nn.Sequential(affine(nn.LayerNorm, 8), nn.Linear(8, 8), affine(nn.LayerNorm, 8), nn.Linear(8, 8))
    found = plan(model, ROWS, actions=["swap", "fold_affine"], where=lambda module, name: name == "2")
    assert [(site.name, site.action) for site in found.sites] == [("2", "fold_affine"), ("2", "swap")]
    assert repr(found).startswith("Plan(1 of 1 affines to be folded (fold_affine), 1 of 1 norms to be swapped (swap)")
    certificate = found.apply(verify=ROWS)
    assert "fold_affine: into 3" in str(certificate)
    assert certificate.to_dict()["norms"][0]["note"] == "into 3"
    with pytest.raises(InvalidArgumentError, match=r"actions must be of fold_scaler, .* but got 'fold'"):
        plan(model, ROWS, actions=["fold"])
    with pytest.raises(InvalidArgumentError, match="fold_affine follows the data flow; give example_inputs"):
        plan(model, actions=["fold_affine"])
