"""An S3 server on the loopback address, and a proxy before it that counts, delays and breaks what passes."""

import http.client
import logging
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.fs as pf
from moto.server import ThreadedMotoServer

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message><Resource>/</Resource></Error>"


class Request:
    """What passes: method, path, and the first byte of the range that is asked for."""

    def __init__(self, handler):
        self.method, self.path = handler.command, handler.path.partition("?")[0]
        self.range = handler.headers.get("Range", "")
        found = re.match(r"bytes=(\d+)-(\d*)", self.range)
        self.start = int(found[1]) if found else 0
        self.stop = int(found[2]) + 1 if found and found[2] else None
        self.size = 0  # of the answer


class Refuse(Exception):
    """A fault: the proxy answers with this status and code of S3."""

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
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding", "expect")}
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

    def __init__(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        self.proxy = Proxy(self.server.get_host_and_port())
        self.thread = threading.Thread(target=self.proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()
        self.files = pf.S3FileSystem(**self.options_at(self.server.get_host_and_port()), allow_bucket_creation=True)
        self.files.create_dir("bucket")

    def options_at(self, address):
        keys = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
        return keys | {"endpoint_override": "http://{}:{}".format(*address), "scheme": "http"}

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
        return f"s3://bucket/{key}"

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
        for info in self.files.get_file_info(pf.FileSelector("bucket")):
            (self.files.delete_dir if info.type == pf.FileType.Directory else self.files.delete_file)(info.path)

    def stop(self):
        self.proxy.shutdown()
        self.proxy.server_close()
        self.thread.join()
        self.server.stop()


def delay(seconds):
    """A fault that makes every request take a while."""
    return lambda request: time.sleep(seconds)


def table_bytes(table, write):
    """A table as the bytes of a file."""
    sink = pa.BufferOutputStream()
    write(table, sink)
    return sink.getvalue().to_pybytes()
