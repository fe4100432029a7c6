"""A watched training: what is seen, what it costs the loop, what is left when it ends early."""

import sys
import types

import pytest
import torch
from doctor.faults.averages import kept
from doctor.faults.families import Cnn, encoder, loss_of, program
from torch import nn

import evenkeel as ek
from evenkeel.doctor import Watch, lightning_callback, probes, transformers_callback, watch


def small(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)).to(dtype)


def train(model, steps, every=10, lr=1e-2, seen=None, **options):
    """Train under watch; return the watch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with watch(model, optimizer, every=every, **options) as watching:
        for step in range(steps):
            x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
            loss = (model(x.to(model[0].weight.dtype)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            watching.step(loss)
            optimizer.zero_grad()
            if seen is not None:
                seen.append(sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()))
    return watching


def test_hooks_stand_at_the_measured_steps_alone():
    seen = []
    watching = train(small(), 25, seen=seen)
    assert [bool(hooks) for hooks in seen] == [step % 10 == 8 for step in range(25)]
    assert [step.step for step in watching.report().measured.steps] == [1, 10, 20]
    assert 0 < watching.memory < 10_000
    assert "3 of 25 steps measured" in watching.report().subject


def test_watching_changes_no_bit_of_a_training():
    watched, alone = small(), small()
    train(watched, 20)
    optimizer = torch.optim.SGD(alone.parameters(), lr=1e-2)
    for step in range(20):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        (alone(x) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), alone.parameters(), strict=True))


def test_one_transfer_for_a_measured_step(monkeypatch):
    calls = []
    for module in ("evenkeel.doctor.probes._tensors", "evenkeel.doctor._watch"):
        plain = sys.modules[module].to_numbers
        if module.endswith("_watch"):
            monkeypatch.setattr(sys.modules[module], "to_numbers", lambda s, f=plain: calls.append(len(s)) or f(s))
    train(small(), 21)
    assert [size > 4 for size in calls] == [
        False,
        True,
        True,
        True,
    ]  # the first asks whether the gains are at their start


def test_a_frozen_gain_is_told_by_its_bits():
    report = train(small(torch.bfloat16), 40, lr=1e-4).report()
    assert [(f.rule, f.site) for f in report.findings] == [("gamma-frozen", "1")]
    assert train(small(), 40, lr=1e-4).report().findings == ()


def test_an_interrupted_training_keeps_what_was_seen():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, every=2)

    def interrupted():
        with watching:
            for _ in range(5):
                loss = model(torch.randn(8, 4)).square().mean()
                loss.backward()
                optimizer.step()
                watching.step(loss)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [step.step for step in watching.report().measured.steps] == [1, 2, 4]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_loss_that_becomes_nan_is_diagnosed():
    made = encoder(1)
    report = made.watched(steps=10, every=5, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e12))
    assert not report.ok
    assert "not-finite" in {f.rule for f in report.findings}


def test_wrong_arguments_are_refused():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ek.InvalidTypeError, match=r"torch\.optim\.Optimizer"):
        watch(model, None)
    for every in (0, -1, 2.5, True):
        with pytest.raises(ek.InvalidArgumentError, match="every must be"):
            Watch(model, optimizer, every=every)
    with pytest.raises(ek.InvalidInputError, match="no scalar"), watch(model, optimizer) as watching:
        watching.step(torch.ones(2))
    with pytest.raises(ek.InvalidTypeError, match="as the loss, but got str"), watch(model, optimizer) as watching:
        watching.step("loss")
    for outside in (watch(model, optimizer), watching):
        with pytest.raises(ek.StateError, match="around the loop"):
            outside.step(1.0)


def test_autocast_with_a_scaler_is_watched():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    with watch(model, optimizer, every=5) as watching:
        for _ in range(10):
            with torch.autocast("cpu", torch.bfloat16):
                loss = (model(torch.randn(16, 4)) - 1).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watching.step(loss)
            optimizer.zero_grad()
    assert watching.report().findings == ()
    assert {s.dtype for s in watching.report().measured.signals} <= {"bfloat16", "float32"}


def test_a_compiled_model_is_told_to_have_no_hooks():
    model = small()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(compiled, optimizer, every=2) as watching:
        for _ in range(4):
            compiled(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            watching.step()
    report = watching.report()
    assert "compiled" in report.notes[0]
    assert report.measured.signals == ()
    assert len(report.measured.steps) == 3


def test_a_step_compiled_as_a_whole_has_no_graph_breaks():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    step = torch.compile(lambda x: model(x).square().mean(), backend="eager", fullgraph=True)
    with watch(model, optimizer, every=2) as watching:
        for _ in range(6):
            step(torch.randn(16, 4)).backward()
            optimizer.step()
            watching.step()
            optimizer.zero_grad()
    report = watching.report()
    assert "compiled" in report.notes[0]
    assert (report.measured.signals, len(report.measured.steps)) == ((), 4)


def test_a_compiled_part_is_known():
    model = small()
    model[1] = torch.compile(model[1], backend="eager")
    watching = watch(model, torch.optim.SGD(model.parameters(), lr=1e-2))
    with watching:
        pass
    assert "compiled" in watching.report().notes[0]


def test_what_is_kept_of_a_long_training_is_bounded():
    watching = train(small(), 1200, every=1)
    steps = [step.step for step in watching.report().measured.steps]
    assert (steps[0], steps[-1]) == (1, 1200)
    assert 256 <= len(steps) <= 512
    assert "1200 of 1200 steps measured" in watching.report().subject


def test_curves_by_step_have_the_readings_of_the_steps():
    report = encoder(1, depth=8, gain=1.8).watched(steps=12, every=4)
    curves = {curve.rule: curve for curve in report.measured.curves}
    assert curves["update-ratio"].steps == (1, 4, 8, 12)
    assert curves["update-ratio"].values == tuple(step.update for step in report.measured.steps)
    assert min(curves["stream-grows"].values) > 1.3
    assert (report.measured.fresh, encoder(1).trained(3).watched(steps=2).measured.fresh) == (True, False)


def test_a_page_draws_curves_with_their_threshold(tmp_path):
    report = encoder(1, depth=8, gain=1.8).watched(steps=12, every=4)
    page = report.save(tmp_path / "doctor.html").read_text()
    assert "stream-grows by step: first past its threshold at step 1" in page
    assert page.index("stream-grows by step") < page.index("What else was watched by step")
    assert "update-ratio by step: past its threshold at no measured step" in page


def test_steps_that_a_scaler_leaves_out_are_no_fault():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=10**6)
    with watch(model, optimizer, every=10) as watching:
        for _ in range(60):
            loss = 1e4 * (model(torch.randn(16, 4)) - 1).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watching.step(loss)
            optimizer.zero_grad()
    report = watching.report()
    assert report.measured.steps[0].update == 0
    assert [f.rule for f in report.findings if f.rule == "gamma-frozen"] == []


def test_statistics_that_follow_in_a_frozen_norm_are_seen():
    made = program(Cnn, 1)
    made.model.body[1].requires_grad_(False)
    found = {(f.rule, f.site) for f in made.watched(steps=10, every=5).findings}
    assert ("frozen-but-updating", "body.1") in found


def test_a_trainer_of_transformers_is_watched(tmp_path):
    callback = transformers_callback(every=2, page=tmp_path / "doctor.html")
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    states = [types.SimpleNamespace(global_step=step) for step in range(30, 34)]  # a training that goes on
    callback.on_train_begin(None, states[0], None, model=model, optimizer=types.SimpleNamespace(optimizer=optimizer))
    for state in states:
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        callback.on_optimizer_step(None, state, None, model=model)
    callback.on_train_end(None, None, None)
    assert callback.report.ok
    assert len(callback.report.measured.steps) == 3
    assert (tmp_path / "doctor.html").stat().st_size > 1000


def test_a_trainer_of_lightning_is_watched(monkeypatch):
    for name in ("lightning", "lightning.pytorch"):  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ek.EvenkeelError, match="pip install lightning"):
        lightning_callback()
    package, inner = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
    inner.Callback, package.pytorch = type("Callback", (), {}), inner
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", inner)
    callback, model = lightning_callback(every=1), small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    trainer = types.SimpleNamespace(optimizers=[optimizer], global_step=0)
    callback.on_train_start(trainer, model)
    loss = model(torch.randn(16, 4)).square().mean()
    loss.backward()
    callback.on_train_batch_end(trainer, model, {"loss": 2 * loss}, None, 0)  # gradients are accumulated
    optimizer.step()
    trainer.global_step = 1
    callback.on_train_batch_end(trainer, model, {"loss": loss}, None, 1)
    callback.on_train_end(trainer, model)
    assert callback.report.measured.loss == pytest.approx(loss.item())
    assert [step.step for step in callback.report.measured.steps] == [1]


def test_an_average_has_the_norms_of_its_model():
    model, optimizer = program(Cnn, 1).model, torch.optim.SGD(program(Cnn, 1).model.parameters(), lr=0.1)
    with pytest.raises(ek.InvalidInputError, match=r"has 2 norms .*, the model 3 .*whose weights are averaged"):
        watch(model, optimizer, averaged=program(Cnn, 1, depth=2).model)
    with pytest.raises(ek.InvalidTypeError, match="pass the averaged model"):
        watch(model, optimizer, averaged=model.state_dict())


@pytest.mark.parametrize(("buffers", "found"), [("forgotten", True), ("copied", False)])
def test_an_average_is_judged_beside_its_model(buffers, found):
    report = kept(program(Cnn, 1), buffers=buffers, steps=30)
    assert ("statistics-not-averaged" in {f.rule for f in report.findings}) == found
    assert [(a.site, a.other, a.stayed) for a in report.measured.averages[:1]] == [("body.1", "body.1", found)]


@pytest.mark.parametrize(("dtype", "power"), [(torch.bfloat16, -8), (torch.float16, -11)])
def test_steps_are_measured_in_half_ulps(dtype, power):
    weight = nn.Parameter(torch.tensor([1.0, 1.0, 0.0], dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for gradient, size in (([-1.0, 0.0, 0.0], 1.0), ([1.0, 0.0, 0.0], 2.0), ([0.0, -3.0, 0.0], 3.0)):
        weight.grad = 2.0**power * torch.tensor(gradient, dtype=dtype)
        assert probes.requested_steps(optimizer, {"norm": weight})["norm"].item() == pytest.approx(size)
    weight.grad = torch.tensor([0.0, 0.0, 1e-5], dtype=dtype)
    assert probes.requested_steps(optimizer, {"norm": weight})["norm"] > 100  # beside zero numbers lie close


def test_the_page_draws_the_steps_that_bfloat16_loses(tmp_path):
    watching = train(small(torch.bfloat16), 40, lr=1e-4)
    (curve,) = (curve for curve in watching.report().measured.curves if curve.rule == "gamma-frozen")
    assert curve.steps == (1, 10, 20, 30, 40)
    assert all(0 < value < 1 and curve.fires(value) for value in curve.values)
    page = watching.report().save(tmp_path / "doctor.html").read_text()
    assert "gamma-frozen by step: first past its threshold at step 1" in page
    assert not any(curve.rule == "gamma-frozen" for curve in train(small(), 40).report().measured.curves)


def test_the_moments_of_an_optimizer_count():
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([weight], lr=1e-3)
    for gradient in (1.0, 1e-3):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
    # a small gradient after a large one: the moments ask for a part of 1e-3, a new optimizer for the whole
    assert 0.1 < probes.requested_steps(optimizer, {"norm": weight})["norm"].item() * 2**-9 / 1e-3 < 0.8


def test_programs_learn():
    made = encoder(2)
    before = loss_of(made.batch())(made.model(made.batch())).item()
    made.trained(60)
    assert loss_of(made.batch())(made.model(made.batch())).item() < before - 0.3
