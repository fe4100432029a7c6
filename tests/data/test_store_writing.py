"""Results in a store: whole under their names, or not there."""

import errno
import socket
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import AmazonStore, Refuse

from evenkeel import EvenkeelError, InvalidArgumentError
from evenkeel.cli import main
from evenkeel.data import fit, fit_statistics, load, save, transform_files
from evenkeel.data.sources._numpy import NUMPY


@pytest.fixture
def scaler(folder):
    return fit(folder)


def read(store, key):
    with store.files.open_input_file(f"bucket/{key}") as file:
        return file.readall()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "feather", "npy"])
def test_a_file_is_transformed_into_the_store_and_out_of_it(suffix, store, scaler, folder, tmp_path):
    url = store.upload(folder, "data")
    expected = transform_files(scaler, folder / "part-3.parquet", tmp_path / f"x.{suffix}")
    written = transform_files(
        scaler, f"{url}/part-3.parquet", f"s3://bucket/out/x.{suffix}", storage_options=store.options
    )
    assert written == f"s3://bucket/out/x.{suffix}"
    assert read(store, f"out/x.{suffix}") == expected.read_bytes()
    assert [key for key in store.objects() if ".tmp" in key] == []
    local = transform_files(scaler, f"{url}/part-3.parquet", tmp_path / f"y.{suffix}", storage_options=store.options)
    assert local.read_bytes() == expected.read_bytes()


def test_a_directory_becomes_a_directory(store, scaler, folder):
    url = store.upload(folder, "data")
    transform_files(scaler, url, "s3://bucket/scaled", storage_options=store.options)
    assert [key for key in store.objects() if not key.startswith("data/")] == [
        f"scaled/part-{number}.parquet" for number in range(5)
    ]
    found = fit_statistics("s3://bucket/scaled", storage_options=store.options)
    np.testing.assert_allclose(found.mean, 0, atol=1e-7)
    with pytest.raises(InvalidArgumentError, match="exists already"):
        transform_files(scaler, url, "s3://bucket/scaled", storage_options=store.options)


def test_nothing_appears_before_all_of_it_is_written(store, scaler, folder):
    url = store.upload(folder, "data")
    seen = []

    def look(done, total, rows):
        seen.append([key for key in store.objects() if not key.startswith(("data/", ".scaled.tmp/"))])

    transform_files(scaler, url, "s3://bucket/scaled", progress=look, storage_options=store.options)
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("suffix", ["parquet", "npy"])
@pytest.mark.parametrize("wrong", ["data", "interrupt", "store"])
def test_an_error_leaves_what_was_there(wrong, suffix, store, scaler, folder, tmp_path, monkeypatch):
    temporary, target = tmp_path / "temporary", f"s3://bucket/x.{suffix}"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    url = store.upload(folder, "data")
    store.put(f"x.{suffix}", b"old")
    bad = pa.table({"a": [1.0, float("inf")], "b": [1.0, 1.0], "c": [1.0, 1.0]})
    pq.write_table(bad, tmp_path / "bad.parquet")
    source = tmp_path / "bad.parquet" if wrong == "data" else f"{url}/part-3.parquet"

    def stop(*_):
        if wrong == "interrupt":
            raise KeyboardInterrupt

    def refuse(request):
        if wrong == "store" and request.method in ("PUT", "POST"):
            raise Refuse(507, "InsufficientStorage")

    with store.faults(refuse), pytest.raises((EvenkeelError, KeyboardInterrupt)) as caught:
        transform_files(scaler, source, target, progress=stop, storage_options=store.options)
    assert read(store, f"x.{suffix}") == b"old"
    assert list(temporary.iterdir()) == []
    assert [key for key in store.objects() if ".tmp" in key] == []
    if wrong == "store":
        assert f"cannot write {target}: no space is left in the store" in str(caught.value)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("s3://bucket/x.xyz", "the name must end in"),
        ("http://127.0.0.1:1/x.parquet", "web addresses are read, not written"),
        ("http://127.0.0.1:1/x.npy", "web addresses are read, not written"),
    ],
)
def test_what_a_store_cannot_hold(out, message, store, scaler, folder):
    options = store.options if out.startswith("s3") else None
    with pytest.raises(InvalidArgumentError, match=message):
        transform_files(scaler, folder / "part-3.parquet", out, storage_options=options)
    assert store.objects() == []


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_statistics_are_saved_in_the_store(suffix, store, scaler):
    url = f"s3://bucket/stats.{suffix}"
    assert save(scaler, url, storage_options=store.options) == url
    found = load(url, storage_options=store.options)
    assert found.statistics_.to_bytes() == scaler.statistics_.to_bytes()
    with pytest.raises(EvenkeelError, match="there is no object or directory"):
        load(f"s3://bucket/none.{suffix}", storage_options=store.options)


def test_the_commands_take_urls(store, folder, tmp_path, capsys):
    url, stats = store.upload(folder, "data"), tmp_path / "s.json"
    assert main(["data", "fit", url, "--out", str(stats), "--quiet", *store.typed]) == 0
    assert load(stats).statistics_.to_bytes() == fit_statistics(folder).to_bytes()
    assert main(["data", "check", url, "--stats", str(stats), "--quiet", *store.typed]) == 0
    command = ["data", "apply", url, "--stats", str(stats), "--out", "s3://bucket/scaled", "--quiet", *store.typed]
    assert main(command) == 0
    assert "written to s3://bucket/scaled" in capsys.readouterr().out
    for out, extra in (("s3://bucket/scaled", []), ("s3://bucket/scaled/", []), ("s3://bucket/scaled", ["--force"])):
        assert main([word if word != "s3://bucket/scaled" else out for word in command] + extra) == 2
        assert f"--out: {out} exists already, as a directory; name another" in capsys.readouterr().err
    assert main(["data", "fit", "s3://bucket/none", "--out", str(tmp_path / "t.json"), *store.typed]) == 2
    assert "there is no object or directory s3://bucket/none" in capsys.readouterr().err
    assert main(["data", "fit", url, "--out", str(tmp_path / "t.json"), "--storage-option", "region"]) == 2
    assert "--storage-option: expected name=value" in capsys.readouterr().err


def test_a_full_disk_is_told_of_this_machine(store, scaler, folder, monkeypatch):
    def refuse(writer, batch):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(NUMPY.writer, "write", refuse)
    with pytest.raises(EvenkeelError, match=r"cannot keep s3://bucket/.* until it is whole: No space left on device"):
        transform_files(scaler, folder / "part-3.parquet", "s3://bucket/x.npy", storage_options=store.options)
    assert store.objects() == []


def test_the_commands_keep_statistics_in_the_store(store, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, stats = store.upload(folder, "data"), "s3://bucket/stats.safetensors"
    command = ["data", "fit", str(folder), "--out", stats, "--quiet", *store.typed]
    assert main(command) == 0
    assert f"written to {stats}" in capsys.readouterr().out
    assert load(stats, storage_options=store.options).statistics_.to_bytes() == fit_statistics(folder).to_bytes()
    assert main(command) == 2
    assert f"--out: {stats} exists already; replace it with --force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    assert main(["data", "show", stats, *store.typed]) == 0
    assert main(["data", "check", str(folder), "--stats", stats, "--quiet", *store.typed]) == 0
    assert f"are like those of {stats}" in capsys.readouterr().out
    local = tmp_path / "scaled.parquet"
    applied = ["data", "apply", str(folder / "part-3.parquet"), "--stats", stats, "--out", str(local), "--quiet"]
    assert main([*applied, *store.typed]) == 0
    assert main(["data", "apply", url, "--stats", stats, "--out", "s3://bucket/scaled", "--quiet", *store.typed]) == 0
    assert read(store, "scaled/part-3.parquet") == local.read_bytes()
    save(load(stats, storage_options=store.options), tmp_path / "mine.json")
    assert main(["data", "merge", stats, "mine.json", "--out", "s3://bucket/both.json", *store.typed]) == 0
    both = load("s3://bucket/both.json", storage_options=store.options)
    assert both.statistics_.rows == 2 * fit_statistics(folder).rows
    assert main(["data", "show", "s3://bucket/none.json", *store.typed]) == 2
    assert "there is no object or directory" in capsys.readouterr().err
    assert list(tmp_path.glob("*.partial")) == []


def test_an_interrupted_fit_into_the_store_continues(store, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["data", "fit", str(folder), "--out", "s3://bucket/stats.json", "--quiet", *store.typed]
    with monkeypatch.context() as patch:
        patch.setattr("evenkeel.cli.data_progress.Watcher.fragment_done", interrupt)
        assert main(command) == 130
    assert "the same command with --resume continues" in capsys.readouterr().err
    assert len(list(tmp_path.glob("stats.json.*.partial"))) == 1
    assert store.objects() == []
    other = ["data", "fit", str(folder), "--columns", "a", "--out", "s3://bucket/other/stats.json", "--quiet"]
    assert main([*other, *store.typed, "--resume"]) == 0  # the states are not those of another object
    assert main([*command, "--resume"]) == 0
    assert store.objects() == ["other/stats.json", "stats.json"]
    assert list(tmp_path.glob("*.partial")) == []


@pytest.mark.parametrize("force", [True, False])
def test_a_bucket_that_is_not_there_is_told_before_the_work(force, store, folder, capsys, monkeypatch):
    monkeypatch.setattr("evenkeel.data.fit", interrupt)
    command = ["data", "fit", str(folder), "--out", "s3://nobody/stats.json", "--quiet", *store.typed]
    assert main([*command, "--force"] if force else command) == 2
    assert "cannot write s3://nobody/stats.json: there is no such bucket; check its name" in capsys.readouterr().err


def test_who_may_not_ask_for_the_bucket_may_write(store, folder):
    def refuse(request):
        if request.method == "HEAD" and request.path.strip("/") == "bucket":
            raise Refuse(403, "AccessDenied")

    with store.faults(refuse) as requests:
        assert (
            main(["data", "fit", str(folder), "--out", "s3://bucket/s.json", "--force", "--quiet", *store.typed]) == 0
        )
    assert any(request.path.strip("/") == "bucket" for request in requests)
    assert store.objects() == ["s.json"]


def test_a_result_that_the_store_does_not_take_is_kept(store, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["data", "fit", str(folder), "--out", "s3://bucket/s.json", "--quiet", *store.typed]

    def refuse(request):
        if request.method in ("PUT", "POST"):
            raise Refuse(507, "InsufficientStorage")

    with store.faults(refuse):
        assert main(command) == 2
    error = capsys.readouterr().err
    assert "no space is left in the store" in error
    (states,) = tmp_path.glob("s.json.*.partial")
    assert f"what was read is kept in {states.name}: the same command with --resume continues" in error
    monkeypatch.setattr("evenkeel.data.sources._files.FileFragment.add_to", interrupt)  # nothing is read again
    assert main([*command, "--resume"]) == 0
    assert not states.exists()


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_a_server_of_the_tests_ends():
    other = AmazonStore()
    other.put("x.csv", b"a\n1\n3\n")
    assert fit("s3://bucket/x.csv", storage_options=other.options).mean_.tolist() == [2.0]
    other.stop()
    for address in (other.proxy.server_address, other.address):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(address, timeout=1)
