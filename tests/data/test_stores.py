"""Data in stores: the bits of local files, only the bytes that are needed, and one line where something is wrong."""

import os
import pickle
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sources import FILES
from object_store import table_bytes
from PIL import Image

import evenkeel
from evenkeel import EvenkeelError, InvalidArgumentError, InvalidInputError, SourceError
from evenkeel._options.urls import parse_storage_options
from evenkeel.data import ImageNormalize, fit, fit_statistics, load, save
from evenkeel.data.sources import list_files, locate, numeric_columns, open_source


def bits(source, **options):
    return fit_statistics(source, **options).to_bytes()


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_bits_of_the_local_file(name, small, store, gappy, tmp_path, monkeypatch):
    FILES[name](tmp_path / name, gappy)
    if not small:  # as ranges, some of them ahead
        monkeypatch.setattr("evenkeel.data.sources._objects.SMALL", 0)
        monkeypatch.setattr("evenkeel.data.sources._objects.BLOCK", 1000)
    store.put(name, (tmp_path / name).read_bytes())
    assert bits(f"s3://bucket/{name}", storage_options=store.options) == bits(tmp_path / name)
    quantiles = fit_statistics(f"s3://bucket/{name}", quantiles=True, storage_options=store.options)
    np.testing.assert_array_equal(quantiles.mean, fit_statistics(tmp_path / name, quantiles=True).mean)


def test_a_member_of_an_archive_is_named_in_the_url(store, gappy, tmp_path):
    np.savez(tmp_path / "x.npz", first=gappy, second=gappy * 2)
    store.put("x.npz", (tmp_path / "x.npz").read_bytes())
    second = f"{tmp_path}/x.npz::second"
    assert bits("s3://bucket/x.npz::second", storage_options=store.options) == bits(second)
    with pytest.raises(SourceError, match=r"choose one as s3://bucket/x\.npz::NAME"):
        fit("s3://bucket/x.npz", storage_options=store.options)


def test_directories_patterns_and_lists(store, folder):
    url = store.upload(folder, "data")
    options = {"storage_options": store.options}
    expected = bits(folder)
    for source in (url, f"{url}/", f"{url}/*.parquet", "s3://bucket/*/part-*.parquet", "s3://bucket/**/part-*.parquet"):
        assert bits(source, **options) == expected
    names = [f"{url}/part-{number}.parquet" for number in (3, 1)]
    assert bits(names, **options) == bits([folder / Path(name).name for name in names])
    assert bits([str(folder / "part-0.parquet"), folder / "part-1.parquet"]) == bits(f"{folder}/part-[01]*")
    assert fit(url, **options).contract_.source["description"] == url
    assert numeric_columns(locate(url, store.options)) == ["a", "b", "c"]


def test_folders_named_key_value_give_columns_and_hidden_objects_do_not_count(store, tmp_path):
    for number, year in enumerate([2023, 2024] * 40):
        path = tmp_path / f"year={year}" / f"part={number}" / f"{number:02}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"a": [float(number)]}), path)
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "year=2023" / ".hidden.parquet").write_text("nothing")
    url = store.upload(tmp_path, "data")
    options = {"columns": ["a", "year", "part"]}
    assert bits(url, storage_options=store.options, **options) == bits(tmp_path, **options)
    files, root, *_ = list_files(locate(f"{url}/year=2024/*/*.parquet", store.options))
    assert len(files) == 40
    assert str(root) == f"{url}/year=2024"


def test_only_the_bytes_that_are_needed_travel(store):
    rng = np.random.default_rng(0)
    table = pa.table({name: rng.normal(size=200_000) for name in "abcdefgh"})
    data = table_bytes(table, lambda t, sink: pq.write_table(t, sink, row_group_size=50_000, compression="none"))
    store.put("x.parquet", data)
    column = sum(
        pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(i).column(3).total_compressed_size for i in range(4)
    )
    with store.watched() as requests:
        fit_statistics("s3://bucket/x.parquet", columns=["d"], storage_options=store.options)
    travelled = sum(request.size for request in requests if request.method == "GET" and request.range)
    assert column <= travelled <= column + 2 * (1 << 16)  # and the file's end, for its columns and for its places
    feather = table_bytes(
        table, lambda t, sink: pa.feather.write_feather(t, sink, chunksize=50_000, compression="uncompressed")
    )
    store.put("x.feather", feather)
    with store.watched() as requests:
        found = fit_statistics("s3://bucket/x.feather", columns=["d"], storage_options=store.options)
    assert found.rows == 200_000
    assert sum(request.size for request in requests if request.method == "GET") < len(feather) // 4


def test_requests_are_under_way_while_rows_are_read(store):
    table = pa.table({name: np.random.default_rng(0).normal(size=1_000_000) for name in "ab"})
    store.put("x.parquet", table_bytes(table, lambda t, sink: pq.write_table(t, sink, compression="none")))
    most, now, lock = [0], [0], threading.Lock()

    def count(request):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1

    with store.faults(count) as requests:
        fit_statistics("s3://bucket/x.parquet", workers=1, storage_options=store.options)
    assert 2 <= most[0] <= 5
    assert max(request.size for request in requests) <= 10 << 20  # so what waits is bounded
    chunks = [request for request in requests if request.size > 1 << 20]
    assert len(chunks) == 2  # a column of a row group each, which need not be put together


def test_more_threads_wait_for_small_objects_than_for_large_ones(store, folder, tmp_path):
    np.save(tmp_path / "large.npy", np.zeros((3 << 17, 1)))
    store.put("large.npy", (tmp_path / "large.npy").read_bytes())
    small = open_source(store.upload(folder, "data"), storage_options=store.options).waiting
    large = open_source("s3://bucket/large.npy", storage_options=store.options).waiting
    assert (open_source(folder).waiting, large, small) == (1, 2, 8)


def test_a_large_row_group_is_read_column_beside_column(store, tmp_path, monkeypatch):
    monkeypatch.setattr("evenkeel.data.sources._parquet.PIECE_ROWS", 20_000)
    monkeypatch.setattr("evenkeel.data.sources._parquet.TURN", 1 << 15)
    monkeypatch.setattr("evenkeel.data.sources._objects.SMALL", 0)
    table = pa.table({name: np.random.default_rng(0).normal(size=100_000) for name in "abc"})
    data = table_bytes(table, lambda t, sink: pq.write_table(t, sink, compression="none"))
    store.put("x.parquet", data)
    with store.watched() as requests:
        found = bits("s3://bucket/x.parquet", storage_options=store.options)
    (tmp_path / "x.parquet").write_bytes(data)
    assert found == bits(tmp_path / "x.parquet")
    assert sum(request.size for request in requests if request.method == "GET") < 1.1 * len(data) + (1 << 16)


def test_images_and_their_constants(store, tmp_path):
    rng = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(rng.integers(0, 256, (8, 6, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    url = store.upload(tmp_path, "pictures")
    assert bits(url, storage_options=store.options) == bits(tmp_path)
    found = ImageNormalize.fit(url, definition="pooled", storage_options=store.options)
    expected = ImageNormalize.fit(str(tmp_path), definition="pooled")
    assert (found.mean, found.std) == (expected.mean, expected.std)


def test_what_is_wrong_with_an_image_is_told_of_that_image(store, tmp_path):
    for number in range(3):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{number}.png")
    Image.new("I;16", (5, 6)).save(tmp_path / "3.tif")
    (tmp_path / "4.png").touch()
    url = store.upload(tmp_path, "img")
    options = {"storage_options": store.options}
    for source, more in ((str(tmp_path), {}), (url, options)):
        with pytest.raises(SourceError, match=rf"^{source}/3\.tif: holds I;16 values"):
            fit(source, **more)
        with pytest.raises(SourceError, match=rf"^{source}/4\.png: cannot be read: the file is empty$"):
            fit(f"{source}/4.png", **more)
        with pytest.raises(InvalidInputError, match=r"0\.png is not a folder of images; give the directory that"):
            ImageNormalize.fit(f"{source}/0.png", definition="pooled", **more)


def test_any_filesystem_of_fsspec(folder):
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe(f"/shelf/{path.name}", path.read_bytes())
    try:
        assert bits("memory://shelf") == bits(folder)
        assert bits("memory://shelf/*.parquet") == bits(folder)
    finally:
        memory.rm("/shelf", recursive=True)


def test_a_store_without_buckets_is_named_whole():
    memory = fsspec.filesystem("memory")
    memory.pipe({"/x.csv": b"a\n1\n", "/y.parquet": b""})
    try:
        with pytest.raises(SourceError, match=r"give one kind, such as memory://\*\.csv$"):
            fit("memory://")
        assert fit("memory://*.csv").mean_.tolist() == [1.0]
        assert [str(file) for file in list_files(locate("memory://*.csv")).files] == ["memory://x.csv"]
    finally:
        memory.rm(["/x.csv", "/y.parquet"])


def test_a_file_url_is_a_path(folder):
    assert bits(folder.as_uri()) == bits(folder)


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        ("s3://bucket/none.csv", {}, "there is no object or directory s3://bucket/none.csv"),
        ("s3://nobody", {}, "s3://nobody: there is no bucket 'nobody'"),
        ("s3://nobody/x.csv", {}, "s3://nobody/x.csv: there is no bucket 'nobody'; check its name"),
        ("s3://bucket/none-*.csv", {}, "no object matches s3://bucket/none-"),
        ("s3://bucket/x.xyz", {}, "x.xyz: the name tells no format"),
        ("s3://bucket/x.csv", {"endpoint_override": "http://127.0.0.1:1"}, "the store cannot be reached"),
        ("s3://bucket/x.csv", {"colour": "red"}, "s3:// does not take these: colour; it takes access_key, .*region, "),
        ("s3://bucket/x.csv", {"anonymous": "maybe"}, "storage_options: anonymous must be true or false"),
        ("s3://bucket/x.csv", {"load_frequency": "often"}, "storage_options: load_frequency must be a whole number"),
        ("s3://bucket/my%20file.csv", {}, r"no object or directory .*; names are .*\(s3://bucket/my file\.csv\?\)"),
        (
            "s3://bucket/x.csv",
            {"endpoint_override": "http://127.0.0.1:99999"},
            "the endpoint is no URL: Port out of range",
        ),
        ("s3://bucket/a//x.csv", {}, "s3://bucket/a//x.csv: a name between two slashes is empty"),
        ("s3://bucket/odd", {}, "s3://bucket/odd//x.csv: a name between two slashes is empty"),
        ("simplecache::s3://bucket/x.csv", {}, "simplecache::s3://… chains filesystems; give the URL of the file"),
        ("zip://x.csv::s3://key:hidden@bucket/x.zip", {}, "zip://… chains filesystems"),
        ("file://there/x.csv", {}, "file://there/x.csv names the machine 'there'; .* is file:///path"),
        ("duckdb:///?query=SELECT 1.5 AS a", {}, "not for duckdb:///"),
        ("foo://bucket/x.csv", {}, "no filesystem is known for foo:// URLs; there are s3"),
        ("s3://key:hidden@bucket/x.csv", {}, "must hold no user and no password; give those in storage_options"),
        ("s3:/bucket/x.csv", {}, "was a URL that a Path took a slash from"),
        ("x.csv", {}, "storage_options are for URLs such as"),
    ],
    ids=lambda value: value if isinstance(value, str) and "://" in value else "",
)
def test_what_is_wrong_is_one_line(source, changes, message, store):
    store.put("x.xyz", b"1")
    store.put("x.csv", b"a\n1\n")
    store.put_directly("odd//x.csv", b"a\n1\n")
    options = store.options | changes if not source.startswith("foo") else {}
    with pytest.raises(EvenkeelError, match=message) as caught:
        fit(source, storage_options=options)
    assert "\n" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_options_are_for_urls_and_secrets_are_not_shown(store):
    with pytest.raises(InvalidArgumentError, match="not for ndarray"):
        fit(np.eye(2), storage_options={"region": "x"})
    with pytest.raises(InvalidArgumentError, match="not for ndarray"):
        ImageNormalize.fit(np.zeros((2, 2, 3)), definition="pooled", storage_options={"region": "x"})
    for wrong in ("region=x", ["region=x"], {1: "x"}, 5):
        for call in (fit, load, partial(ImageNormalize.fit, definition="pooled"), partial(save, fit(np.eye(2)))):
            with pytest.raises(InvalidArgumentError, match=r"^storage_options must be a dict such as .* but got \w+$"):
                call("s3://bucket/x.json", storage_options=wrong)
    assert "test" not in repr(locate("s3://bucket/x", store.options))


@pytest.mark.parametrize("word", ["false", "No", "0", "FALSE", False])
def test_words_are_truth_values(word, store):
    store.put("x.csv", b"a\n1\n3\n")
    assert fit("s3://bucket/x.csv", storage_options=store.options | {"anonymous": word}).mean_ == [2.0]
    keys = ("access_key", "secret_key")
    options = {name: value for name, value in store.options.items() if name not in keys} | {"anonymous": "Yes"}
    assert fit("s3://bucket/x.csv", storage_options=options).mean_ == [2.0]


def test_numbers_may_be_typed(store):
    store.put("x.csv", b"a\n1\n3\n")
    assert fit("s3://bucket/x.csv", storage_options=store.options | {"load_frequency": "600"}).mean_ == [2.0]


def test_options_are_typed_once_and_for_stores():
    typed = parse_storage_options(["anonymous=False", "request_timeout=5"], "s3://bucket/x")
    assert typed == {"anonymous": False, "request_timeout": 5.0}
    with pytest.raises(InvalidArgumentError, match="--storage-option: region is given twice"):
        parse_storage_options(["region=a", "region=b"], "s3://bucket/x")
    with pytest.raises(InvalidArgumentError, match="is for URLs such as"):
        parse_storage_options(["region=a"], "duckdb:///?query=SELECT 1", "out.json")


def test_an_address_without_tls_is_given_up_at_once(store):
    secure = {"endpoint_override": store.options["endpoint_override"].replace("http", "https"), "scheme": "https"}
    with (
        store.watched(),
        pytest.raises(SourceError, match=r"does not speak TLS at this port; write http:// for") as told,
    ):
        fit("s3://bucket/x.csv", storage_options=store.options | secure)
    assert "times" not in str(told.value)


MEASURED = """
import sys
from evenkeel.data import fit_statistics

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) // 1024

options = dict(word.split("=", 1) for word in sys.argv[1:])
fit_statistics("s3://bucket/big/0.parquet", columns=["c0"], workers=1, storage_options=options)
before = peak()
fit_statistics("s3://bucket/big", workers=2, storage_options=options)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.alone
def test_memory_is_bounded_whatever_the_size(store):
    columns = {
        f"c{index}": np.random.default_rng(index).normal(size=1_000_000).astype(np.float32) for index in range(8)
    }
    data = table_bytes(pa.table(columns), lambda t, sink: pq.write_table(t, sink, compression="none"))
    for number in range(6):  # 190 MB
        store.put(f"big/{number}.parquet", data)
    command = [sys.executable, "-c", MEASURED, *store.typed[1::2]]
    environment = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(result.stdout) < 3 * (32 + 8)


def test_a_store_goes_to_another_process_without_its_connection(store):
    place = locate("s3://bucket/data", store.options)
    assert place.store.filesystem is place.store.filesystem
    sent = pickle.loads(pickle.dumps(place))
    assert sent == place
    assert sent.store == place.store
    assert "filesystem" not in vars(sent.store)
