"""The runner of studies and experiments: files that survive interruption, what a run froze, the directory it holds."""

import errno
import math
import os
from pathlib import Path

import pytest
import torch

from evenkeel._errors import EvenkeelError, StudyError
from evenkeel._files import replace_file
from evenkeel.lab import runner
from evenkeel.lab.training import load_checkpoint, save_checkpoint


def test_a_failed_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    (tmp_path / "null").symlink_to(os.devnull)
    replace_file(tmp_path / "null", b"new")
    assert [entry.is_symlink() for entry in tmp_path.iterdir()] == [True]
    read, write = os.pipe()
    replace_file(Path("/dev/fd") / str(write), b"through a pipe")
    assert os.read(read, 99) == b"through a pipe"
    os.close(read)
    os.close(write)


def test_numbers_that_are_not_finite_become_null(tmp_path):
    with runner.Records(tmp_path / "r", keep=0) as file:
        file.write("train", loss=math.nan, nested=[{"x": math.inf}, (1.5, None)])
    assert list(runner.read_records(tmp_path / "r")) == [
        {"kind": "train", "loss": None, "nested": [{"x": None}, [1.5, None]]}
    ]


def test_records_continue_after_the_last_whole_line(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"kind": "trial", "n": 1}\n{"kind": "tri')
    with runner.Records(path) as file:
        file.write("trial", n=2)
    assert [record["n"] for record in runner.read_records(path)] == [1, 2]


LAUNCH = runner.FrozenFile(
    name="launch.json",
    owner="a launch",
    run="a launch",
    options="options",
    fixed=("version",),
    differences=lambda frozen, asked: ["the weather has changed"] if frozen["sky"] != asked["sky"] else [],
)
ASKED = {"format": runner.FORMAT, "version": "1", "sky": "blue", "options": {"fuel": [1, 2], "crew": 3}}


def test_what_a_run_froze_is_returned_when_it_resumes(tmp_path):
    assert LAUNCH.read(tmp_path) is None
    assert LAUNCH.freeze(tmp_path / "new", {**ASKED, "created": "then"}, resume=True)["created"] == "then"
    assert LAUNCH.freeze(tmp_path / "new", {**ASKED, "created": "now"}, resume=True)["created"] == "then"
    with pytest.raises(StudyError, match="already holds a launch; continue it with --resume"):
        LAUNCH.freeze(tmp_path / "new", ASKED, resume=False)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"options": {"fuel": [1, 2, 3], "crew": 3}}, "fuel was 1,2, now 1,2,3"),
        ({"options": {"fuel": [1, 2], "crew": 3, "dog": "Laika"}}, "dog was None, now Laika"),
        ({"version": "2"}, "version was 1, now 2"),
        ({"sky": "grey"}, "the weather has changed"),
    ],
)
def test_what_differs_is_named(tmp_path, change, difference):
    LAUNCH.freeze(tmp_path, ASKED, resume=False)
    with pytest.raises(StudyError, match=f"cannot resume .*: {difference}; resume with what it began with"):
        LAUNCH.freeze(tmp_path, {**ASKED, **change}, resume=True)


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 1, "options": 3}'])
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "launch.json").write_text(content)
    with pytest.raises(StudyError, match=r"launch\.json is not a launch's"):
        LAUNCH.read(tmp_path)


def test_a_missing_package_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("evenkeel._packages.find_spec", lambda name: None)
    needed = r"a report needs the package jinja2.*evenkeel\[report\]"
    with pytest.raises(EvenkeelError, match=needed), runner.run_directory(tmp_path / "out"):
        pass
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_restores_model_and_optimizer(tmp_path):
    def trained(steps):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(steps):
            model(torch.ones(3)).sum().backward()
            optimizer.step()
        return model, optimizer

    model, optimizer = trained(3)
    save_checkpoint(tmp_path / "c", model, optimizer, step=3, size=70)
    other, other_optimizer = trained(1)
    assert load_checkpoint(tmp_path / "c", other, other_optimizer, step=3, size=99) == (3, 70)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(optimizer.state[mine]["exp_avg"], other_optimizer.state[theirs]["exp_avg"])
    with pytest.raises(StudyError, match="is damaged; delete the directory"):
        load_checkpoint(tmp_path / "c", torch.nn.Linear(4, 2), other_optimizer, step=3)
