"""Fits that are killed and go on: the same bytes, and only from what is as it was."""

import json
import os
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damaged_states import ODD, assert_one_line, damaged_bytes
from parquet_parts import PARTS, break_part, write_part

from evenkeel import EvenkeelError, SourceError, StateError
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


def first_record(states):
    """The file's header, the first record, and what follows it."""
    header, record, rest = states.read_bytes().split(b"\n", 2)
    return header, json.loads(record), rest


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *((part, value) for part in ("key", "signature", "size", "checksum", "skipped") for value in (..., None, {})),
        ("key", ["part-0"]),
        ("signature", ["1", "2"]),
        ("signature", [1.5, 2]),
        ("size", -1),
        ("size", 1 << 70),
        ("size", float("nan")),
        ("size", "12"),
        ("checksum", 0.5),
        ("skipped", [["a"]]),
        ("skipped", "ab"),
        ("more", 1),
    ],
)
def test_a_whole_record_that_no_fit_writes_is_refused(part, value, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(folder, states, 3)
    header, record, rest = first_record(states)
    record[part] = value
    if value is ...:
        del record[part]
    content = b"\n".join([header, json.dumps(record).encode(), rest])
    states.write_bytes(content)
    with pytest.raises(StateError, match="no fit writes") as caught:
        fit_statistics(folder, resume=states)
    assert_one_line(caught.value)
    assert states.read_bytes() == content


@pytest.mark.parametrize("size", [1 << 62, 1 << 30, 10_000])
def test_a_record_that_ends_beyond_the_file_is_read_again(size, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(folder, states, 3)
    header, record, rest = first_record(states)
    states.write_bytes(b"\n".join([header, json.dumps(record | {"size": size}).encode(), rest]))
    tracemalloc.start()
    assert fit_statistics(folder, resume=states).to_bytes() == fit_statistics(folder).to_bytes()
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


@pytest.mark.parametrize("end", [1, 20, -1])
def test_a_header_that_a_kill_cut_short_is_written_again(end, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(folder, states, 3)
    whole = states.read_bytes()
    header = whole[: whole.index(b"\n") + 1]
    states.write_bytes(header[:end])
    assert fit_statistics(folder, resume=states).to_bytes() == fit_statistics(folder).to_bytes()
    assert states.read_bytes().startswith(header)


@pytest.mark.parametrize("line", [b"[" * 100_000 + b"\n", b"\0" * 500 + b"\n", b"{\n", b"\xff\n", b"x" * 100_000])
def test_lines_that_are_no_json_end_what_is_kept(line, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(folder, states, 3)
    states.write_bytes(states.read_bytes() + line)
    assert fit_statistics(folder, resume=states).to_bytes() == fit_statistics(folder).to_bytes()
    states.write_bytes(line)
    with pytest.raises(StateError, match="holds no interrupted fit"):
        fit_statistics(folder, resume=states)


def test_an_endless_line_is_not_read_whole(folder, tmp_path):
    states = tmp_path / "states"
    with states.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    tracemalloc.start()
    with pytest.raises(StateError, match="holds no interrupted fit"):
        fit_statistics(folder, resume=states)
    assert tracemalloc.get_traced_memory()[1] < 1 << 27
    tracemalloc.stop()


def test_changed_bytes_are_refused_in_one_line_or_read_again(folder, tmp_path):
    expected, states = fit_statistics(folder), tmp_path / "states"
    interrupt(folder, states, 3)
    data = states.read_bytes()
    header, record, rest = first_record(states)
    odd = [json.dumps(record | {part: value}).encode() for part in record for value in ODD]
    for content in [*(damaged_bytes(data, seed) for seed in range(200)), *(b"\n".join([header, r, rest]) for r in odd)]:
        states.write_bytes(content)
        try:
            statistics = fit_statistics(folder, resume=states)
        except EvenkeelError as error:
            assert_one_line(error)
        else:
            assert statistics.to_bytes() == expected.to_bytes()


def test_a_resume_file_that_cannot_be_written_is_named(tmp_path, table):
    write_part(tmp_path, 0, table[:10])
    with pytest.raises(SourceError, match=r"cannot keep an interrupted fit in .*: Is a directory; name a file"):
        fit_statistics(tmp_path / "part-0.parquet", resume=tmp_path)
