"""Studies that stop and go on: interrupted, killed, changed or damaged in between, and still the same results."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from study_runs import TINY, InterruptAfter, Names, folder, measured, records

import evenkeel as ek
from evenkeel.lab import Observer, Run, StudySettings, find_arm, load_corpus, run_study, runner
from evenkeel.lab.studies import ArmTraining, train_arm


@pytest.mark.parametrize("arm", ["pre-batch", "olmo2"])
@pytest.mark.parametrize("steps", [1, 5, 12])
def test_an_interrupted_study_resumes_with_identical_results(tmp_path, text, arm, steps):
    settings = StudySettings(arms=(arm,), **TINY)
    run_study(settings, tmp_path / "whole", text=text)
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, tmp_path / "cut", text=text, observer=InterruptAfter(steps), checkpoint_seconds=0)
    run_study(settings, tmp_path / "cut", text=text, resume=True)
    assert measured(tmp_path / "cut") == measured(tmp_path / "whole") != {}


def test_records_after_the_checkpoint_are_cut_off(tmp_path, text):
    settings, out = StudySettings(arms=("pre-rms",), **TINY), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=text, observer=InterruptAfter(5), checkpoint_seconds=0)
    path = folder(out, "pre-rms") / "records.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "train", "step": 77, "lo')
    run_study(settings, out, text=text, resume=True)
    assert [r["step"] for r in records(out, "pre-rms", "train")] == list(range(12))


def test_finished_arms_are_not_run_again(tmp_path, text):
    settings, out = StudySettings(arms=("pre-rms", "none"), **TINY), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=text, observer=InterruptAfter(15))
    finished = folder(out, "pre-rms") / "records.jsonl"
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
                                           steps=400, threads=1, lr=0.002, seeds=1))
run_study(settings, Path(sys.argv[1]), text=Path(sys.argv[2]), checkpoint_seconds=0.05)
"""


def test_kill_minus_nine_and_resume_gives_the_losses_of_the_whole_run(tmp_path, text):
    out, settings = tmp_path / "out", StudySettings(arms=("pre-batch",), **{**TINY, "steps": 400})
    process = subprocess.Popen([sys.executable, "-c", KILLED, out, text])
    checkpoint = folder(out, "pre-batch") / "checkpoint.safetensors"
    while not checkpoint.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert b'"end"' not in checkpoint.with_name("records.jsonl").read_bytes()
    run_study(settings, out, text=text, resume=True)
    run_study(settings, tmp_path / "whole", text=text)
    assert measured(out) == measured(tmp_path / "whole") != {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 13}, "steps was 12, now 13"),
        ({"arms": ("none",)}, "arms was pre-rms, now none"),
        ({"lr": (0.1, 0.2), "seed": 4}, "lr was 0.002, now 0.1,0.2; seed was 0, now 4"),
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


@pytest.mark.parametrize("file", ["records.jsonl", "checkpoint.safetensors"])
def test_a_damaged_arm_says_what_to_delete(tmp_path, text, file):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=text, observer=InterruptAfter(5), checkpoint_seconds=0)
    path = folder(out, "none") / file
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ek.StudyError, match=r"delete the directory .*none-lr0.002-seed0 to run this arm again"):
        run_study(settings, out, text=text, resume=True)


def test_missing_records_beside_a_checkpoint_say_what_to_delete(tmp_path, text):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(settings, out, text=text, observer=InterruptAfter(5), checkpoint_seconds=0)
    path = folder(out, "none") / "records.jsonl"
    path.unlink()
    with pytest.raises(
        ek.StudyError, match=r"is shorter than its checkpoint says; delete the directory .*none-lr0.002-seed0"
    ):
        run_study(settings, out, text=text, resume=True)
    assert not path.exists()


def test_damaged_records_are_named(tmp_path, text):
    settings, out = StudySettings(arms=("none",), **TINY), tmp_path / "out"
    run_study(settings, out, text=text)
    path = folder(out, "none") / "records.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"kind"', b"kind", 1))
    with pytest.raises(ek.StudyError, match=r"records\.jsonl is damaged at line 1; delete the directory"):
        run_study(settings, out, text=text, resume=True)


def test_a_full_disk_loses_no_finished_arm(tmp_path, text, monkeypatch):
    settings, out = StudySettings(arms=("none", "pre-rms"), **TINY), tmp_path / "out"
    write = runner.Records.write

    def full_in_the_second_arm(self, kind, **fields):
        if "pre-rms" in str(self._file.name) and kind == "train":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, kind, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(runner.Records, "write", full_in_the_second_arm)
        with pytest.raises(ek.StudyError, match="No space left on device; finished arms are kept"):
            run_study(settings, out, text=text)
    assert records(out, "none", "end")
    summary = run_study(settings, out, text=text, resume=True)
    assert [arm["status"] for arm in summary["arms"]] == ["finished", "finished"]


def test_train_arm_does_nothing_twice(tmp_path, text):
    """A run killed between its last checkpoint and its end record ends the same way."""
    settings, corpus = StudySettings(arms=("none",), **TINY), load_corpus(text, context=8)

    def train():
        training = ArmTraining(Run(find_arm("none"), 0.002, 0), settings, corpus, tmp_path)
        train_arm(training, Observer(), checkpoint_seconds=0)
        return training.records_path.read_bytes()

    first = train()
    assert train() == first
