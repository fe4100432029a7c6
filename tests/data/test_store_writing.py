"""Results in a store: whole under their names, or not there."""

import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import Refuse

from evenkeel import EvenkeelError, InvalidArgumentError
from evenkeel.cli import main
from evenkeel.data import fit, fit_statistics, load, save, transform_files


@pytest.fixture
def scaler(folder):
    return fit(folder)


def read(store, key):
    with store.files.open_input_file(f"bucket/{key}") as file:
        return file.readall()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "feather"])
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


@pytest.mark.parametrize("wrong", ["data", "interrupt", "store"])
def test_an_error_leaves_what_was_there(wrong, store, scaler, folder, tmp_path):
    url = store.upload(folder, "data")
    store.put("x.parquet", b"old")
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
        transform_files(scaler, source, "s3://bucket/x.parquet", progress=stop, storage_options=store.options)
    assert read(store, "x.parquet") == b"old"
    assert [key for key in store.objects() if ".tmp" in key] == []
    if wrong == "store":
        assert "cannot write s3://bucket/x.parquet: no space is left in the store" in str(caught.value)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("s3://bucket/x.npy", "says at its beginning how many rows it has"),
        ("s3://bucket/x.xyz", "the name must end in"),
        ("http://127.0.0.1:1/x.parquet", "web addresses are read, not written"),
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
    with pytest.raises(EvenkeelError, match="there is no such object"):
        load(f"s3://bucket/none.{suffix}", storage_options=store.options)


def test_the_commands_take_urls(store, folder, tmp_path, capsys):
    url, stats = store.upload(folder, "data"), tmp_path / "s.json"
    assert main(["data", "fit", url, "--out", str(stats), "--quiet", *store.typed]) == 0
    assert load(stats).statistics_.to_bytes() == fit_statistics(folder).to_bytes()
    assert main(["data", "check", url, "--stats", str(stats), "--quiet", *store.typed]) == 0
    command = ["data", "apply", url, "--stats", str(stats), "--out", "s3://bucket/scaled", "--quiet", *store.typed]
    assert main(command) == 0
    assert "written to s3://bucket/scaled" in capsys.readouterr().out
    assert main(command) == 2
    assert "exists already; replace it with --force" in capsys.readouterr().err
    assert main(["data", "fit", "s3://bucket/none", "--out", str(tmp_path / "t.json"), *store.typed]) == 2
    assert "there is no object or directory s3://bucket/none" in capsys.readouterr().err
    assert main(["data", "fit", url, "--out", str(tmp_path / "t.json"), "--storage-option", "region"]) == 2
    assert "--storage-option: expected name=value" in capsys.readouterr().err


def test_a_server_of_the_tests_ends():
    from object_store import ObjectStore

    other = ObjectStore()
    other.put("x.csv", b"a\n1\n3\n")
    assert fit("s3://bucket/x.csv", storage_options=other.options).mean_.tolist() == [2.0]
    other.stop()
    for address in (other.proxy.server_address, other.server.get_host_and_port()):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(address, timeout=1)
