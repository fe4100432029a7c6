"""Fusions: a residual sum with the norm of it, a norm with the activation after it; what is refused and why."""

import copy
import io
import pickle

import pytest
import torch
from hugging_face import MODELS
from norm_models import Gemma, Llama, shaken
from torch import nn

import evenkeel as ek
from evenkeel.convert import plan
from evenkeel.convert._follow import add_then_norm


class Block(nn.Module):
    """A pre-norm block in whose code the first sum meets the second norm."""

    def __init__(self, kind, size=16):
        super().__init__()
        self.norm1, self.norm2, self.drop = kind(size), kind(size), nn.Dropout(0.2)
        self.mix, self.feed = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x, mask=None, *, scale: float = 1.0):
        x = x + self.drop(self.mix(self.norm1(x)))
        if mask is not None:
            x = x * mask
        return x + scale * self.drop(self.feed(self.norm2(x)).relu())


def test_the_command_line_knows_every_action():
    from evenkeel._options.convert import ACTIONS as NAMES
    from evenkeel.convert._actions import ACTIONS

    assert tuple(ACTIONS) == NAMES


KINDS = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm, "Gemma": Gemma, "ours": ek.nn.RMSNorm}


def fused(model, x, actions=("fuse_residual_add", "swap"), **options):
    found = plan(model, x, actions=list(actions), **options)
    return found, {site.name: site.reason for site in found.sites if site.sought == actions[0]}


def calls(monkeypatch):
    """How often a sum and a norm were one call."""
    from evenkeel import functional

    seen = []
    for name in ("add_rms_norm", "add_layer_norm"):
        right = getattr(functional, name)
        monkeypatch.setattr(functional, name, lambda *a, right=right, **k: (seen.append(1), right(*a, **k))[1])
    return seen


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "ours"])
def test_a_sum_and_its_norm_become_one_call(kind, monkeypatch):
    model = shaken(nn.Sequential(Block(KINDS[kind]), Block(KINDS[kind])))
    x = torch.randn(5, 16)
    found, reasons = fused(model, x)
    assert reasons == {
        "0.norm2": "",
        "1.norm1": "the sum is made in the code of 0, and the norm is called in that of 1",
        "1.norm2": "",
    }
    results = {}
    for training in (True, False):
        torch.manual_seed(1)
        results[training] = model.train(training)(x)
    seen = calls(monkeypatch)
    certificate = found.apply(verify=x)
    assert all(check.passed for check in certificate.model)
    del seen[:]
    for training, wanted in results.items():
        torch.manual_seed(1)
        torch.testing.assert_close(model.train(training)(x), wanted)
    assert len(seen) == 4
    kinds = [type(module) for module in model.modules()]
    assert isinstance(model[0], Block)
    found.revert()
    assert [type(module).__name__ for module in model.modules()] == [kind.__name__ for kind in kinds]
    assert type(model[0]) is Block
    assert torch.equal(model.eval()(x), results[False])


def test_calls_of_another_pattern_run_the_code_of_the_block(monkeypatch):
    model, x = shaken(nn.Sequential(Block(nn.LayerNorm))).eval(), torch.randn(5, 16)
    mask = (torch.rand(5, 1) > 0.5).float()
    wanted = [model[0](x), model[0](x, mask), model[0](x, scale=2.0), model[0](x=x)]
    found, _ = fused(model, x)
    found.apply()
    seen = calls(monkeypatch)
    counts = []
    for call, right in zip(
        (lambda b: b(x), lambda b: b(x, mask), lambda b: b(x, scale=2.0), lambda b: b(x=x)), wanted, strict=True
    ):
        torch.testing.assert_close(call(model[0]), right)
        counts.append(len(seen))
    assert counts == [1, 1, 1, 1]


def test_arguments_by_name_are_followed_too(monkeypatch):
    class Caller(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(nn.LayerNorm)

        def forward(self, x):
            return self.block(scale=0.5, x=x)

    model, x = shaken(Caller()).eval(), torch.randn(5, 16)
    wanted = model(x)
    found, reasons = fused(model, x)
    assert reasons == {"block.norm2": ""}
    seen = calls(monkeypatch)
    found.apply()
    torch.testing.assert_close(model(x), wanted)
    assert len(seen) == 1


class Cache:
    """What a block hands on and writes into, as decoders their keys and values."""

    def __init__(self):
        self.kept = []


class Decoder(Block):
    """Takes what decoders of transformers take: tuples, an object, any keywords."""

    def forward(self, x, positions=None, cache=None, **keywords):
        cosine, sine = positions
        if cache is not None:
            self.keep(self.norm1(x), cache)
        x = x + self.mix(self.norm1(x) * cosine + sine) * keywords["scale"]
        return x + self.feed(self.norm2(x))

    def keep(self, x, cache):
        self.store(x, cache)


class Store(nn.Module):
    def forward(self, x, cache):
        cache.kept.append(x.detach())


class Decoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Decoder(nn.LayerNorm)
        self.block.store = Store()
        self.cache = None

    def forward(self, x, scale):
        self.cache = Cache()
        return self.block(x, positions=(x.cos(), x.sin()), cache=self.cache, scale=scale)


def test_tuples_objects_and_keywords_are_handed_on(monkeypatch):
    model, x = shaken(Decoding()).eval(), torch.randn(5, 16)
    scale = torch.tensor(0.5)
    wanted, kept = model(x, scale), model.cache.kept
    found, reasons = fused(model, (x, scale))
    assert reasons == {"block.norm2": ""}
    certificate = found.apply(verify=(x, scale))
    assert [check.what for check in certificate.entries[0].checks] == ["the result"]
    seen = calls(monkeypatch)
    torch.testing.assert_close(model(x, scale), wanted)
    torch.testing.assert_close(model.cache.kept, kept)
    assert len(seen) == 1
    with pytest.raises(TypeError):  # a call of another pattern runs the code of the block
        model.block(x)
    found.revert()
    assert torch.equal(model(x, scale), wanted)


# the norm before the feed-forward of each of two blocks
SERVED = {"Llama": "post_attention_layernorm", "GPT2": "ln_2", "ViT": "layernorm_after"}


@pytest.mark.filterwarnings("ignore")  # of the package's own making
@pytest.mark.parametrize("name", SERVED)
def test_the_blocks_of_transformers(name, monkeypatch):
    torch.manual_seed(0)
    built, inputs = MODELS[name].build(), MODELS[name].inputs()
    kinds = [type(module) for module in built.modules()]
    found, reasons = fused(built, inputs)
    joined = [site for site, reason in reasons.items() if not reason]
    assert len(joined) == 2
    assert all(site.endswith(SERVED[name]) for site in joined)
    assert all("the sum is made in the code of" in reason for reason in reasons.values() if reason)
    with torch.no_grad():
        wanted = built(**inputs)[0]
        assert found.apply(verify=inputs).verified
        seen = calls(monkeypatch)
        torch.testing.assert_close(built(**inputs)[0], wanted)
        assert len(seen) == 2
        found.revert()
        assert torch.equal(built(**inputs)[0], wanted)
    assert [type(module) for module in built.modules()] == kinds


@pytest.mark.filterwarnings("ignore")
def test_a_joined_decoder_generates_the_same_tokens(monkeypatch):
    torch.manual_seed(0)
    built, inputs = MODELS["Llama"].build(), MODELS["Llama"].inputs()
    wanted = built.generate(**inputs, max_new_tokens=3, do_sample=False)
    fused(built, inputs)[0].apply()
    seen = calls(monkeypatch)
    assert torch.equal(built.generate(**inputs, max_new_tokens=3, do_sample=False), wanted)
    assert len(seen) == 6  # of two blocks at each step, with the cache of the one before


def test_fused_models_are_copied_and_stored():
    model, x = shaken(nn.Sequential(Block(Llama))).eval(), torch.randn(5, 16)
    found, reasons = fused(model.float(), x, mode="accurate")
    assert reasons == {"0.norm2": ""}
    found.apply(verify=x)
    y = model(x)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), y)
    assert twin[0].norm1 is not model[0].norm1
    stored = pickle.loads(pickle.dumps(model))
    assert type(stored[0]) is Block
    torch.testing.assert_close(stored(x), y)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    assert torch.load(io.BytesIO(stream.getvalue())).keys() == nn.Sequential(Block(Llama)).state_dict().keys()


class InPlace(Block):
    def forward(self, x):
        x = self.mix(x)
        x += self.feed(self.norm1(x))
        return self.norm2(x)


class Branching(Block):
    def forward(self, x):
        x = x + self.mix(self.norm1(x))
        return self.norm2(x) if x.sum() > -1e9 else x


class Counting(Block):
    """What is followed would forget to count."""

    count = 0

    def forward(self, x):
        self.count += 1
        return self.norm2(x + self.mix(self.norm1(x))) * self.count


class Hooked(Block):
    def __init__(self, kind, size=16):
        super().__init__(kind, size)
        self.norm2.register_forward_hook(lambda module, given, result: result * 2)


class Drawing(Block):
    """What is drawn while it is followed would stay."""

    def forward(self, x):
        return self.norm2(x + self.mix(self.norm1(x)) * torch.rand(()))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (InPlace, "the sum is written into the stream"),
        (Branching, "the code of its block cannot be followed: symbolically traced variables cannot be used"),
        (Counting, "the code of its block, followed, gives other results"),
        (Hooked, "a LayerNorm here has hooks, which would see other values"),
        (Drawing, "the code of its block makes a tensor of its own, which would stay as it is now"),
    ],
)
def test_what_cannot_be_proven_is_left_with_the_reason(kind, reason):
    model, x = shaken(nn.Sequential(kind(nn.LayerNorm))), torch.randn(5, 16)
    found, reasons = fused(model, x)
    assert list(reasons) == ["0.norm2"]
    assert reasons["0.norm2"].startswith(reason)
    assert found.apply().swapped == 2


def test_in_bfloat16_a_norm_that_rounds_before_its_weight_is_left():
    model, x = shaken(nn.Sequential(Block(Llama))).bfloat16(), torch.randn(5, 16).bfloat16()
    _, reasons = fused(model, x)
    assert reasons["0.norm2"].startswith("no kernel that adds rounds where it does")
    found, reasons = fused(model, x, mode="accurate")
    assert reasons["0.norm2"] == ""
    found.apply(verify=x)


def test_the_sum_is_what_addition_gives():
    norm, a, b = nn.LayerNorm(8), torch.randn(3, 8), torch.randn(3, 8)
    y, total = add_then_norm(norm, a, b, "moments", 1e-5, "inside", 0.0, True)
    assert torch.equal(total, a + b)
    torch.testing.assert_close(y, norm(a + b))


def images(norm, activation):
    return shaken(nn.Sequential(nn.Conv2d(3, 8, 3), norm, activation, nn.Conv2d(8, 4, 1)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm2d(8), lambda: nn.GroupNorm(2, 8)], ids=["batch", "group"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU, lambda: nn.ReLU(inplace=True)], ids=["relu", "silu", "relu_"])
def test_an_activation_goes_into_the_norm(norm, activation, training):
    model, x = images(norm(), activation()).train(training), torch.randn(2, 3, 6, 6)
    original = copy.deepcopy(model)
    kinds = [type(module) for module in model]
    found, reasons = fused(model, x, ("fuse_activation", "swap"))
    assert reasons == {"1": ""}
    certificate = found.apply(verify=x)
    assert [(entry.site, entry.action) for entry in certificate.entries] == [("1", "fuse_activation")]
    assert certificate.entries[0].note == "with 2"
    assert model[1].activation in ("relu", "silu")
    assert torch.equal(model[2](x), x)
    assert isinstance(model[2], kinds[2])
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)
    found.revert()
    assert [type(module) for module in model] == kinds


class Functional(nn.Module):
    def __init__(self, shared=False):
        super().__init__()
        self.conv, self.norm1, self.norm2 = nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.GroupNorm(2, 8)
        self.act = nn.ReLU() if shared else torch.relu

    def forward(self, x):
        x = self.act(self.norm1(self.conv(x)))
        return self.act(self.norm2(x))


class Twice(Functional):
    def forward(self, x):
        y = self.norm1(self.conv(x))
        return y + self.norm2(y).abs() + y.relu()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Functional(), "relu is called in the code of the model, not as a module"),
        (Functional(shared=True), "the module act is called 2 times, on other results too"),
        (Twice(), "its result is read by a GroupNorm in the model and by others"),
    ],
)
def test_activations_that_others_need_are_left(model, reason):
    _, reasons = fused(model, torch.randn(2, 3, 4, 4), ("fuse_activation",))
    assert reasons["norm1"] == reason


def test_in_bfloat16_silu_is_left_and_relu_taken():
    x = torch.randn(2, 3, 6, 6).bfloat16()
    for activation, reason in ((nn.ReLU(), ""), (nn.SiLU(), "silu after the norm rounds twice in torch.bfloat16")):
        model = images(nn.GroupNorm(2, 8), activation).bfloat16()
        found, reasons = fused(model, x, ("fuse_activation",))
        assert reasons["1"].startswith(reason)
        assert bool(reasons["1"]) == bool(reason)
        found.apply(verify=x)
        found.revert()
        found, reasons = fused(
            images(nn.GroupNorm(2, 8), activation).bfloat16(), x, ("fuse_activation",), mode="accurate"
        )
        assert reasons == {"1": ""}


@pytest.mark.slow
def test_fused_blocks_compile():
    torch._dynamo.reset()
    model, x = shaken(nn.Sequential(Block(nn.LayerNorm), Block(nn.LayerNorm))).eval(), torch.randn(5, 16)
    wanted = model(x)
    found, _ = fused(model, x)
    found.apply()
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), wanted)
