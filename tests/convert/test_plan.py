"""Plan, apply, verify, revert: what stays, what is proved, and what goes back."""

import copy
import functools
import io
import json
import pickle

import pytest
import torch
from norm_models import L2, ChannelsFirst, Gemma, Images, Llama, Residual, rms, rows, shaken
from torch import nn

import evenkeel as ek
from evenkeel import ConversionError, InvalidArgumentError, InvalidTypeError
from evenkeel.convert import Certificate, Check, Entry, Plan, Site, plan, swap

ROWS = {"Llama": Llama, "Gemma": Gemma, "LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm, "L2": lambda size: L2()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ROWS)
def test_row_norms_are_swapped_and_proved(kind, dtype):
    model = rows(ROWS[kind]).to(dtype)
    x = torch.randn(5, 3, 17).to(dtype)
    before = model(x)
    certificate = plan(model).apply(verify=x)
    assert certificate.swapped == 2
    assert all(check.passed for check in certificate.model)
    assert all(len(entry.checks) >= 2 for entry in certificate.entries)
    if dtype == torch.float32:
        torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)
    elif kind != "LayerNorm":
        assert torch.equal(model(x), before)
    for parameter in model.parameters():
        parameter.grad = None
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_norms_of_images(training):
    model = shaken(Images()).train(training)
    original = copy.deepcopy(model)
    x = torch.randn(4, 3, 6, 5)
    certificate = plan(model).apply(verify=x)
    assert certificate.swapped == 5
    assert [isinstance(norm, kind) for norm, kind in zip(model.norms, (nn.BatchNorm2d, nn.GroupNorm), strict=False)]
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)
    for (name, mine), theirs in zip(model.named_buffers(), original.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)
    assert model.norms[0].num_batches_tracked == int(training)


def test_everything_of_a_module_stays():
    model = rows(nn.LayerNorm)
    norm, calls = model[3], []
    hooks = [norm.register_forward_hook(lambda *_: calls.append("hook"))]
    norm.eval()
    norm.note = "mine"
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parameters, names = list(model.parameters()), list(model.state_dict())
    swap(model, quiet=True)
    assert model[3] is norm
    assert isinstance(norm, ek.nn.LayerNorm)
    assert isinstance(norm, nn.LayerNorm)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == names
    assert not norm.training
    assert norm.note == "mine"
    weight = norm.weight.detach().clone()
    model(torch.randn(4, 17)).square().sum().backward()
    optimizer.step()
    assert calls == ["hook"]
    assert not torch.equal(norm.weight, weight)
    hooks[0].remove()


def test_classes_are_still_those_they_were():
    model = nn.Sequential(Llama(8), ChannelsFirst(8), nn.LayerNorm(8), functools.partial(nn.RMSNorm, eps=1e-5)(8))
    kinds = [type(norm) for norm in model]
    swap(model, quiet=True)
    assert [isinstance(norm, kind) for norm, kind in zip(model, kinds, strict=True)] == [True] * 4
    assert isinstance(model[0], ek.nn.RMSNorm)
    assert [type(norm).__name__ for norm in model] == [kind.__name__ for kind in kinds]
    assert [type(norm) for norm in model[2:]] == [ek.nn.LayerNorm, ek.nn.RMSNorm]
    assert model[1].spec.statistic == "moments"


def test_one_module_in_two_places_stays_one():
    norm = nn.LayerNorm(8)
    model = nn.ModuleDict({"a": norm, "b": nn.Sequential(norm)})
    found = plan(model)
    (site,) = found.sites
    assert (site.name, site.others) == ("a", ("b.0",))
    found.apply()
    assert model["a"] is model["b"][0]


def test_one_weight_of_two_norms_stays_one():
    model = rows()
    model[3].weight = model[1].norm.weight
    swap(model, quiet=True, verify=torch.randn(2, 17))
    assert model[3].weight is model[1].norm.weight


def snapshot(model):
    return [(type(module), {k: v for k, v in vars(module).items() if k[0] != "_"}) for module in model.modules()]


@pytest.mark.parametrize("make", [rows, functools.partial(rows, Gemma), Images, lambda: rows(lambda size: L2())])
def test_revert_gives_back_what_was(make):
    model = make()
    before, tensors = snapshot(model), list(model.state_dict(keep_vars=True).items())
    names = [set(module._parameters) for module in model.modules()]
    x = torch.randn(4, 3, 6, 5) if make is Images else torch.randn(4, 17)
    model.eval()
    wanted = model(x)
    found = plan(model)
    found.apply()
    found.revert()
    assert [kind for kind, _ in snapshot(model)] == [kind for kind, _ in before]
    assert [{**v, "training": 0} for _, v in snapshot(model)] == [{**v, "training": 0} for _, v in before]
    assert [set(module._parameters) for module in model.modules()] == names
    assert all(
        a[0] == b[0] and a[1] is b[1] for a, b in zip(model.state_dict(keep_vars=True).items(), tensors, strict=True)
    )
    assert torch.equal(model(x), wanted)
    assert found.apply().swapped > 0


def test_a_plan_is_applied_once_and_reverted_once():
    found = plan(rows())
    with pytest.raises(ConversionError, match="not applied; there is nothing to revert"):
        found.revert()
    found.apply()
    with pytest.raises(ConversionError, match="applied already"):
        found.apply()


def test_gemma_with_a_weight_that_bfloat16_forgets():
    """1 + 0.0039 rounds to 1 in bfloat16; the offset is added in float32."""
    norm = Gemma(8).bfloat16()
    norm.weight.data.fill_(0.0039)
    model = nn.Sequential(norm)
    x = torch.full((1, 8), 256.0).bfloat16()
    wanted = model(x)
    swap(model, quiet=True, verify=x)
    assert model[0].weight_offset == 1.0
    assert torch.equal(model(x), wanted)
    assert model(x)[0, 0] == torch.tensor(1.0039).bfloat16()


@pytest.mark.parametrize("eps", [None, 0.0, 1e-30, 1e-3])
def test_eps_is_kept(eps):
    model = nn.Sequential(nn.RMSNorm(9, eps=eps))
    swap(model, quiet=True)
    assert model[0].eps == eps
    assert model[0].spec.eps == eps


@pytest.mark.parametrize("shape", [(7,), (1, 7), (2, 3, 7), (2, 3, 4, 7), (1, 2, 3, 4, 7), (0, 7)])
def test_inputs_of_every_rank(shape):
    model = nn.Sequential(shaken(nn.LayerNorm(7)))
    x = torch.randn(shape)
    wanted = model(x)
    swap(model, quiet=True)
    torch.testing.assert_close(model(x), wanted)


def test_exact_leaves_what_rounds_elsewhere_and_accurate_takes_it():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Flatten(), nn.LayerNorm(8 * 4), Llama(32)
    ).bfloat16()
    sites = {site.name: site for site in plan(model).sites}
    assert {name: site.action for name, site in sites.items()} == {"1": "leave", "3": "swap", "4": "swap"}
    assert sites["1"].reason.startswith("in bfloat16 it rounds in other places than any spec; mode='accurate'")
    found = plan(model, mode="accurate")
    certificate = found.apply(verify=torch.randn(4, 3, 2, 2).bfloat16())
    assert certificate.swapped == 3
    assert model[4].cast == "late"


def test_a_weight_of_another_dtype_counts():
    class Plain(nn.Module):
        """Computes in the promoted dtype of the input and the weight, and returns that."""

        def __init__(self, size):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    model = nn.Sequential(nn.Linear(8, 8), Plain(8)).bfloat16()
    model[1].float()
    (site,) = plan(model).sites
    assert site.action == "leave"
    assert plan(model.float()).sites[0].action == "swap"


def test_results_can_be_viewed_as_before():
    class Plain(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

        def forward(self, x):
            centred = x - x.mean(1, keepdim=True)
            return centred / (centred.square().mean(1, keepdim=True) + self.eps).sqrt() * self.weight[:, None, None]

    x = torch.randn(2, 8, 3, 4)
    for kind in (Plain, ChannelsFirst):
        model = nn.Sequential(kind(8))
        contiguous = model(x).is_contiguous()
        swap(model, quiet=True)
        assert model(x).is_contiguous() == contiguous == (kind is Plain)


def test_the_filter_chooses():
    model = rows()
    found = plan(model, where=lambda module, name: name != "3")
    assert [site.name for site in found.sites] == ["1.norm"]


def test_example_inputs_show_what_a_module_gets():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.eps = 1e-5

        def forward(self, x):
            assert x.shape[1:] == (3, 17)
            return rms(x, self.eps).type_as(x)

    model = nn.Sequential(nn.Linear(17, 17), Fixed())
    assert plan(model).sites[0].reason.startswith("it raises AssertionError")
    assert plan(model, torch.randn(2, 3, 17)).sites[0].action == "swap"


def test_examples_of_more_axes_than_were_tried():
    model = nn.Sequential(nn.LayerNorm(6))
    assert plan(model, torch.randn(2, 2, 2, 2, 6)).sites[0].action == "swap"
    assert "not seen to be this norm" in plan(model, torch.randn(1, 1, 1, 2**18, 6)).sites[0].reason


class Gated(nn.RMSNorm):
    def forward(self, x, gate=None):
        return super().forward(x) if gate is None else super().forward(x) * gate


def test_a_layer_norm_without_weights_takes_rows_of_any_size():
    class Any(nn.LayerNorm):
        def forward(self, x):
            return layer(x, self.eps)

    def layer(x, eps):
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)

    model = nn.Sequential(Any(16, elementwise_affine=False))
    assert swap(model, quiet=True).swapped == 1
    x = torch.randn(3, 5)
    torch.testing.assert_close(model(x), layer(x, 1e-5))


def test_each_step_is_told():
    told = []
    model, x = rows(), torch.randn(4, 17)
    plan(model, x, progress=told.append).apply(verify=x, progress=told.append)
    assert told[0].startswith("recognising ")
    assert [step for step in told if not step.startswith("recognising")] == [
        "running the original, forward and backward",
        "running it in float64",
        "changing the model",
        "comparing 1.norm",
        "comparing 3",
        "running the changed model, forward and backward",
    ]


def test_what_is_left_is_told_with_the_reason():
    model = nn.ModuleDict(
        {"gated": Gated(8), "ours": ek.nn.RMSNorm(8), "plain": nn.LayerNorm(8), "other": nn.Linear(8, 8)}
    )
    reasons = {site.name: site.reason for site in plan(model).sites}
    assert reasons == {
        "gated": "its forward takes further inputs: gate",
        "ours": "it is evenkeel's already",
        "plain": "",
    }


def test_a_norm_inside_a_module_is_swapped_itself():
    class LastChannel(nn.Module):
        def __init__(self):
            super().__init__()
            self.batchnorm = nn.BatchNorm1d(8)

        def forward(self, x):
            return self.batchnorm(x.transpose(1, 2)).transpose(1, 2)

    model = nn.Sequential(LastChannel())
    assert [site.name for site in plan(model).sites] == ["0.batchnorm"]


@pytest.mark.parametrize("kind", [Llama, nn.LayerNorm, ChannelsFirst])
def test_swapped_models_are_copied_and_stored(kind):
    model = nn.Sequential(shaken(kind(8)))
    swap(model, quiet=True)
    x = torch.randn(2, 8, 3, 3) if kind is ChannelsFirst else torch.randn(2, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[0]) is type(model[0])
        assert torch.equal(other(x), model(x))
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    fresh = nn.Sequential(kind(8))
    fresh.load_state_dict(torch.load(io.BytesIO(stream.getvalue())))
    torch.testing.assert_close(fresh(x), model(x))


def test_inputs_as_tuples_and_mappings():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, a, b):
            return {"sum": self.norm(a) + b, "none": None, "more": [self.norm(b), 3]}

    x = torch.randn(2, 8)
    for inputs in ((x, x), {"a": x, "b": x}):
        certificate = plan(Two(), inputs).apply(verify=inputs)
        assert [check.what for check in certificate.model] == ["result 0", "result 1", "the gradients"]


def test_wrong_arguments():
    with pytest.raises(InvalidTypeError, match=r"expected a torch\.nn\.Module, but got int"):
        plan(3)
    with pytest.raises(InvalidArgumentError, match="mode must be 'exact' or 'accurate', but got 'fast'"):
        plan(nn.LayerNorm(3), mode="fast")


def test_a_model_that_is_a_norm():
    model = nn.LayerNorm(8)
    assert swap(model, quiet=True, verify=torch.randn(2, 8)).swapped == 1
    assert type(model) is ek.nn.LayerNorm


@pytest.mark.slow
@pytest.mark.parametrize("first", ["compile", "swap"])
def test_compiled_models(first):
    torch._dynamo.reset()
    model = rows()
    x = torch.randn(4, 17)
    wanted = model(x)
    if first == "compile":
        model = torch.compile(model, backend="aot_eager", fullgraph=True)
        model(x)
    assert swap(model, quiet=True, verify=x).swapped == 2
    if first == "swap":
        model = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model(x), wanted)


def test_what_is_shown(capsys, tmp_path):
    model = nn.Sequential(Residual(Llama(8)), Residual(Llama(8)), Gated(8))
    found = plan(model)
    assert isinstance(found, Plan)
    assert repr(found) == "Plan(2 of 3 norms to be swapped, mode='exact')"
    text = str(found)
    assert "2 of 3 norms will be swapped (mode exact)." in text
    assert "*.norm (2)" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "<td>*.norm (2)</td>" in found._repr_html_()
    assert "| *.norm (2) | Llama |" in found._repr_markdown_()
    found.model[2] = nn.Identity()
    certificate = found.apply(verify=torch.randn(2, 8))
    assert "2 of 3 norms are swapped (mode exact)." in str(found)
    assert isinstance(certificate, Certificate)
    assert isinstance(certificate.entries[0], Entry)
    assert isinstance(certificate.entries[0].checks[0], Check)
    assert isinstance(found.sites[0], Site)
    assert "ulps from float64" in str(certificate)
    assert repr(certificate) == "Certificate(2 of 3 norms swapped, verified=True)"
    path = certificate.save(tmp_path / "certificate.json")
    stored = json.loads(path.read_text())
    assert stored == certificate.to_dict()
    assert [norm["action"] for norm in stored["norms"]] == ["swap", "swap", "leave"]
    assert stored["norms"][0]["checks"][0]["what"] == "the result"
    certificate.plan.revert()
    swap(model)
    assert "Not verified: no batch was given." in capsys.readouterr().out
