"""Servers of S3, Google Cloud Storage and Azure on the loopback address, and a proxy before each.

The proxy counts, delays and breaks what passes. S3 is moto's server, Google's store gcp-storage-emulator, Azure's a
test double of our own.
"""

import http.client
import logging
import re
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import google_server
import pyarrow as pa
import pyarrow.fs as pf
from azure_server import ACCOUNT, KEY, AzureServer
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message><Resource>/</Resource></Error>"


class Request:
    """What passes: method, path, and the first byte of the range that is asked for."""

    def __init__(self, handler):
        self.method, self.path = handler.command, handler.path.partition("?")[0]
        self.range = handler.headers.get("Range") or handler.headers.get("x-ms-range") or ""
        found = re.match(r"bytes=(\d+)-(\d*)", self.range)
        self.start = int(found[1]) if found else 0
        self.stop = int(found[2]) + 1 if found and found[2] else None
        self.size = 0  # of the answer


class Refuse(Exception):
    """A fault: the proxy answers with this status and code, as S3 and Azure spell it."""

    def __init__(self, status, code):
        self.status, self.code = status, code


class Cut(Exception):
    """A fault: the answer ends in the middle."""


class Generated(Exception):
    """The proxy itself answers for an object: of this size, its bytes made by a function of a range."""

    def __init__(self, size, read):
        self.size, self.read = size, read


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        request = Request(self)
        self.server.requests.append(request)
        body = self.body()
        cut = False
        try:
            self.server.fault(request)
        except Refuse as fault:
            return self.send(request, fault.status, {"Connection": "close"}, ERROR.format(code=fault.code).encode())
        except Generated as made:
            return self.send_generated(request, made)
        except Cut:
            cut = True
        connection = http.client.HTTPConnection(*self.server.target)
        try:
            left_out = ("transfer-encoding", "expect", "content-length")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        keep = {k: v for k, v in response.getheaders() if k.lower() not in ("transfer-encoding", "connection", "date")}
        return self.send(request, response.status, keep, data, cut=cut)

    def body(self):
        """The body of the request, whose length stands in a header or before each of its chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return data

    def send_generated(self, request, made):
        stop = made.size if request.stop is None else min(request.stop, made.size)
        headers = {"ETag": '"generated"', "Last-Modified": "Mon, 02 Mar 2026 00:00:00 GMT", "Accept-Ranges": "bytes"}
        if self.command == "HEAD":
            return self.send(request, 200, headers | {"Content-Length": str(made.size)}, b"")
        headers |= {"Content-Range": f"bytes {request.start}-{stop - 1}/{made.size}"}
        return self.send(request, 206, headers, made.read(request.start, stop))

    def send(self, request, status, headers, data, cut=False):
        request.size = len(data)
        self.send_response(status)
        if not any(name.lower() == "content-length" for name in headers):
            headers["Content-Length"] = str(len(data))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.requests, self.fault = target, [], lambda request: None

    def handle_error(self, request, client_address):
        pass  # clients hang up


class ObjectStore:
    """The server and the proxy; `options` lead through the proxy, `files` is PyArrow's client of the server itself."""

    scheme = ""

    def __init__(self):
        self.address = self.start()
        self.proxy = Proxy(self.address)
        self.thread = threading.Thread(target=self.proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()
        self.files = self.connect()

    @property
    def options(self):
        return self.options_at(self.proxy.server_address)

    @property
    def typed(self):
        """The options as the command line takes them."""
        return [word for name, value in self.options.items() for word in ("--storage-option", f"{name}={value}")]

    def put(self, key, data):
        with self.files.open_output_stream(f"bucket/{key}", compression=None) as stream:
            stream.write(data)

    def upload(self, folder, key):
        """Copy a directory of this machine into the store; gives its URL."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"{self.scheme}://bucket/{key}"

    def objects(self):
        infos = self.files.get_file_info(pf.FileSelector("bucket", recursive=True))
        return sorted(info.path.removeprefix("bucket/") for info in infos if info.type == pf.FileType.File)

    @contextmanager
    def faults(self, fault):
        """Let a function of the request decide: it raises a fault, or lets it pass. Gives the list of requests."""
        self.proxy.requests.clear()
        self.proxy.fault = fault
        try:
            yield self.proxy.requests
        finally:
            self.proxy.fault = lambda request: None

    def watched(self):
        return self.faults(lambda request: None)

    def clear(self):
        self.proxy.fault = lambda request: None
        self.proxy.requests.clear()
        self.wipe()

    def stop(self):
        self.proxy.shutdown()
        self.proxy.server_close()
        self.thread.join()
        self.end()

    def end(self):
        self.server.stop()


class AmazonStore(ObjectStore):
    scheme = "s3"

    def start(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        return self.server.get_host_and_port()

    def options_at(self, address):
        keys = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
        return keys | {"endpoint_override": "http://{}:{}".format(*address), "scheme": "http"}

    @property
    def variables(self):
        """The options as the variables of AWS."""
        names = {"access_key": "ACCESS_KEY_ID", "secret_key": "SECRET_ACCESS_KEY", "region": "REGION"}
        names["endpoint_override"] = "ENDPOINT_URL_S3"
        return {f"AWS_{names[name]}": value for name, value in self.options.items() if name in names}

    def connect(self):
        files = pf.S3FileSystem(**self.options_at(self.address), allow_bucket_creation=True)
        files.create_dir("bucket")
        return files

    def wipe(self):
        for info in self.files.get_file_info(pf.FileSelector("bucket")):
            (self.files.delete_dir if info.type == pf.FileType.Directory else self.files.delete_file)(info.path)

    def put_directly(self, key, data):
        """Put an object past the network, a thousand times as fast."""
        s3_backends["123456789012"]["aws"].put_object("bucket", key, data)


class GoogleStore(ObjectStore):
    """In a process of its own, without a proxy: see `google_server`."""

    scheme = "gs"

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, google_server.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return "127.0.0.1", int(self.process.stdout.readline())

    @property
    def options(self):
        return self.options_at(self.address)

    def options_at(self, address):
        where = {"endpoint_override": "{}:{}".format(*address), "scheme": "http"}
        return where | {"anonymous": True, "retry_time_limit": 1}

    def connect(self):
        return pf.GcsFileSystem(**self.options | {"retry_time_limit": timedelta(seconds=1)})

    def wipe(self):
        urllib.request.urlopen("http://{}:{}/wipe?keep-buckets=1".format(*self.address)).close()

    def end(self):
        self.process.communicate()


class AzureStore(ObjectStore):
    scheme = "abfs"

    def start(self):
        self.server = AzureServer()
        return self.server.server_address

    def options_at(self, address):
        options = {"account_name": ACCOUNT, "account_key": KEY}
        for service in ("blob", "dfs"):
            options |= {f"{service}_storage_authority": "{}:{}".format(*address), f"{service}_storage_scheme": "http"}
        return options

    def connect(self):
        return pf.AzureFileSystem(**self.options_at(self.address))

    def wipe(self):
        self.server.containers = {"bucket": {}}


def delay(seconds):
    """A fault that makes every request take a while."""
    return lambda request: time.sleep(seconds)


def table_bytes(table, write):
    """A table as the bytes of a file."""
    sink = pa.BufferOutputStream()
    write(table, sink)
    return sink.getvalue().to_pybytes()
