"""What probes measure, against direct computation."""

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F

from evenkeel.lab import Transformer, find_arm
from evenkeel.lab.transformer._probes import Probe, histogram, residual_statistics

TOKENS = torch.randint(256, (3, 6), generator=torch.Generator().manual_seed(0))


def train_one_step(name, probed=True):
    model = Transformer(find_arm(name), depth=2, width=12, heads=2, context=5, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = Probe(model)
    with probe if probed else contextlib.nullcontext():
        F.cross_entropy(model(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    record = probe.record()
    optimizer.step()
    return model, record


@pytest.mark.parametrize(("constant", "share"), [(0.0, 0.0), (3.0, 0.9)])
def test_residual_statistics(constant, share):
    x = torch.tensor([[[1.0, -1.0, 1.0, -1.0]]]) + constant  # mean² 9 of a mean square of 10
    measured = residual_statistics(x)
    assert measured["rms"] == pytest.approx(math.sqrt(1 + constant**2))
    assert measured["mean2_over_rms2"] == pytest.approx(share)


def test_histogram_counts_everything_and_keeps_the_bulk_in_view():
    x = torch.randn(40_000)
    x[:5] = 1e6
    measured = histogram(x)
    assert sum(measured["counts"]) == len(x)
    assert len(measured["edges"]) == len(measured["counts"]) + 1
    assert -5 < measured["edges"][0] < -3
    assert 3 < measured["edges"][-1] < 5


@pytest.mark.parametrize("x", [torch.zeros(10), torch.tensor([math.nan, 1.0, math.inf])])
def test_histogram_of_odd_values(x):
    assert sum(histogram(x)["counts"]) == x.isfinite().sum()


def test_activations_that_are_not_finite_have_no_histogram():
    assert histogram(torch.full((4,), math.nan)) is None
    model = Transformer(find_arm("pre-layer"), depth=1, width=12, heads=2, context=5)
    with torch.no_grad():
        model.bytes.weight.fill_(math.inf)
    with Probe(model) as probe:
        model(TOKENS[:, :-1])
    assert probe.record()["widest"] is None
    assert all(not math.isfinite(row["before"]) for row in probe.norms)
    assert len(probe.residual) == 2


def test_a_probe_sees_the_residual_stream_and_the_norms():
    model = Transformer(find_arm("peri-rms"), depth=2, width=12, heads=2, context=5, seed=1)
    tokens = torch.randint(256, (3, 5))
    with Probe(model) as probe:
        model(tokens)
    trace = model.trace(tokens)
    expected = [trace["blocks.0.x"], trace["blocks.1.x"], trace["x"]]
    assert [row["layer"] for row in probe.residual] == [0, 1, 2]
    for row, x in zip(probe.residual, expected, strict=True):
        assert row["rms"] == pytest.approx(x.square().mean().sqrt().item(), rel=1e-5)
    assert [row["norm"] for row in probe.norms] == list(model.norms())
    assert (probe.norms[0]["block"], probe.norms[-1]["block"]) == (0, None)
    assert probe.norms[0]["before"] == pytest.approx(probe.residual[0]["rms"], rel=1e-5)
    assert probe.norms[0]["after"] == pytest.approx(1, rel=1e-3)
    widest = probe.record()["widest"]
    assert widest["norm"] == max(probe.norms, key=lambda row: row["before"])["norm"]
    assert sum(widest["before"]["counts"]) == sum(widest["after"]["counts"]) == 3 * 5 * 12


def test_gradients_by_group():
    model, record = train_one_step("pre-layer")
    groups = {"embedding", "final_norm", "head"}
    groups |= {f"blocks.{i}.{part}" for i in (0, 1) for part in ("attention", "feed_forward", "norm")}
    gradients = {g["group"]: g["norm"] for g in record["gradients"]}
    assert set(gradients) == groups
    every = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert math.hypot(*gradients.values()) == pytest.approx(every.norm().item(), rel=1e-5)
    assert gradients["head"] == pytest.approx(model.head.weight.grad.norm().item(), rel=1e-5)


def test_a_probe_changes_nothing():
    """Weights and running statistics after a step are the same with and without it, and no hook stays behind."""
    (probed, record), (plain, _) = (train_one_step("pre-batch", probed=probed) for probed in (True, False))
    assert record["norms"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in probed.modules())
    mine, theirs = probed.state_dict(), plain.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
