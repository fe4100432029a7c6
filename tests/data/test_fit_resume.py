"""Fits that are killed and go on: the same bytes, and only from what is as it was."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_parts import PARTS, break_part, write_part

from evenkeel import SourceError, StateError
from evenkeel.data import fit_statistics
from evenkeel.data.sources import open_source


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def interrupt(folder, states, after):
    def stop(progress):
        if progress.done == after:
            raise Killed

    with pytest.raises(Killed):
        fit_statistics(folder, resume=states, progress=stop)


@pytest.mark.parametrize("after", [1, 3, PARTS])
@pytest.mark.parametrize("torn", [0, 1, 100])
def test_an_interrupted_fit_continues_to_the_same_bytes(after, torn, folder, tmp_path, monkeypatch):
    expected = fit_statistics(folder).to_bytes()
    states = tmp_path / "states"
    interrupt(folder, states, after)
    whole = states.read_bytes()
    states.write_bytes(whole[: len(whole) - torn])  # a kill in the middle of a write
    read = []
    original = type(open_source(folder).fragments[0]).add_to

    def add_to(self, statistics, skipped):
        read.append(self.key)
        original(self, statistics, skipped)

    monkeypatch.setattr("evenkeel.data.sources._files.FileFragment.add_to", add_to)
    assert fit_statistics(folder, resume=states).to_bytes() == expected
    assert len(read) == PARTS - after + (torn > 0)
    assert fit_statistics(folder, resume=states).to_bytes() == expected
    assert len(read) == PARTS - after + (torn > 0)


def test_files_added_since_are_read_too(folder, tmp_path, table):
    states = tmp_path / "states"
    fit_statistics(folder, resume=states)
    write_part(folder, 9, table)
    assert fit_statistics(folder, resume=states).to_bytes() == fit_statistics(folder).to_bytes()


def test_skipped_files_are_tried_again(folder, tmp_path):
    good = (folder / "part-2.parquet").read_bytes()
    path = break_part(folder, 2)
    states = tmp_path / "states"
    with pytest.warns(UserWarning, match="skipped 1"):
        fit_statistics(folder, on_error="skip", resume=states)
    path.write_bytes(good)
    assert fit_statistics(folder, resume=states).to_bytes() == fit_statistics(folder).to_bytes()


def rewrite(folder):
    pq.write_table(pa.table({"a": [1.0], "b": [1.0], "c": [1.0]}), folder / "part-1.parquet")


def touch(folder):
    os.utime(folder / "part-1.parquet", ns=(1, 1))


def remove(folder):
    (folder / "part-1.parquet").unlink()


def rename_columns(folder):
    pq.write_table(pa.table({"x": [1.0]}), folder / "part-0.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewrite, r"part-1\.parquet was written again"),
        (touch, r"part-1\.parquet was written again"),
        (remove, r"part-1\.parquet is gone"),
        (rename_columns, "begun with columns"),
    ],
)
def test_a_changed_source_is_not_resumed(change, message, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(folder, states, 3)
    change(folder)
    with pytest.raises(SourceError, match=message):
        fit_statistics(folder, resume=states)


@pytest.mark.parametrize("options", [{"columns": ["a"]}, {"quantiles": True}, {"nan_policy": "raise"}])
def test_other_options_are_not_resumed(options, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(folder, states, 3)
    with pytest.raises(SourceError, match=f"begun with {next(iter(options))}"):
        fit_statistics(folder, resume=states, **options)


@pytest.mark.parametrize("content", [b"hello\n", b'{"format": "other"}\n', b"\x00\xff" * 50])
def test_a_foreign_file_is_not_resumed_nor_touched(content, folder, tmp_path):
    states = tmp_path / "states"
    states.write_bytes(content)
    with pytest.raises(StateError, match="holds no interrupted fit"):
        fit_statistics(folder, resume=states)
    assert states.read_bytes() == content
