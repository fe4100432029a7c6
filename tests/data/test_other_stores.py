"""Google's and Azure's stores and Hadoop: what S3 gives, they give too, or one line says why not."""

import http.server
import itertools
import json
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sources import FILES
from object_store import AzureStore, Cut, GoogleStore, Refuse, table_bytes

from evenkeel import EvenkeelError, SourceError
from evenkeel.cli import main
from evenkeel.data import fit, fit_statistics, load, save, transform_files
from evenkeel.data.sources._transfers import explained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running():
    stores = {store.scheme: store for store in (GoogleStore(), AzureStore())}
    yield stores
    for store in stores.values():
        store.stop()


@pytest.fixture
def azure(running, short_pauses):
    """Azure's store behind a proxy, for faults."""
    yield running["abfs"]
    running["abfs"].clear()


@pytest.fixture(params=["gs", "abfs"])
def cloud(request, running, short_pauses):
    yield running[request.param]
    running[request.param].clear()


@pytest.fixture
def ranges(monkeypatch):
    """Objects are read in ranges, however small."""
    monkeypatch.setattr("evenkeel.data.sources._objects.SMALL", 0)
    monkeypatch.setattr("evenkeel.data.sources._objects.BLOCK", 1000)


def bits(source, **options):
    return fit_statistics(source, **options).to_bytes()


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.npy", "x.csv.gz"])
def test_formats_give_the_bits_of_the_local_file(name, cloud, ranges, gappy, tmp_path):
    FILES[name](tmp_path / name, gappy)
    cloud.put(name, (tmp_path / name).read_bytes())
    assert bits(f"{cloud.scheme}://bucket/{name}", storage_options=cloud.options) == bits(tmp_path / name)


def test_directories_patterns_and_lists(cloud, folder):
    url, options = cloud.upload(folder, "data"), {"storage_options": cloud.options}
    bucket = f"{cloud.scheme}://bucket"
    patterns = (f"{url}/*.parquet", f"{bucket}/*/part-*.parquet", f"{bucket}/**/part-[0-9].parquet", f"{bucket}/**")
    for source in (url, f"{url}/", *patterns):
        assert bits(source, **options) == bits(folder)
    names = [f"{url}/part-{number}.parquet" for number in (3, 1)]
    assert bits(names, **options) == bits([folder / Path(name).name for name in names])


@pytest.mark.parametrize("folders", [2, 80])
def test_folders_named_key_value_give_columns(folders, cloud, tmp_path):
    for number in range(folders):
        path = tmp_path / f"year={2000 + number}" / "month=1" / f"{number:02}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"a": [float(number)]}), path)
    (tmp_path / "_SUCCESS").write_text("")
    url, options = cloud.upload(tmp_path, "data"), {"columns": ["a", "year", "month"]}
    assert bits(url, storage_options=cloud.options, **options) == bits(tmp_path, **options)
    assert fit_statistics(f"{url}/year=2001/*/*", storage_options=cloud.options).rows == 1


def test_only_the_bytes_that_are_needed_travel(azure):
    table = pa.table({name: np.random.default_rng(0).normal(size=200_000) for name in "abcdefgh"})
    data = table_bytes(table, lambda t, sink: pq.write_table(t, sink, compression="none"))
    azure.put("x.parquet", data)
    with azure.watched() as requests:
        fit_statistics(f"{azure.scheme}://bucket/x.parquet", columns=["d"], storage_options=azure.options)
    assert sum(request.size for request in requests) < len(data) // 8 + (1 << 18)


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def interrupt(url, states, azure):
    def stop(progress):
        if progress.done == 3:
            raise Killed

    with pytest.raises(Killed):
        fit_statistics(url, resume=states, progress=stop, storage_options=azure.options)


def test_an_interrupted_fit_goes_on_to_the_same_bits_by_version(cloud, ranges, folder, tmp_path, monkeypatch):
    url, states, options = cloud.upload(folder, "data"), tmp_path / "states", {"storage_options": cloud.options}
    monkeypatch.setattr("evenkeel.data.sources._listing.described", lambda file, info: file)  # as if times were equal
    interrupt(url, states, cloud)
    assert bits(url, resume=states, **options) == bits(folder)
    states.unlink()
    interrupt(url, states, cloud)
    cloud.put("data/part-1.parquet", (folder / "part-1.parquet").read_bytes())
    with pytest.raises(SourceError, match=r"part-1\.parquet was replaced \(other version in the store\)"):
        fit_statistics(url, resume=states, **options)


def test_an_object_that_is_replaced_while_it_is_read_is_told(azure, ranges, folder):
    url, seen = azure.upload(folder, "data"), itertools.count()
    other = table_bytes(pa.table({name: np.zeros(600) for name in "abc"}), pq.write_table)

    def replace(request):
        if request.range and "part-3" in request.path and next(seen) == 1:
            azure.put("data/part-3.parquet", other)

    with azure.faults(replace), pytest.raises(SourceError, match=r"part-3\.parquet: the object was replaced while"):
        fit(url, storage_options=azure.options)


@pytest.mark.parametrize("fault", [Refuse(503, "ServerBusy"), Refuse(429, "Throttling"), Cut()], ids=str)
def test_transient_errors_change_no_bit(fault, azure, ranges, folder):
    url, seen = azure.upload(folder, "data"), itertools.count()

    def break_some(request):
        if request.method == "GET" and next(seen) % 9 == 5:
            raise fault

    with azure.faults(break_some):
        assert bits(url, storage_options=azure.options) == bits(folder)
    assert next(seen) > 15


def test_results_are_written_whole(cloud, folder, tmp_path):
    url, scaler, options = cloud.upload(folder, "data"), fit(folder), {"storage_options": cloud.options}
    seen = []

    def look(*_):
        seen.append([key for key in cloud.objects() if not key.startswith(("data/", ".scaled.tmp/"))])

    target = f"{cloud.scheme}://bucket/scaled"
    assert transform_files(scaler, url, target, progress=look, **options) == target
    assert seen
    assert not any(seen)
    assert [key for key in cloud.objects() if not key.startswith("data/")] == [
        f"scaled/part-{number}.parquet" for number in range(5)
    ]
    for suffix in ("parquet", "npy"):
        one, local = f"{cloud.scheme}://bucket/deep/x.{suffix}", tmp_path / f"x.{suffix}"
        transform_files(scaler, f"{url}/part-3.parquet", one, **options)
        transform_files(scaler, folder / "part-3.parquet", local)
        with cloud.files.open_input_file(f"bucket/deep/x.{suffix}") as file:
            assert file.readall() == local.read_bytes()
    assert [key for key in cloud.objects() if ".tmp" in key] == []


def test_statistics_are_saved_whole_or_stay_what_they_were(azure, folder, table):
    url, options = f"{azure.scheme}://bucket/deep/stats.json", {"storage_options": azure.options}
    first, second = fit(folder), fit(table)
    assert save(first, url, **options) == url
    wrong = itertools.count()

    def refuse(request):
        if request.method in ("PUT", "POST") and next(wrong):  # the first one passes
            raise Refuse(403, "AuthorizationPermissionMismatch")

    with azure.faults(refuse), pytest.raises(EvenkeelError, match=f"cannot write {url}: access denied"):
        save(second, url, **options)
    assert load(url, **options).statistics_.to_bytes() == first.statistics_.to_bytes()
    save(second, url, **options)
    assert load(url, **options).statistics_.to_bytes() == second.statistics_.to_bytes()
    assert azure.objects() == ["deep/stats.json"]


def test_the_commands(cloud, folder, capsys):
    url, stats = cloud.upload(folder, "data"), f"{cloud.scheme}://bucket/stats.json"
    assert main(["data", "fit", url, "--out", stats, "--quiet", *cloud.typed]) == 0
    assert load(stats, storage_options=cloud.options).statistics_.to_bytes() == bits(folder)
    assert main(["data", "check", url, "--stats", stats, "--quiet", *cloud.typed]) == 0
    scaled = f"{cloud.scheme}://bucket/scaled"
    assert main(["data", "apply", url, "--stats", stats, "--out", scaled, "--quiet", *cloud.typed]) == 0
    assert f"written to {scaled}" in capsys.readouterr().out
    assert main(["data", "fit", url, "--out", stats, "--quiet", *cloud.typed]) == 2
    assert "exists already; replace it with --force" in capsys.readouterr().err
    nobody = f"{cloud.scheme}://nobody/stats.json"
    assert main(["data", "fit", url, "--out", nobody, "--quiet", *cloud.typed]) == 2
    assert f"cannot write {nobody}: there is no such bucket" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("bucket/none.csv", "there is no object or directory"),
        ("nobody/x.csv", "there is no bucket .nobody.; check its name"),
        ("bucket/none-*.csv", "no object matches"),
        ("nobody/*.csv", "nobody: there is no such object"),
    ],
)
def test_what_is_not_there_is_one_line(source, message, cloud):
    with pytest.raises(EvenkeelError, match=message) as caught:
        fit(f"{cloud.scheme}://{source}", storage_options=cloud.options)
    assert "\n" not in str(caught.value)


def test_nobody_at_the_address_is_one_line(cloud):
    options = cloud.options_at(("127.0.0.1", 1))
    with pytest.raises(EvenkeelError, match="the store cannot be reached; check the address") as caught:
        fit(f"{cloud.scheme}://bucket/x.csv", storage_options=options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("status", "code"), [(401, "Unauthorized"), (403, "AuthenticationFailed")])
def test_a_refusal_is_one_line(status, code, azure, ranges, folder):
    url = azure.upload(folder, "data")

    def refuse(request):
        raise Refuse(status, code)

    with azure.faults(refuse), pytest.raises(SourceError, match="access denied: there are no credentials") as caught:
        fit(url, storage_options=azure.options)
    assert "\n" not in str(caught.value)


def test_the_account_of_azure_stands_in_the_url_the_options_or_a_variable(azure, monkeypatch):
    azure.put("x.csv", b"a\n1\n3\n")
    options = azure.options
    account, key = options.pop("account_name"), options.pop("account_key")
    with pytest.raises(EvenkeelError, match=r"abfs://bucket names no storage account; write abfs://container@ACCOUNT"):
        fit("abfs://bucket/x.csv", storage_options=options)
    for url in (f"abfs://bucket@{account}.dfs.core.windows.net/x.csv", f"abfss://bucket@{account}/x.csv"):
        assert fit(url, storage_options=options | {"account_key": key}).mean_ == [2.0]
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", account)
    monkeypatch.setenv("AZURE_STORAGE_KEY", key)
    assert fit("az://bucket/x.csv", storage_options=options).mean_ == [2.0]
    wrong = options | {"account_key": "d3Jvbmc="}
    with pytest.raises(SourceError, match=r"the credentials are unknown or expired|access denied") as caught:
        fit("az://bucket/x.csv", storage_options=wrong)
    assert "d3Jvbmc=" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "Could not create a OAuth2 access token to authenticate the request. Could not resolve host: metadata.google",
        "Failed to get token from DefaultAzureCredential.\nSee https://host/container?sig=secret for details",
    ],
)
def test_where_no_credentials_are_found_is_one_line(text):
    said = str(explained("gs://bucket/x", OSError(text), 1))
    assert said.startswith("gs://bucket/x: the credentials are unknown or expired; give credentials where")
    assert "\n" not in said
    assert "secret" not in said


def test_hdfs_without_hadoop_is_one_line(monkeypatch, tmp_path):
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(SourceError, match=r"hdfs:// needs Java and Hadoop's libhdfs .*webhdfs://namenode:9870/") as e:
        fit("hdfs://namenode:8020/data/x.parquet")
    assert "\n" not in str(e.value)


@pytest.fixture
def hadoop(folder):
    """The address of a server that speaks WebHDFS, as far as reading needs it, of the directory `folder`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            query = {name: value[0] for name, value in parse_qs(parts.query).items()}
            path = folder / parts.path.removeprefix("/webhdfs/v1/data").strip("/")
            if not path.exists():
                error = {"exception": "FileNotFoundException", "message": "File does not exist"}
                return self.send(404, json.dumps({"RemoteException": error}).encode())
            if query["op"] == "OPEN":
                start = int(query["offset"])
                return self.send(200, path.read_bytes()[start : start + int(query["length"])])
            if query["op"] == "GETFILECHECKSUM":
                return self.send(200, json.dumps({"FileChecksum": {"bytes": path.name}}).encode())
            if query["op"] == "LISTSTATUS":
                listed = {"FileStatus": [status(file) | {"pathSuffix": file.name} for file in path.iterdir()]}
                return self.send(200, json.dumps({"FileStatuses": listed}).encode())
            return self.send(200, json.dumps({"FileStatus": status(path)}).encode())

        def send(self, status, data):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    def status(path):
        kind = "DIRECTORY" if path.is_dir() else "FILE"
        return {"type": kind, "length": path.stat().st_size, "modificationTime": 0, "pathSuffix": ""}

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield "{}:{}".format(*server.server_address)
    server.shutdown()
    server.server_close()
    thread.join()


def test_webhdfs_is_read_by_fsspec(hadoop, folder, ranges):
    assert bits(f"webhdfs://{hadoop}/data") == bits(folder)
    assert bits(f"webhdfs://{hadoop}/data/part-3.parquet") == bits(folder / "part-3.parquet")
    with pytest.raises(SourceError, match="there is no object or directory webhdfs://"):
        fit(f"webhdfs://{hadoop}/data/none.parquet")
