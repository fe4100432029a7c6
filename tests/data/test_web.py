"""Data at web addresses: the bits of local files in one version, and one line for what a server refuses."""

import functools
import http.server
import itertools
import os
import re
import threading
import zlib
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pytest

from evenkeel import EvenkeelError, SourceError
from evenkeel.cli import main
from evenkeel.data import fit, fit_statistics
from evenkeel.data.sources import open_source


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves ranges of the files of a directory; its server's `fault` may answer with a status in its place."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        status, path = self.server.fault(self), Path(self.translate_path(self.path))
        if status or not path.is_file():
            return self.reply(status or 404, b"")
        data = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not (asked and self.server.ranges):
            return self.reply(200, data, path)
        start, stop = int(asked[1]), int(asked[2]) + 1
        return self.reply(206, data[start:stop], path, f"bytes {start}-{stop - 1}/{len(data)}")

    do_GET = do_HEAD = answer

    def reply(self, status, data, path=None, part=""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if part:
            self.send_header("Content-Range", part)
        if path and self.server.says == "Last-Modified":
            self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        if path and self.server.says == "ETag":
            self.send_header("ETag", f'"{zlib.crc32(path.read_bytes())}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    says, ranges = "", True

    def fault(self, request):
        return None

    @property
    def url(self):
        return "http://{}:{}".format(*self.server_address)


@pytest.fixture
def web(tmp_path, short_pauses, monkeypatch):
    """A web server of the directory; objects are read in ranges of 1000 bytes."""
    monkeypatch.setattr("evenkeel.data.sources._objects.SMALL", 0)
    monkeypatch.setattr("evenkeel.data.sources._objects.BLOCK", 1000)
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def bits(source, **options):
    return fit_statistics(source, **options).to_bytes()


def put(path, array, age=0):
    """Write an array of this age in seconds."""
    np.save(path, array)
    changed = 2e9 - age
    os.utime(path, (changed, changed))


def test_a_web_address_is_read_in_ranges(web, folder):
    assert bits(f"{web.url}/data/part-3.parquet?signature=secret") == bits(folder / "part-3.parquet")
    names = [f"{web.url}/data/part-{number}.parquet" for number in range(3)]
    assert bits(names) == bits([folder / Path(name).name for name in names])
    label = open_source(f"{web.url}/data/part-3.parquet?signature=secret#page").description
    assert label == f"{web.url}/data/part-3.parquet"
    web.ranges = False
    with pytest.raises(SourceError, match="does not serve parts of files"):
        fit(f"{web.url}/data/part-3.parquet")


SAYS = pytest.mark.parametrize(
    ("says", "rows"), [("ETag", 1000), ("Last-Modified", 1000), ("", 1001)], ids=["ETag", "Last-Modified", "size"]
)


@SAYS
def test_an_object_that_is_replaced_while_it_is_read_is_told(says, rows, web, tmp_path):
    web.says, seen = says, itertools.count()
    put(tmp_path / "x.npy", np.zeros((1000, 2)), age=60)

    def replace(request):
        if "Range" in request.headers and next(seen) == 5:
            put(tmp_path / "x.npy", np.ones((rows, 2)))

    web.fault = replace
    with pytest.raises(SourceError, match=r"x\.npy: the object was replaced while it was read"):
        fit(f"{web.url}/x.npy", workers=1)
    web.fault = lambda request: None
    assert fit_statistics(f"{web.url}/x.npy").mean.tolist() == [1.0, 1.0]


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@SAYS
def test_an_object_that_was_replaced_is_not_resumed(says, rows, web, tmp_path):
    web.says, states = says, tmp_path / "states"
    for number in range(4):
        put(tmp_path / f"{number}.npy", np.full((1000, 2), float(number)), age=60)
    urls = [f"{web.url}/{number}.npy" for number in range(4)]

    def stop(progress):
        if progress.done == 3:
            raise Killed

    with pytest.raises(Killed):
        fit_statistics(urls, resume=states, progress=stop, workers=1)
    kept = states.read_bytes()
    assert fit_statistics(urls, resume=states).mean.tolist() == [1.5, 1.5]
    states.write_bytes(kept)
    put(tmp_path / "1.npy", np.ones((rows, 2)) * 7)
    with pytest.raises(SourceError, match=r"1\.npy#0 was replaced \(other version in the store\)"):
        fit_statistics(urls, resume=states)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_tried_again(status, web, tmp_path):
    put(tmp_path / "x.npy", np.full((1000, 2), 3.0))
    seen = itertools.count()  # the first two are one question, asked in two ways
    web.fault = lambda request: status if next(seen) in (0, 1, 5) else None
    assert fit_statistics(f"{web.url}/x.npy").mean.tolist() == [3.0, 3.0]
    assert next(seen) > 10


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (503, "cannot be read: the store failed 6 times: 503"),
        (500, "cannot be read: the store failed 6 times: 500"),
        (429, "cannot be read: the store failed 6 times: 429"),
        (400, "cannot be read: the store failed: 400"),
        (401, "access denied: there are no credentials, or they may not do this"),
        (403, "access denied: there are no credentials, or they may not do this"),
        (404, "there is no such object"),
    ],
)
def test_what_a_server_refuses_is_one_line(status, message, web, tmp_path):
    put(tmp_path / "404.npy", np.zeros((1000, 2)))
    web.fault = lambda request: status
    with pytest.raises(EvenkeelError, match=message) as caught:
        fit(f"{web.url}/404.npy?signature=secret")
    assert str(caught.value).startswith(f"{web.url}/404.npy: ")
    assert not any(word in str(caught.value) for word in ("\n", "secret"))


@pytest.mark.parametrize(
    ("address", "options", "message"),
    [
        ("http://127.0.0.1:1/x.npy", {}, "the store cannot be reached; check the address"),
        ("http://127.0.0.1:99999/x.npy?a=secret", {}, "^http://127.0.0.1:99999/x.npy is no URL: Port out of range"),
        ("/x.npy", {"colour": "red"}, "storage_options: http:// does not take these: .*colour"),
        ("/dir/*.npy?a=secret", {}, r"/dir/\*\.npy: patterns do not work with web addresses"),
        ("/none.npy?a=secret", {}, "there is no such object"),
    ],
)
def test_what_is_wrong_is_one_line(address, options, message, web, tmp_path):
    put(tmp_path / "x.npy", np.zeros((10, 2)))
    with pytest.raises(EvenkeelError, match=message) as caught:
        fit(address if "://" in address else web.url + address, storage_options=options)
    assert not any(word in str(caught.value) for word in ("\n", "secret"))


def test_the_command_says_it_too(tmp_path, capsys):
    assert main(["data", "fit", "http://127.0.0.1:1/x.npy", "--out", str(tmp_path / "s.json"), "--quiet"]) == 2
    assert "the store cannot be reached" in capsys.readouterr().err


def test_an_address_without_tls_is_told(web):
    with pytest.raises(SourceError, match="the server does not speak TLS at this port; write http:// for https://"):
        fit(f"{web.url.replace('http', 'https')}/x.npy")
