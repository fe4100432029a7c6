"""How steps are computed: accumulation, bfloat16, compilation, devices; and what a study says it will take."""

import json

import pytest
import torch
from study_runs import TINY, Names, measured, records

import evenkeel as ek
from evenkeel._options.study import Compute
from evenkeel.lab import Run, Spent, StudySettings, Transformer, find_arm, load_corpus, run_study
from evenkeel.lab.progress import Lines, estimate_line, spent_line
from evenkeel.lab.training import loss_backward, make_optimizer, sample_windows, validation_loss

SIZE = {"depth": 2, "width": 16, "heads": 2, "context": 8}


def trained(text, arm, **compute):
    """The loss and the gradients of one batch."""
    model = Transformer(find_arm(arm), **SIZE)
    windows = sample_windows(load_corpus(text, context=8), 0, 0, batch=6, context=8)
    loss = loss_backward(model, make_optimizer(model, 0.0), windows, compute=Compute(**compute))
    return loss, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_gradients_of_parts_add_up_to_those_of_the_batch(text, parts):
    loss, gradients = trained(text, "pre-rms")
    other, summed = trained(text, "pre-rms", accumulate=parts)
    assert other == pytest.approx(loss, rel=1e-6)
    for whole, part in zip(gradients, summed, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-6)


def test_bfloat16_rounds_the_linear_maps_and_keeps_float32_weights(text):
    loss, gradients = trained(text, "pre-rms")
    other, rounded = trained(text, "pre-rms", precision="bfloat16")
    assert 0 < abs(other - loss) < 0.02 * loss
    assert {gradient.dtype for gradient in rounded} == {torch.float32}
    for exact, near in zip(gradients, rounded, strict=True):
        assert (near - exact).norm() < 0.1 * exact.norm() + 1e-4


def test_validation_uses_the_same_precision(text):
    model, corpus = Transformer(find_arm("pre-rms"), **SIZE), load_corpus(text, context=8)
    sizes = {"batches": 2, "batch": 4, "context": 8}
    exact, near = (
        validation_loss(model, corpus, **sizes, compute=Compute(precision=name)) for name in ("float32", "bfloat16")
    )
    assert 0 < abs(near - exact) < 0.02 * exact


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"precision": "bfloat16"}])
def test_a_study_resumes_and_runs_in_processes_with_the_same_records(options, tmp_path, text):
    settings = StudySettings(**TINY | {"arms": ("pre-batch", "llama")} | options)
    run_study(settings, tmp_path / "serial", text=text)
    run_study(settings, tmp_path / "processes", text=text, workers=2)
    assert measured(tmp_path / "processes") == measured(tmp_path / "serial")
    run_study(StudySettings(**TINY | {"arms": ("pre-batch", "llama")}), tmp_path / "plain", text=text)
    assert measured(tmp_path / "plain") != measured(tmp_path / "serial")
    probes = [[len(probe["residual"]) for probe in records(tmp_path / name, "llama", "probe")] for name in ("serial",)]
    assert probes == [[TINY["depth"] + 1] * 2]
    with pytest.raises(ek.StudyError, match=f"cannot resume .*{next(iter(options))} was"):
        run_study(StudySettings(**TINY | {"arms": ("pre-batch", "llama")}), tmp_path / "serial", text=text, resume=True)


@pytest.mark.slow
def test_compiled_models_learn_the_same(tmp_path, text):
    options = TINY | {"arms": ("llama",), "steps": 6}
    plain = run_study(StudySettings(**options), tmp_path / "plain", text=text)
    compiled = run_study(StudySettings(**options, compile=True), tmp_path / "compiled", text=text)
    pairs = zip(*(run["arms"][0]["train"]["loss"] for run in (plain, compiled)), strict=True)
    for one, other in pairs:
        assert other == pytest.approx(one, rel=1e-4)
    assert compiled["settings"]["compile"] is True
    assert [each["spent"]["uncounted"] for each in (plain, compiled)] == ["", "compiling"]


def test_a_device_that_is_not_there_is_one_line(tmp_path, text, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ek.StudyError, match=r"there is no GPU that torch can use .*; choose --device cpu"):
        run_study(StudySettings(**TINY, device="cuda"), tmp_path / "out", text=text)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device must be cpu or cuda, but is 'tpu'"),
        ({"precision": "float16"}, "precision must be float32 or bfloat16, but is 'float16'"),
        ({"accumulate": 0}, "accumulate must be at least 1, but is 0"),
        ({"accumulate": 3}, "batch 8 does not split into 3 equal parts"),
        ({"accumulate": 8, "context": 1, "arms": ("pre-batch",)}, "needs more than one position"),
    ],
)
def test_impossible_ways_to_compute(options, message):
    with pytest.raises(ek.StudyError, match=message):
        StudySettings(**options)


def test_accumulation_needs_less_memory():
    whole, parts = StudySettings(batch=64), StudySettings(batch=64, accumulate=8)
    assert parts.needed_bytes(256) < whole.needed_bytes(256) / 3


class Estimates(Names):
    def __init__(self):
        super().__init__()
        self.estimated = self.trained = None

    def study_estimated(self, spent):
        self.estimated = spent

    def study_trained(self, spent):
        self.trained = spent


@pytest.mark.parametrize("workers", [1, 2])
def test_time_and_memory_are_estimated_before_and_kept_with_what_they_came_to(workers, tmp_path, text):
    observer, out = Estimates(), tmp_path / "out"
    settings = StudySettings(**TINY | {"arms": ("none", "pre-rms")})
    summary = run_study(settings, out, text=text, workers=workers, observer=observer)
    assert observer.estimated.estimated_seconds > 0
    assert observer.estimated.seconds is None
    assert observer.estimated.uncounted == ("the start of 2 processes" if workers == 2 else "")
    assert observer.trained.seconds > 0
    assert observer.trained.bytes > 50 << 20  # torch alone takes as much
    assert summary["spent"] == vars(observer.trained)
    assert json.loads((out / "spent.json").read_text()) == summary["spent"]
    (out / "spent.json").write_text('{"seconds": "many"}')
    assert run_study(settings, out, text=text, resume=True)["spent"] == {}


def test_the_lines_say_what_is_expected_and_what_it_came_to(capsys):
    spent = Spent(estimated_seconds=61.0, seconds=75.2, estimated_bytes=3 << 29, bytes=1 << 30)
    assert estimate_line(spent) == "the trainings will take about 1:01 and 1.50 GiB of memory a worker"
    assert spent_line(spent).startswith("the trainings took 1:15 and 1.00 GiB of memory a worker (estimated: 1:01")
    beside = Spent(estimated_seconds=1.0, estimated_bytes=3 << 19, uncounted="the start of 2 processes and compiling")
    expected = "0:01 and 1.5 MiB of memory a worker, beside the start of 2 processes and compiling"
    assert estimate_line(beside) == f"the trainings will take about {expected}"
    assert spent_line(beside).endswith(f"(estimated: {expected})")
    lines = Lines(1, 1)
    lines.study_estimated(Spent())
    lines.said -= 60
    lines.text_laid_out(3 << 20)
    assert capsys.readouterr().err.splitlines() == [
        "the trainings will take an unknown time",
        "laying out the text: 3 MiB",
    ]


def test_no_time_is_left_before_it_is_known(capsys):
    run, lines = Run(find_arm("none"), 0.002, 0), Lines(10, 1)
    lines.every = 0
    lines.run_started(run, 0)
    lines.validated(run, 0, 5.0)
    lines.pace.began -= 60
    lines.step_done(run, 5, 4.0, 100.0)
    lines.validated(run, 5, 4.0)
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"{run.label}: step 0/10, validation loss 5.000"
    assert second == f"{run.label}: step 5/10, validation loss 4.000, 100 tokens/s, 1:00 left"


def test_the_configuration_and_the_versions_stand_in_the_result(tmp_path, text):
    summary = run_study(StudySettings(**TINY | {"arms": ("none",)}), tmp_path / "out", text=text)
    assert summary["settings"] == StudySettings(**TINY | {"arms": ("none",)}).as_dict()
    assert {summary[name] for name in ("evenkeel", "torch")} == {ek.__version__, torch.__version__}
    assert summary["python"].count(".") == 2
    assert "reference" in summary["kernels"]


def test_a_study_that_knew_no_devices_resumes(tmp_path, text):
    settings, out = StudySettings(**TINY | {"arms": ("none",)}), tmp_path / "out"
    run_study(settings, out, text=text)
    frozen = json.loads((out / "study.json").read_text())
    for name in ("device", "precision", "compile", "accumulate"):
        del frozen["settings"][name]
    (out / "study.json").write_text(json.dumps(frozen))
    assert run_study(settings, out, text=text, resume=True)["settings"]["device"] == "cpu"
    with pytest.raises(ek.StudyError, match="accumulate was 1, now 2"):
        run_study(StudySettings(**TINY | {"arms": ("none",)}, accumulate=2), out, text=text, resume=True)
