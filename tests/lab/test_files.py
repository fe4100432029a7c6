"""The files of a study: replaced whole or not at all, and readable by any JSON parser."""

import errno
import math
import os

import pytest

from evenkeel._files import replace_file
from evenkeel.lab import runner


def test_a_failed_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    with runner.Records(tmp_path / "r", keep=0) as file:
        file.write("train", loss=math.nan, nested=[{"x": math.inf}, (1.5, None)])
    assert list(runner.read_records(tmp_path / "r")) == [
        {"kind": "train", "loss": None, "nested": [{"x": None}, [1.5, None]]}
    ]
