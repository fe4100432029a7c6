"""The study as a whole: records, summary, resuming, and everything that can be wrong with its directory."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import evenkeel as ek
from evenkeel.lab import Observer, StudySettings, find_arm, load_corpus, read_study, run_study, write_report
from evenkeel.lab import files as lab_files
from evenkeel.lab.page import study_page
from evenkeel.lab.training import ArmTraining, train_arm

TINY = {"depth": 1, "width": 8, "heads": 2, "context": 8, "batch": 2, "steps": 12, "threads": 1}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i} of a small text\n" for i in range(200)))
    return path


def records(out, arm, kind, seed=0):
    lines = (out / "arms" / f"{arm}-seed{seed}" / "records.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def measured(out, arm):
    """Everything in an arm's records that does not depend on the clock."""
    train = [(r["step"], r["loss"], r["gradient_norm"], r["learning_rate"]) for r in records(out, arm, "train")]
    return train, records(out, arm, "validation"), records(out, arm, "probe"), records(out, arm, "end")


class InterruptAfter(Observer):
    """Raises what Ctrl-C raises, after this many steps."""

    def __init__(self, steps):
        self.left = steps

    def step_done(self, step, loss, tokens_per_second):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Names(Observer):
    """Remembers the names of the arms it is told of."""

    def __init__(self):
        self.skipped, self.ended = [], []

    def arm_skipped(self, arm, seed):
        self.skipped.append(arm.name)

    def arm_ended(self, arm, seed, status):
        self.ended.append(arm.name)


def test_a_study_writes_what_it_promises(tmp_path, text):
    settings = StudySettings(arms=("none", "pre-batch", "llama"), seeds=2, seed=3, **TINY)
    out = tmp_path / "out"
    summary = run_study(settings, out, text=text)
    assert summary == json.loads((out / "summary.json").read_text())
    assert [(arm["name"], arm["seed"]) for arm in summary["arms"]] == [
        (name, seed) for seed in (3, 4) for name in ("none", "pre-batch", "llama")
    ]
    assert [arm["leaks"] for arm in summary["arms"]] == [False, True, False] * 2
    assert summary["settings"] == settings.as_dict()
    assert summary["corpus"]["train_bytes"] + summary["corpus"]["validation_bytes"] == text.stat().st_size
    for arm in summary["arms"]:
        assert arm["status"] == "finished"
        assert arm["train"]["step"] == list(range(12))
        assert arm["validation"]["step"] == list(range(13))
        assert arm["final_validation_loss"] == arm["validation"]["loss"][-1]
        assert [probe["step"] for probe in arm["probes"]] == [0, 3, 11]
        assert arm["probes"][0]["updates"] == []
        assert len(arm["probes"][1]["updates"]) == len(arm["probes"][1]["gradients"])
        assert arm["cost"]["step_seconds"] > 0
    assert summary["arms"][0]["cost"]["norm_seconds"] == 0
    assert summary["findings"]
    assert (out / "report.html").stat().st_size > 1000
    assert write_report(summary, tmp_path / "again.html").exists()


def test_the_data_order_is_the_same_for_every_arm_and_differs_between_seeds(tmp_path, text):
    corpus, settings = load_corpus(text, context=8), StudySettings(**TINY)
    one, other, anew = (
        ArmTraining(find_arm(name), seed, settings, corpus, tmp_path)
        for name, seed in (("none", 0), ("llama", 0), ("none", 1))
    )
    assert torch.equal(one.batch(5), other.batch(5))
    assert not torch.equal(one.batch(5), one.batch(6))
    assert not torch.equal(one.batch(5), anew.batch(5))


def test_windows_stay_inside_the_text(tmp_path, text):
    corpus, settings = load_corpus(text, context=8), StudySettings(**{**TINY, "batch": 64})
    training = ArmTraining(find_arm("none"), 0, settings, corpus, tmp_path)
    assert training.batch(0).shape == (64, 9)
    assert math.isfinite(training.validate())


def test_the_learning_rate_warms_up_and_decays(tmp_path, text):
    settings = StudySettings(**{**TINY, "steps": 100, "lr": 1.0, "warmup": 10})
    training = ArmTraining(find_arm("none"), 0, settings, load_corpus(text, context=8), tmp_path)
    rates = []
    for training.step in range(100):
        rates.append(training.learning_rate())
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55)
    assert rates[99] == pytest.approx(0.1, abs=0.001)


def test_clipping_bounds_the_update_but_not_the_recorded_gradient(tmp_path, text):
    corpus = load_corpus(text, context=8)
    norms = {}
    for clip in (None, 1e-3):
        training = ArmTraining(find_arm("none"), 0, StudySettings(**TINY, clip=clip), corpus, tmp_path / str(clip))
        training.records_path.parent.mkdir()
        with training.start() as file:
            training.train_step(file)
        gradients = torch.cat([p.grad.flatten() for p in training.model.parameters()])
        (train,) = [r for r in lab_files.read_records(training.records_path) if r["kind"] == "train"]
        norms[clip] = (train["gradient_norm"], gradients.norm().item())
    assert norms[1e-3][0] == norms[None][0]
    assert norms[1e-3][1] == pytest.approx(1e-3, rel=1e-3)


def test_a_diverging_arm_ends_and_the_study_goes_on(tmp_path, text):
    settings = StudySettings(arms=("none", "pre-rms"), **{**TINY, "steps": 60, "lr": 30.0, "depth": 3})
    summary = run_study(settings, tmp_path / "out", text=text)
    none, rms = summary["arms"]
    assert none["status"] == "diverged"
    assert none["final_validation_loss"] is None
    assert len(none["train"]["step"]) < 60
    assert len(rms["train"]["step"]) > 0
    assert summary["findings"][0]["title"].startswith("The arm without norm")


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
    training = ArmTraining(find_arm("none"), 0, StudySettings(**TINY), load_corpus(text, context=8), tmp_path)
    training.losses = losses
    assert training.has_diverged() is diverged


@pytest.mark.parametrize("arm", ["pre-batch", "olmo2"])
@pytest.mark.parametrize("steps", [1, 5, 12])
def test_an_interrupted_study_resumes_with_identical_results(tmp_path, text, arm, steps):
    settings = StudySettings(arms=(arm,), **TINY)
    run_study(settings, tmp_path / "whole", text=text)
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, tmp_path / "cut", text=text, observer=InterruptAfter(steps), checkpoint_seconds=0)
    run_study(settings, tmp_path / "cut", text=text, resume=True)
    assert measured(tmp_path / "cut", arm) == measured(tmp_path / "whole", arm)


def test_records_after_the_checkpoint_are_cut_off(tmp_path, text):
    settings, out = StudySettings(arms=("pre-rms",), **TINY), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=text, observer=InterruptAfter(5), checkpoint_seconds=0)
    path = out / "arms" / "pre-rms-seed0" / "records.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "train", "step": 77, "lo')
    run_study(settings, out, text=text, resume=True)
    assert [r["step"] for r in records(out, "pre-rms", "train")] == list(range(12))


def test_finished_arms_are_not_run_again(tmp_path, text):
    settings, out = StudySettings(arms=("pre-rms", "none"), **TINY), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=text, observer=InterruptAfter(15))
    finished = out / "arms" / "pre-rms-seed0" / "records.jsonl"
    before = (finished.read_bytes(), finished.stat().st_mtime_ns)
    assert [arm["name"] for arm in json.loads((out / "summary.json").read_text())["arms"]] == ["pre-rms"]
    seen = Names()
    summary = run_study(settings, out, text=text, resume=True, observer=seen)
    assert (seen.skipped, seen.ended) == (["pre-rms"], ["none"])
    assert (finished.read_bytes(), finished.stat().st_mtime_ns) == before
    assert [arm["status"] for arm in summary["arms"]] == ["finished", "finished"]


KILLED = """
import sys
from pathlib import Path
from evenkeel.lab import StudySettings, run_study
settings = StudySettings.from_options(dict(arms=["pre-batch"], depth=1, width=8, heads=2, context=8, batch=2,
                                           steps=400, threads=1))
run_study(settings, Path(sys.argv[1]), text=Path(sys.argv[2]), checkpoint_seconds=0.05)
"""


def test_kill_minus_nine_and_resume_gives_the_losses_of_the_whole_run(tmp_path, text):
    out, settings = tmp_path / "out", StudySettings(arms=("pre-batch",), **{**TINY, "steps": 400})
    process = subprocess.Popen([sys.executable, "-c", KILLED, out, text])
    checkpoint = out / "arms" / "pre-batch-seed0" / "checkpoint.safetensors"
    while not checkpoint.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert b'"end"' not in checkpoint.with_name("records.jsonl").read_bytes()
    run_study(settings, out, text=text, resume=True)
    run_study(settings, tmp_path / "whole", text=text)
    assert measured(out, "pre-batch") == measured(tmp_path / "whole", "pre-batch")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 13}, "steps was 12, now 13"),
        ({"arms": ("none",)}, "arms was pre-rms, now none"),
        ({"lr": 0.1, "seed": 4}, "lr was 0.002, now 0.1; seed was 0, now 4"),
    ],
)
def test_a_resume_with_other_settings_names_what_differs(tmp_path, text, change, message):
    options = {"arms": ("pre-rms",), "warmup": 1, **TINY}
    run_study(StudySettings(**options), tmp_path / "out", text=text)
    with pytest.raises(ek.StudyError, match=f"cannot resume .*: {message}; resume with"):
        run_study(StudySettings(**{**options, **change}), tmp_path / "out", text=text, resume=True)


def test_a_resume_with_other_text_is_refused(tmp_path, text):
    settings, out = StudySettings(arms=("pre-rms",), **TINY), tmp_path / "out"
    run_study(settings, out, text=text)
    other = tmp_path / "other.txt"
    other.write_text(text.read_text() * 2)
    with pytest.raises(ek.StudyError, match=r"text was .*text\.txt, now .*other\.txt"):
        run_study(settings, out, text=other, resume=True)
    text.write_text(text.read_text() + "more")
    with pytest.raises(ek.StudyError, match=r"the content of the text .* has changed"):
        run_study(settings, out, text=text, resume=True)


def test_resume_starts_a_study_that_is_not_there(tmp_path, text):
    summary = run_study(StudySettings(arms=("none",), **TINY), tmp_path / "out", text=text, resume=True)
    assert summary["arms"][0]["status"] == "finished"


def test_directories_that_are_refused(tmp_path, text):
    settings = StudySettings(arms=("none",), **TINY)
    run_study(settings, tmp_path / "out", text=text)
    with pytest.raises(ek.StudyError, match="already holds a study; continue it with --resume"):
        run_study(settings, tmp_path / "out", text=text)
    with pytest.raises(ek.StudyError, match=r"is not empty and holds no study \(it has .*\); choose a new directory"):
        run_study(settings, tmp_path, text=text)
    with pytest.raises(ek.StudyError, match=r"cannot create directory .*: Not a directory"):
        run_study(settings, text / "below", text=text)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "text.txt"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 2}'])
def test_a_foreign_study_json_is_refused(tmp_path, content):
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(ek.StudyError, match=r"study\.json (is not a study's|has format 2)"):
        read_study(tmp_path)


def test_a_directory_in_use_is_refused(tmp_path, text):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"

    class Second(Observer):
        def step_done(self, step, loss, tokens_per_second):
            run_study(settings, out, text=text, resume=True)

    with pytest.raises(ek.StudyError, match="is in use by another study"):
        run_study(settings, out, text=text, observer=Second())


def test_a_text_whose_name_is_not_utf8(tmp_path, text):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"
    odd = text.rename(tmp_path / os.fsdecode(b"b\xff.txt"))
    summary = run_study(settings, out, text=odd)
    assert summary["corpus"]["source"] == f"{tmp_path}/b\N{REPLACEMENT CHARACTER}.txt"
    assert "b\N{REPLACEMENT CHARACTER}.txt" in (out / "report.html").read_text()
    # The frozen path, unlike the text to read, must lead back to the file.
    assert run_study(settings, out, text=Path(read_study(out)["text"]), resume=True) == summary


def test_the_report_says_how_many_copies_were_left_out(tmp_path, text):
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).write_text(text.read_text())
    summary = run_study(StudySettings(arms=("none",), **TINY), tmp_path / "out", text=folder)
    (table,) = [t for section in study_page(summary).sections for t in section.tables if t.title == "Text"]
    assert ["duplicate files", "1"] in table.rows


@pytest.mark.parametrize("file", ["records.jsonl", "checkpoint.safetensors"])
def test_a_damaged_arm_says_what_to_delete(tmp_path, text, file):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=text, observer=InterruptAfter(5), checkpoint_seconds=0)
    path = out / "arms" / "none-seed0" / file
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ek.StudyError, match=r"delete the directory .*none-seed0 to run this arm again"):
        run_study(settings, out, text=text, resume=True)


def test_missing_records_beside_a_checkpoint_say_what_to_delete(tmp_path, text):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=text, observer=InterruptAfter(5), checkpoint_seconds=0)
    path = out / "arms" / "none-seed0" / "records.jsonl"
    path.unlink()
    with pytest.raises(ek.StudyError, match=r"is shorter than its checkpoint says; delete the directory .*none-seed0"):
        run_study(settings, out, text=text, resume=True)
    assert not path.exists()


def test_damaged_records_are_named(tmp_path, text):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"
    run_study(settings, out, text=text)
    path = out / "arms" / "none-seed0" / "records.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"kind"', b"kind", 1))
    with pytest.raises(ek.StudyError, match=r"records\.jsonl is damaged at line 1; delete the directory"):
        run_study(settings, out, text=text, resume=True)


def test_a_full_disk_loses_no_finished_arm(tmp_path, text, monkeypatch):
    settings, out = StudySettings(arms=("none", "pre-rms"), **TINY), tmp_path / "out"
    write = lab_files.Records.write

    def full_in_the_second_arm(self, kind, **fields):
        if "pre-rms" in str(self._file.name) and kind == "train":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, kind, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(lab_files.Records, "write", full_in_the_second_arm)
        with pytest.raises(ek.StudyError, match="No space left on device; finished arms are kept"):
            run_study(settings, out, text=text)
    assert records(out, "none", "end")
    summary = run_study(settings, out, text=text, resume=True)
    assert [arm["status"] for arm in summary["arms"]] == ["finished", "finished"]


def test_a_failed_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    lab_files.replace_file(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        lab_files.replace_file(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    with lab_files.Records(tmp_path / "r", keep=0) as file:
        file.write("train", loss=math.nan, nested=[{"x": math.inf}, (1.5, None)])
    assert list(lab_files.read_records(tmp_path / "r")) == [
        {"kind": "train", "loss": None, "nested": [{"x": None}, [1.5, None]]}
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: 0}, f"{name} must be at least 1, but is 0") for name in ("depth", "width", "heads", "context")),
        *(({name: -3}, f"{name} must be at least 1, but is -3") for name in ("batch", "steps", "seeds")),
        ({"width": 10, "heads": 4}, "width 10 is not a multiple of heads 4"),
        ({"lr": 0.0}, "lr must be a positive number, but is 0.0"),
        ({"lr": math.nan}, "lr must be a positive number, but is nan"),
        ({"clip": -1.0}, "clip must be a positive number"),
        ({"weight_decay": -1.0}, "weight decay must be zero or more"),
        ({"warmup": 11, "steps": 10}, "warmup must be from 0 to the number of steps (10), but is 11"),
        ({"threads": 0}, "threads must be from 1 to 1024, but is 0"),
        ({"feed_forward": "tanh"}, "feed-forward must be one of relu, gelu, swiglu, geglu, but is 'tanh'"),
        ({"arms": ()}, "no arms given"),
        ({"arms": ("none", "none")}, "arm none is named more than once"),
        ({"arms": ("pre-rmsnorm",)}, "unknown arm 'pre-rmsnorm'; did you mean pre-rms?"),
        (
            {"arms": ("none", "pre-batch"), "batch": 1, "context": 1},
            "arm pre-batch needs more than one position for BatchNorm's statistics, but batch and context are both 1",
        ),
        ({"width": 10**7}, "GiB, but there are"),
    ],
)
def test_impossible_settings(options, message):
    with pytest.raises(ek.StudyError) as caught:
        StudySettings(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arm", "batch", "context"), [("none", 1, 1), ("pre-batch", 2, 1), ("pre-batch", 1, 2)], ids=str
)
def test_the_smallest_steps_that_train(tmp_path, text, arm, batch, context):
    settings = StudySettings(**{**TINY, "arms": (arm,), "batch": batch, "context": context})
    assert run_study(settings, tmp_path / "out", text=text)["arms"][0]["status"] == "finished"


def test_train_arm_does_nothing_twice(tmp_path, text):
    """A run killed between its last checkpoint and its end record ends the same way."""
    settings, corpus = StudySettings(arms=("none",), **TINY), load_corpus(text, context=8)

    def train():
        training = ArmTraining(find_arm("none"), 0, settings, corpus, tmp_path)
        train_arm(training, Observer(), checkpoint_seconds=0)
        return [r for r in lab_files.read_records(training.records_path) if r["kind"] != "cost"]

    first = train()
    assert train() == first
