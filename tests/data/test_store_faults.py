"""What a store and the way to it can do wrong: fits end with the same bits, or with one line."""

import dataclasses
import io
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import Cut, Generated, Refuse, table_bytes

import evenkeel
from evenkeel import EvenkeelError, SourceError
from evenkeel.data import fit, fit_statistics

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1])}


@pytest.fixture
def url(store, folder, monkeypatch):
    """The Parquet files of `folder` in the store, read in ranges."""
    monkeypatch.setattr("evenkeel.data.sources._objects.SMALL", 0)
    return store.upload(folder, "data")


def some(share, fault, seed=0):
    """A fault of so many requests, drawn by chance, but never of many in a row."""
    chance, lock = random.Random(seed), threading.Lock()

    def decide(request):
        with lock:
            hit = chance.random() < share
        if hit:
            raise fault

    return decide


@pytest.mark.parametrize(
    "fault", [Refuse(503, "SlowDown"), Refuse(500, "InternalError"), Refuse(429, "Throttling"), Cut()], ids=str
)
def test_transient_errors_change_no_bit(fault, store, url, folder):
    with store.faults(some(0.25, fault)) as requests:
        assert fit_statistics(url, storage_options=store.options).to_bytes() == fit_statistics(folder).to_bytes()
    assert len(requests) > 5 * 4


def parts(request):
    """Whether a request asks for a part of a file."""
    return request.method == "GET" and request.path.endswith(".parquet")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (503, "SlowDown", "cannot be read: the store failed 6 times: .*AWS Error"),
        (403, "AccessDenied", "access denied: there are no credentials, or they may not do this"),
        (403, "SignatureDoesNotMatch", "the secret key is not that of the access key|access denied"),
        (403, "InvalidAccessKeyId", "the credentials are unknown or expired|access denied"),
        (301, "PermanentRedirect", "the bucket is in another region"),
        (404, "NoSuchBucket", "there is no such|there is no bucket|there is no object"),
    ],
)
@pytest.mark.parametrize("which", ["heads", "parts"])
def test_a_refusal_is_one_line(status, code, message, which, store, url):
    def refuse(request):
        if parts(request) == (which == "parts"):
            raise Refuse(status, code)

    with store.faults(refuse), pytest.raises(EvenkeelError, match=message) as caught:
        fit(url, storage_options=store.options)
    assert str(caught.value).startswith("s3://bucket/data") or "there is no object or directory" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_object_that_is_replaced_while_it_is_read_is_told(store, url):
    seen = itertools.count()
    other = table_bytes(pa.table({name: np.zeros(600) for name in "abc"}), pq.write_table)

    def replace(request):
        if parts(request) and "part-3" in request.path and next(seen) == 1:
            store.put("data/part-3.parquet", other)

    with store.faults(replace), pytest.raises(SourceError, match=r"part-3\.parquet: the object was replaced while"):
        fit(url, storage_options=store.options)


def test_parts_of_one_object_are_of_one_version(store, monkeypatch):
    monkeypatch.setattr("evenkeel.data.sources._files.PART_BYTES", 10_000)
    table = pa.table({"a": np.arange(10_000.0)})

    def put(rows):
        store.put("x.parquet", table_bytes(rows, lambda t, sink: pq.write_table(t, sink, row_group_size=2000)))

    put(table)
    seen = itertools.count()

    def replace(request):
        if request.method == "HEAD" and next(seen) == 4:  # between two parts
            store.put(
                "x.parquet", table_bytes(table.slice(1), lambda t, sink: pq.write_table(t, sink, row_group_size=2000))
            )

    with store.faults(replace), pytest.raises(SourceError, match=r"x\.parquet: the object was replaced"):
        fit("s3://bucket/x.parquet", workers=1, storage_options=store.options)


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def interrupt(url, states, store):
    def stop(progress):
        if progress.done == 3:
            raise Killed

    with pytest.raises(Killed):
        fit_statistics(url, resume=states, progress=stop, storage_options=store.options)


def test_an_interrupted_fit_goes_on_to_the_same_bits(store, url, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(url, states, store)
    with store.faults(lambda request: None) as requests:
        found = fit_statistics(url, resume=states, storage_options=store.options)
    assert found.to_bytes() == fit_statistics(folder).to_bytes()
    read = {request.path for request in requests if parts(request)}
    assert read == {f"/bucket/data/part-{number}.parquet" for number in (0, 3, 4)}  # 0 for its columns


def test_a_resumed_fit_goes_by_the_version_of_an_object_alone(store, url, folder, tmp_path, monkeypatch):
    states = tmp_path / "states"
    interrupt(url, states, store)
    kept = states.read_bytes()
    describe = "evenkeel.data.sources._listing.described"
    monkeypatch.setattr(describe, lambda file, info: dataclasses.replace(file, size=info.size, modified=1))
    found = fit_statistics(url, resume=states, storage_options=store.options)  # as if all were put there once more
    assert found.to_bytes() == fit_statistics(folder).to_bytes()
    states.write_bytes(kept)
    monkeypatch.setattr(describe, lambda file, info: file)  # as if times were equal
    store.put("data/part-1.parquet", table_bytes(pa.table({name: np.ones(290) for name in "abc"}), pq.write_table))
    with pytest.raises(SourceError, match=r"part-1\.parquet was replaced \(other version in the store\)"):
        fit_statistics(url, resume=states, storage_options=store.options)


@pytest.mark.slow
def test_the_command_killed_and_resumed_gives_the_same_file(store, url, folder, tmp_path):
    out, expected = tmp_path / "s.json", tmp_path / "t.json"
    command = [sys.executable, "-m", "evenkeel", "data", "fit", url, "--out", str(out), "--quiet", *store.typed]
    options = {
        "env": ENVIRONMENT,
        "cwd": tmp_path,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with store.faults(lambda request: time.sleep(30) if parts(request) and "part-3" in request.path else None):
        process = subprocess.Popen([*command, "--threads", "1"], **options)
        try:
            partial = tmp_path / "s.json.partial"
            deadline = time.monotonic() + 60
            while not (partial.exists() and partial.read_bytes().count(b'"version": "') >= 3):
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    assert not out.exists()
    subprocess.run([*command, "--resume"], check=True, **options)
    command[5:8] = [str(folder), "--out", str(expected)]
    subprocess.run(command[: -len(store.typed)], check=True, **options)
    assert evenkeel.data.load(out).statistics_.to_bytes() == evenkeel.data.load(expected).statistics_.to_bytes()


@pytest.mark.slow
def test_thousands_of_small_objects(store, tmp_path):
    data = table_bytes(pa.table({"a": [1.0, 2.0], "b": [3.0, 5.0]}), pq.write_table)
    for number in range(4000):  # lists of 1000 have four pages
        store.put_directly(f"many/day={number % 100:02}/{number:05}.parquet", data)

    def serve(request):  # the server takes 3 ms for what the proxy answers in one
        if request.path.endswith(".parquet"):
            raise Generated(len(data), lambda first, last: data[first:last])

    with store.faults(serve) as requests:
        found = fit_statistics("s3://bucket/many", storage_options=store.options)
    assert found.rows == 8000
    assert found.mean.tolist() == [1.5, 4.0]
    assert len(requests) < 4000 * 2.5  # a question and an answer for each, and the lists


@pytest.mark.slow
@pytest.mark.alone
def test_an_object_of_five_gigabytes(store):
    rows, columns = 5 * (1 << 30) // 32, 4
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (rows, columns)})
    start = len(header.getvalue())
    pattern = np.tile(np.array([1.0, 2.0, 3.0, 4.0]), 1 << 18).tobytes()

    def read(first, last):
        head = header.getvalue()[first:last]
        first, last = max(first - start, 0), max(last - start, 0)
        shift = first % 32
        wanted = last - first
        return head + (pattern * (1 + (wanted + shift) // len(pattern)))[shift : shift + wanted]

    def serve(request):
        if request.path.endswith("huge.npy") and request.method in ("GET", "HEAD"):
            raise Generated(start + rows * columns * 8, read)

    with store.faults(serve):
        found = fit_statistics("s3://bucket/huge.npy", workers=2, storage_options=store.options)
    assert found.rows == rows
    assert found.mean.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert found.variance().tolist() == [0.0] * 4
