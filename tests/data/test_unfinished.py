"""Full disks, and what a fit that fails leaves: states where something is to go on from, and the way."""

import contextlib
import resource

import numpy as np
import pyarrow.parquet as pq
import pytest
from parquet_parts import PARTS

from evenkeel import EvenkeelError
from evenkeel.cli import main
from evenkeel.data import fit, load, transform_files

FULL = "File too large; choose a directory that exists, is writable and has free space"


@contextlib.contextmanager
def disk_of(size):
    """Let no file grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["o.csv", "o.parquet", "o.feather", "o.npy", "o"])
def test_a_full_disk_is_told_of_the_output(name, folder, tmp_path):
    (tmp_path / "out").mkdir()
    source = folder if name == "o" else folder / "part-3.parquet"
    with disk_of(5000), pytest.raises(EvenkeelError) as caught:
        transform_files(fit(folder), source, tmp_path / "out" / name)
    assert str(caught.value) == f"cannot write {tmp_path / 'out' / name}: {FULL}"
    assert list((tmp_path / "out").iterdir()) == []


def fit_command(source, tmp_path, capsys, *more):
    """The code, the error, and the states that are left."""
    code = main(["data", "fit", str(source), "--out", str(tmp_path / "s.json"), "--quiet", *more])
    states = tmp_path / "s.json.partial"
    return code, capsys.readouterr().err, states.read_bytes().count(b'"key"') if states.exists() else None


def test_a_disk_that_takes_no_state(folder, tmp_path, capsys):
    with disk_of(50):
        code, error, states = fit_command(folder, tmp_path, capsys)
    assert (code, states) == (2, None)
    assert f"cannot keep an interrupted fit in {tmp_path / 's.json'}: File too large; name a file that can" in error


def test_a_disk_that_is_full_after_some_states(folder, tmp_path, capsys):
    with disk_of(2500):
        code, error, states = fit_command(folder, tmp_path, capsys)
    assert code == 2
    assert 0 < states < PARTS
    assert "s.json.partial: File too large; what it holds is kept for resume (--resume)" in error
    assert fit_command(folder, tmp_path, capsys, "--resume")[::2] == (0, None)
    assert load(tmp_path / "s.json").statistics_.to_bytes() == fit(folder).statistics_.to_bytes()


def test_a_disk_that_takes_no_result(folder, tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("evenkeel.data._storage.write_bytes", refuse)
        code, error, states = fit_command(folder, tmp_path, capsys)
    assert (code, states) == (2, PARTS)
    kept = tmp_path / "s.json.partial"
    assert f"no room; what was read is kept in {kept}: the same command with --resume continues" in error
    assert fit_command(folder, tmp_path, capsys, "--resume")[::2] == (0, None)


def refuse(*_):
    raise EvenkeelError("no room")


@pytest.mark.parametrize(
    ("part", "content", "states"),
    [(0, b"", None), (3, b"", 3), (3, b"PAR1" * 9, 3), (PARTS - 1, np.inf, None)],
    ids=["first", "empty", "broken", "refused when all is read"],
)
def test_states_are_kept_and_named_where_something_is_left_to_read(part, content, states, folder, tmp_path, capsys):
    path = folder / f"part-{part}.parquet"
    whole = path.read_bytes()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        table = pq.read_table(path)
        pq.write_table(table.set_column(0, "a", [np.full(len(table), content)]), path)
    code, error, left = fit_command(folder, tmp_path, capsys)
    assert (code, left) == (2, states)
    assert (f"is kept in {tmp_path}/s.json.partial: the same command with --resume continues" in error) == bool(states)
    path.write_bytes(whole)
    assert fit_command(folder, tmp_path, capsys, "--resume")[::2] == (0, None)
    assert load(tmp_path / "s.json").statistics_.to_bytes() == fit(folder).statistics_.to_bytes()


def test_no_rows_leave_nothing(folder, tmp_path, capsys):
    for path in folder.iterdir():
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    code, error, states = fit_command(folder, tmp_path, capsys)
    assert (code, states) == (2, None)
    assert error.endswith("has no rows; there is nothing to fit\n")
