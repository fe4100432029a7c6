"""The study as a whole: what it writes, its settings, and everything that can be wrong with its directory."""

import json
import math
import os
from pathlib import Path

import pytest
from study_runs import TINY

import evenkeel as ek
from evenkeel.lab import Observer, StudySettings, read_study, run_study, write_report
from evenkeel.lab.studies import study_page


def test_a_study_writes_what_it_promises(tmp_path, text):
    settings = StudySettings(
        **TINY | {"arms": ("none", "pre-batch", "llama"), "seeds": 2, "seed": 3, "lr": (0.001, 0.01)}
    )
    out = tmp_path / "out"
    summary = run_study(settings, out, text=text)
    assert summary == json.loads((out / "summary.json").read_text())
    assert [(arm["name"], arm["lr"], arm["seed"]) for arm in summary["arms"]] == [
        (name, lr, seed) for seed in (3, 4) for name in ("none", "pre-batch", "llama") for lr in (0.001, 0.01)
    ]
    assert [arm["leaks"] for arm in summary["arms"]] == [False, False, True, True, False, False] * 2
    assert [arm["leak"] > 0 for arm in summary["arms"]] == [arm["leaks"] for arm in summary["arms"]]
    assert summary["settings"] == settings.as_dict()
    assert summary["corpus"]["train_bytes"] + summary["corpus"]["validation_bytes"] == text.stat().st_size
    for arm in summary["arms"]:
        assert arm["status"] == "finished"
        assert arm["train"]["step"] == list(range(12))
        assert arm["validation"]["step"] == [0, 3, 6, 9, 12]
        assert arm["final_validation_loss"] == arm["validation"]["loss"][-1]
        assert [probe["step"] for probe in arm["probes"]] == [0, 11]
        assert (arm["probes"][1]["widest"] is None) == (arm["name"] == "none")
    costs = summary["costs"]
    assert list(costs) == ["none", "pre-batch", "llama"]
    assert all(len(cost["step_seconds"]) == len(cost["norm_seconds"]) == 9 for cost in costs.values())
    assert [min(cost["norm_seconds"]) > 0 for cost in costs.values()] == [False, True, True]
    assert summary["findings"]
    assert (out / "report.html").stat().st_size > 1000
    assert write_report(summary, tmp_path / "again.html").exists()


def test_a_diverging_arm_ends_and_the_study_goes_on(tmp_path, text):
    settings = StudySettings(arms=("none", "pre-rms"), **{**TINY, "steps": 60, "lr": (30.0,), "depth": 3})
    summary = run_study(settings, tmp_path / "out", text=text)
    none, rms = summary["arms"]
    assert none["status"] == "diverged"
    assert none["final_validation_loss"] is None
    assert len(none["train"]["step"]) < 60
    assert len(rms["train"]["step"]) > 0
    assert summary["findings"][0]["title"].startswith("Without norm, training diverged at step ")


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


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1}', '{"format": 3}'])
def test_a_foreign_study_json_is_refused(tmp_path, content):
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(ek.StudyError, match=r"study\.json (is not a study's|has format [13])"):
        read_study(tmp_path)


def test_a_directory_in_use_is_refused(tmp_path, text):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"

    class Second(Observer):
        def step_done(self, run, step, loss, tokens_per_second):
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: 0}, f"{name} must be at least 1, but is 0") for name in ("depth", "width", "heads", "context")),
        *(({name: -3}, f"{name} must be at least 1, but is -3") for name in ("batch", "steps", "seeds")),
        ({"width": 10, "heads": 4}, "width 10 is not a multiple of heads 4"),
        ({"lr": 0.0}, "lr must be a positive number, but is 0.0"),
        ({"lr": math.nan}, "lr must be a positive number, but is nan"),
        ({"lr": (0.1, -1.0)}, "lr must be a positive number, but is -1.0"),
        ({"lr": ()}, "no learning rate given"),
        ({"lr": (0.1, 0.2, 0.1)}, "lr names 0.1 more than once"),
        ({"clip": -1.0}, "clip must be a positive number"),
        ({"weight_decay": -1.0}, "weight decay must be zero or more"),
        ({"warmup": 11, "steps": 10}, "warmup must be from 0 to the number of steps (10), but is 11"),
        ({"threads": 0}, "threads must be a whole number from 1 to 1024, but is 0"),
        ({"feed_forward": "tanh"}, "feed-forward must be one of relu, gelu, swiglu, geglu, but is 'tanh'"),
        ({"arms": ()}, "no arms given"),
        ({"arms": ("none", "none")}, "arm none is named more than once"),
        ({"arms": ("pre-rmsnorm",)}, "unknown arm 'pre-rmsnorm'; did you mean pre-rms, "),
        ({"arms": ("pre-rms+warm",)}, "unknown arm 'pre-rms+warm'; did you mean pre-rms+warmup?"),
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
