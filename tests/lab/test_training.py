"""The training of one arm: its data, learning rate, clipping, and what counts as divergence."""

import math

import pytest
import torch
from study_runs import RATE, TINY

from evenkeel.lab import Run, StudySettings, find_arm, load_corpus, run_study, runner
from evenkeel.lab.studies import ArmTraining


def test_the_data_order_is_the_same_for_every_arm_and_differs_between_seeds(tmp_path, text):
    corpus, settings = load_corpus(text, context=8), StudySettings(**TINY)
    one, other, anew = (
        ArmTraining(Run(find_arm(name), RATE, seed), settings, corpus, tmp_path)
        for name, seed in (("none", 0), ("llama", 0), ("none", 1))
    )
    assert torch.equal(one.batch(5), other.batch(5))
    assert not torch.equal(one.batch(5), one.batch(6))
    assert not torch.equal(one.batch(5), anew.batch(5))


def test_windows_stay_inside_the_text(tmp_path, text):
    corpus, settings = load_corpus(text, context=8), StudySettings(**{**TINY, "batch": 64})
    training = ArmTraining(Run(find_arm("none"), RATE, 0), settings, corpus, tmp_path)
    assert training.batch(0).shape == (64, 9)
    assert math.isfinite(training.validate())


def test_the_learning_rate_warms_up_and_decays(tmp_path, text):
    settings = StudySettings(**{**TINY, "steps": 100, "warmup": 10})
    training = ArmTraining(Run(find_arm("none"), 1.0, 0), settings, load_corpus(text, context=8), tmp_path)
    rates = []
    for training.step in range(100):
        rates.append(training.learning_rate())
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55)
    assert rates[99] == pytest.approx(0.1, abs=0.001)


def test_a_long_warmup_takes_half_of_the_steps(tmp_path, text):
    settings, arm = StudySettings(**{**TINY, "steps": 100}), find_arm("post-layer+warmup")
    training = ArmTraining(Run(arm, 1.0, 0), settings, load_corpus(text, context=8), tmp_path)
    training.step = 24
    assert (arm.placement, arm.norm, training.warmup) == ("post", "layer", 50)
    assert training.learning_rate() == pytest.approx(0.5)


def test_clipping_bounds_the_update_but_not_the_recorded_gradient(tmp_path, text):
    corpus = load_corpus(text, context=8)
    norms = {}
    for clip in (None, 1e-3):
        training = ArmTraining(
            Run(find_arm("none"), RATE, 0), StudySettings(**TINY, clip=clip), corpus, tmp_path / str(clip)
        )
        training.records_path.parent.mkdir()
        with training.start() as file:
            training.train_step(file)
        gradients = torch.cat([p.grad.flatten() for p in training.model.parameters()])
        (train,) = [r for r in runner.read_records(training.records_path) if r["kind"] == "train"]
        norms[clip] = (train["gradient_norm"], gradients.norm().item())
    assert norms[1e-3][0] == norms[None][0]
    assert norms[1e-3][1] == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([5.0, math.nan], True),
        ([5.0, math.inf], True),
        ([5.0] * 30, False),
        ([5.0] + [12.0] * 20, True),
        ([20.0] * 30, False),
    ],
)
def test_what_counts_as_divergence(tmp_path, text, losses, diverged):
    training = ArmTraining(
        Run(find_arm("none"), RATE, 0), StudySettings(**TINY), load_corpus(text, context=8), tmp_path
    )
    training.losses = losses
    assert training.has_diverged() is diverged


@pytest.mark.parametrize(
    ("arm", "batch", "context"), [("none", 1, 1), ("pre-batch", 2, 1), ("pre-batch", 1, 2)], ids=str
)
def test_the_smallest_steps_that_train(tmp_path, text, arm, batch, context):
    settings = StudySettings(**{**TINY, "arms": (arm,), "batch": batch, "context": context})
    assert run_study(settings, tmp_path / "out", text=text)["arms"][0]["status"] == "finished"
