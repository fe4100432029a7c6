"""One forward and backward: what is left as it was, what is refused, what a report shows."""

import copy
import json

import pytest
import torch
from doctor.faults.families import Cnn, Mlp, encoder, program
from torch import nn

import evenkeel as ek
from evenkeel.doctor import Finding, Reading, Report, Rule, Trace, examine


def state_of(model):
    """Everything of a model that could change."""
    return {
        "tensors": {name: t.clone() for name, t in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "gradients": [p.grad for p in model.parameters()],
        "random": torch.get_rng_state(),
    }


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_as_before(training):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten()
    ).train(training)
    x = torch.randn(6, 3, 8, 8)
    model(x).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    kept, before, of_optimizer = x.clone(), state_of(model), copy.deepcopy(optimizer.state_dict())
    examine(model, x, loss=lambda y: y.square().mean(), optimizer=optimizer)
    after = state_of(model)
    assert all(torch.equal(before["tensors"][name], t) for name, t in after["tensors"].items())
    assert all(a is b for a, b in zip(before["gradients"], after["gradients"], strict=True))
    assert (before["modes"], before["hooks"]) == (after["modes"], after["hooks"])
    assert torch.equal(before["random"], after["random"])
    assert torch.equal(x, kept)
    assert optimizer.state_dict() == of_optimizer


def test_a_model_that_fails_is_as_before_too():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    before = state_of(model)
    with pytest.raises(ek.InvalidInputError, match="does not take this batch"):
        examine(model, torch.randn(5, 7))
    after = state_of(model)
    assert (before["hooks"], before["modes"]) == (after["hooks"], after["modes"])


def test_what_is_no_model_batch_or_loss_is_refused():
    model = nn.Linear(4, 3)
    with pytest.raises(ek.InvalidTypeError, match="pass the model"):
        examine("model", torch.randn(2, 4))
    with pytest.raises(ek.InvalidInputError, match="no scalar"):
        examine(model, torch.randn(2, 4), loss=lambda y: y)
    with pytest.raises(ek.InvalidInputError, match="no scalar"):
        examine(model, torch.randn(2, 4), loss=lambda y: 1.0)
    for loss in (lambda y: y["logits"], "mse"):
        with pytest.raises(ek.InvalidInputError, match=r"loss does not take the model's output: .*Error"):
            examine(model, torch.randn(2, 4), loss=loss)
    with pytest.raises(ek.InvalidInputError, match=r"\(samples, positions\), but this is \(2,\)"):
        examine(model, torch.randn(2, 4), mask=torch.ones(2))
    with pytest.raises(ek.InvalidInputError, match=r"batch is empty: \(0, 4\)"):
        examine(model, torch.randn(0, 4))
    with pytest.raises(ek.InvalidTypeError, match=r"torch\.optim\.Optimizer, but got str"):
        examine(model, torch.randn(2, 4), optimizer="adam")


def test_a_model_without_norms_is_told():
    report = examine(nn.Linear(4, 3), torch.randn(16, 4))
    assert report.ok
    assert "no norms" in report.notes[0]


def test_batches_are_tensors_tuples_and_mappings():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x, y=None):
            return {"loss": self.norm(x + y).square().mean()}

    x = torch.randn(8, 4)
    for batch in ((x, x), {"x": x, "y": x}):
        report = examine(Two(), batch)
        assert [signal.site for signal in report.measured.signals] == ["norm"]
        assert report.measured.loss is not None
    assert "forward and backward" in report.subject


def test_a_model_that_refuses_its_batch_is_told_in_one_line():
    class Refuses(nn.Module):
        def forward(self, x):
            raise ValueError("no\nsuch\nbatch")

    with pytest.raises(ek.InvalidInputError, match="ValueError: no such batch; pass") as caught:
        examine(Refuses(), torch.randn(2, 2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_runs_as_it_was_written(in_place):
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    compiled = model if in_place else torch.compile(model, backend="eager", fullgraph=True)
    if in_place:
        model.compile(backend="eager")
    compiled(torch.randn(8, 4))
    report = examine(compiled, torch.randn(8, 4), loss=lambda y: y.square().mean())
    assert [signal.site for signal in report.measured.signals] == ["1"]
    assert report.subject.startswith("Sequential")
    assert not in_place or model._compiled_call_impl is not None


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("function", "size"), [("mse_loss", 5.0), ("l1_loss", 4.0), ("huber_loss", 3.5)])
def test_the_size_of_targets_is_read_from_their_loss(function, size, reduction):
    target = torch.tensor([[7.0], [1.0]])

    def loss(y):
        return getattr(nn.functional, function)(y, target, reduction=reduction)

    found = examine(nn.Linear(3, 1), torch.randn(2, 3), loss=loss).measured.target
    assert (found.power, found.size) == (2 if function == "mse_loss" else 1, pytest.approx(size, rel=2e-3))


def test_losses_of_classes_have_no_targets_of_a_size():
    labels = torch.tensor([0, 2, 1, 1])
    for loss in (lambda y: nn.functional.cross_entropy(y, labels), lambda y: y.square().mean(), lambda y: -y.mean()):
        assert examine(nn.Linear(3, 3), torch.randn(4, 3), loss=loss).measured.target is None


def test_what_are_no_statistics_is_refused():
    model, x = nn.Linear(4, 3), torch.randn(16, 4)
    with pytest.raises(ek.InvalidTypeError, match=r"evenkeel\.data\.Statistics"):
        examine(model, x, statistics={"mean": 0})
    with pytest.raises(ek.InvalidInputError, match="5 features"):
        examine(model, x, statistics=ek.data.Statistics().update(torch.randn(9, 5)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_diagnosed(value):
    report = examine(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.randn(8, 4), loss=lambda y: y.sum() * value)
    assert [(f.rule, f.severity, f.site) for f in report.findings] == [("not-finite", "critical", "loss")]
    assert not report.ok


def test_ours_and_torchs_norms_are_seen_alike():
    made = [encoder(3, norm=norm, scale=1e-3).examine() for norm in (nn.LayerNorm, ek.nn.LayerNorm)]
    assert [[f.site for f in report.findings] for report in made] == [["blocks.0.norm1"]] * 2
    batch = [program(Cnn, 1, norm=norm).examine().measured.signals for norm in (nn.BatchNorm2d, ek.nn.BatchNorm2d)]
    for theirs, ours in zip(*batch, strict=True):
        assert theirs.values["effective"] == pytest.approx(ours.values["effective"], rel=1e-3)


def test_numbers_are_right():
    model = nn.Sequential(nn.BatchNorm1d(2, eps=1e-5))
    model[0].running_mean.copy_(torch.tensor([1.0, 1.0]))
    model[0].num_batches_tracked.fill_(100)
    x = torch.tensor([[0.0, 10.0], [2.0, 14.0]]).repeat(32, 1)
    (signal,) = examine(model, x).measured.signals
    assert signal.values["rms"] == pytest.approx(x.square().mean().sqrt().item())
    assert signal.values["elements"] == 64
    deviation = (x.var(0) + 1e-5).sqrt()
    assert signal.values["shift"] == pytest.approx(((x.mean(0) - 1).abs() / deviation).median().item(), rel=1e-4)
    row = nn.RMSNorm(4, eps=1e-6)
    (signal,) = examine(row, torch.tensor([[3.0, 3.0, 3.0, 3.0]])).measured.signals
    assert signal.values["mean_share"] == pytest.approx(1.0)


def test_like_places_are_one_finding():
    (finding,) = encoder(1, gain=2.0, depth=8).examine().findings[:1]
    assert finding.site.startswith("blocks.*.norm")
    lost = list(encoder(1, dtype=torch.bfloat16).examine(lambda m: torch.optim.SGD(m.parameters(), 1e-3)).findings)
    assert {f.site for f in lost if f.rule == "gamma-frozen"} == {"blocks.*.norm1 (3)", "blocks.*.norm2 (3)", "norm"}


def test_a_report_shows_itself(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    model[1].running_mean[0] = float("nan")
    report = examine(model, torch.randn(32, 4))
    assert isinstance(report, Report)
    assert isinstance(report.findings[0], Finding)
    assert isinstance(report.findings[0].trace, Trace)
    told = json.loads(report.to_json())
    assert (told["ok"], told["findings"][0]["rule"]) == (False, "statistics-not-finite")
    assert set(told["applied"]) | set(told["not_applicable"]) == {rule.id for rule in ek.doctor.RULES}
    text = str(report)
    assert text.index("CRITICAL  statistics-not-finite  1") < text.index("NOTE  redundant-bias  0")
    assert "```python" in report._repr_markdown_()
    page = report.save(tmp_path / "doctor.html").read_text()
    assert page.index("Critical: statistics-not-finite at 1") < page.index("Note: redundant-bias at 0")
    assert "reset_running_stats" in page
    assert "iframe" in report._repr_html_()


def test_rules_compare_readings_with_thresholds():
    rules = {rule.id: rule for rule in ek.doctor.RULES}
    assert isinstance(rules["stream-grows"], Rule)
    assert [rules["stream-grows"].fires(value) for value in (1.2, 1.3, float("nan"))] == [False, True, False]
    assert [rules["batch-too-small"].fires(value) for value in (7.0, 9.0, float("nan"))] == [True, False, False]
    reading = Reading(site="norm", value=1.0)
    assert (reading.site, reading.evidence) == ("norm", {})


def test_the_mlp_of_the_traps_is_trained():
    assert program(Mlp, 1).trained(5).checkpoint().measured.trained
