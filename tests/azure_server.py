"""A test double of Azure's Blob service: as much of its REST interface as PyArrow's client asks for.

It is our own and no server of Microsoft's. It checks the signature of every request with the key of the account, keeps
block blobs of a flat namespace in memory, and refuses with the codes that the service documents.
"""

import base64
import hashlib
import hmac
import itertools
import re
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

ACCOUNT, KEY = "account", base64.b64encode(b"the key of a server that ends with the tests").decode()
SIGNED = ("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date")
SIGNED += ("If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range")
ERROR = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
PAGE = 5000
VERSIONS = itertools.count(0x8D0000000000000)


@dataclass
class Blob:
    """A block blob: what was committed, and the blocks that wait for it."""

    data: bytes = b""
    blocks: dict[str, bytes] = field(default_factory=dict)
    source: str = ""  # that it was copied from
    etag: str = field(default_factory=lambda: f'"{next(VERSIONS):#x}"')
    modified: str = field(default_factory=lambda: formatdate(usegmt=True))

    @property
    def headers(self):
        facts = {"ETag": self.etag, "Last-Modified": self.modified, "x-ms-creation-time": self.modified}
        if self.source:
            facts |= {"x-ms-copy-id": "1", "x-ms-copy-status": "success", "x-ms-copy-source": self.source}
        return facts | {"x-ms-blob-type": "BlockBlob", "Accept-Ranges": "bytes", **STORED}


STORED = {"x-ms-server-encrypted": "true", "x-ms-request-server-encrypted": "true"}
CONTAINER = {"ETag": '"0x1"', "Last-Modified": formatdate(0, usegmt=True), "x-ms-has-immutability-policy": "false"}
CONTAINER |= {"x-ms-has-legal-hold": "false", "x-ms-lease-state": "available", "x-ms-lease-status": "unlocked"}
CONTAINER |= {
    "x-ms-default-encryption-scope": "$account-encryption-key",
    "x-ms-deny-encryption-scope-override": "false",
}


class Refused(Exception):
    """The service refuses, with this status and code."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.query = {name.lower(): value for name, value in parse_qsl(parts.query, keep_blank_values=True)}
        _, _, self.container, *rest = *unquote(parts.path).split("/", 3), ""
        self.name = rest[0]
        try:
            if self.headers.get("Authorization") != f"SharedKey {ACCOUNT}:{signature(self)}":
                raise Refused(403, "AuthenticationFailed")
            self.send(*self.operation()())
        except Refused as error:
            status, code = error.args
            self.send(status, {"x-ms-error-code": code}, ERROR.format(code=code).encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def operation(self):
        """The method for this request."""
        if self.query.get("action") == "getAccessControl":
            raise Refused(400, "HierarchicalNamespaceNotEnabled")
        if self.query.get("restype") == "container":
            what = self.query.get("comp") or {"PUT": "create"}.get(self.command, "properties")
            return getattr(self, f"container_{what}")
        if self.container not in self.server.containers:
            raise Refused(404, "ContainerNotFound")
        what = self.query.get("comp") or ("copy" if "x-ms-copy-source" in self.headers else "blob")
        return getattr(self, f"{self.command.lower()}_{what}")

    @property
    def blobs(self):
        if self.container not in self.server.containers:
            raise Refused(404, "ContainerNotFound")
        return self.server.containers[self.container]

    @property
    def blob(self):
        if self.name not in self.blobs:
            raise Refused(404, "BlobNotFound")
        return self.blobs[self.name]

    def container_create(self):
        self.server.containers.setdefault(self.container, {})
        return 201, CONTAINER

    def container_properties(self):
        assert self.blobs is not None
        return 200, CONTAINER

    def container_list(self):
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        entries = {}
        for name in sorted(self.blobs):
            if name.startswith(prefix):
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                entries.setdefault(name if cut < 0 else name[: cut + 1], None if cut >= 0 else self.blobs[name])
        names = [name for name in sorted(entries) if name >= self.query.get("marker", "")]
        most = int(self.query.get("maxresults", PAGE))
        listed = "".join(listing(name, entries[name]) for name in names[:most])
        following = escape(names[most]) if len(names) > most else ""
        text = f'<?xml version="1.0"?><EnumerationResults ServiceEndpoint="/" ContainerName="{self.container}">'
        text += f"<Blobs>{listed}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
        return 200, {"Content-Type": "application/xml"}, text.encode()

    def container_batch(self):
        text = ""
        for number, path in enumerate(re.findall(rb"^DELETE (\S+) HTTP", self.body, re.MULTILINE)):
            name = unquote(urlsplit(path.decode()).path).split("/", 3)[3]
            status = "202 Accepted" if self.blobs.pop(name, None) else "404 Not Found"
            text += f"--part\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n"
            text += "x-ms-delete-type-permanent: true\r\n\r\n"
        return 202, {"Content-Type": "multipart/mixed; boundary=part"}, f"{text}--part--".encode()

    def head_blob(self):
        return 200, self.blob.headers | {"Content-Length": str(len(self.blob.data))}

    def get_blob(self):
        blob, size = self.blob, len(self.blob.data)
        if self.headers.get("If-Match", blob.etag) != blob.etag:
            raise Refused(412, "ConditionNotMet")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("x-ms-range") or self.headers.get("Range") or "")
        if not wanted:
            return 200, blob.headers, blob.data
        first, last = int(wanted[1]), min(int(wanted[2] or size), size - 1)
        if first > last:
            raise Refused(416, "InvalidRange")
        return 206, blob.headers | {"Content-Range": f"bytes {first}-{last}/{size}"}, blob.data[first : last + 1]

    def put_blob(self):
        self.blobs[self.name] = Blob(self.body)
        return 201, self.blob.headers

    def put_block(self):
        waiting = self.blobs.setdefault(self.name, Blob())
        waiting.blocks[self.query["blockid"]] = self.body
        return 201, STORED

    def put_blocklist(self):
        names = re.findall(rb"<(?:Latest|Uncommitted)>(.*?)</", self.body)
        blocks = self.blob.blocks
        self.blobs[self.name] = Blob(b"".join(blocks[name.decode()] for name in names), blocks)
        return 201, self.blob.headers

    def put_copy(self):
        source = unquote(urlsplit(self.headers["x-ms-copy-source"]).path).split("/", 3)[3]
        if source not in self.blobs:
            raise Refused(404, "CannotVerifyCopySource")
        self.blobs[self.name] = Blob(self.blobs[source].data, source=self.headers["x-ms-copy-source"])
        return 202, self.blob.headers

    def put_lease(self):
        given = self.headers.get("x-ms-proposed-lease-id") or self.headers.get("x-ms-lease-id")
        status = 201 if self.headers["x-ms-lease-action"] == "acquire" else 200
        return status, self.blob.headers | {"x-ms-lease-id": given}

    def delete_blob(self):
        assert self.blob
        del self.blobs[self.name]
        return 202, {"x-ms-delete-type-permanent": "true"}

    def send(self, status, headers, data=b""):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data)), "x-ms-version": "2024-08-04"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def listing(name, blob):
    """The entry of a blob, or of what the names of several begin with, in a list."""
    if blob is None:
        return f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>"
    facts = f"<Creation-Time>{blob.modified}</Creation-Time><Last-Modified>{blob.modified}</Last-Modified>"
    facts += f"<Etag>{escape(blob.etag)}</Etag><Content-Length>{len(blob.data)}</Content-Length>"
    facts += "<BlobType>BlockBlob</BlobType><ServerEncrypted>true</ServerEncrypted>"
    return f"<Blob><Name>{escape(name)}</Name><Properties>{facts}</Properties></Blob>"


def signature(request):
    """The signature that the key of the account gives a request, as the service documents it."""
    values = [request.headers.get(name, "") for name in SIGNED]
    values[SIGNED.index("Content-Length")] = str(len(request.body) or "")
    own = sorted((name.lower(), value) for name, value in request.headers.items() if name.lower().startswith("x-ms-"))
    lines = [request.command, *values, *(f"{name}:{value}" for name, value in own)]
    lines.append(f"/{ACCOUNT}{urlsplit(request.path).path}")
    lines += [f"{name}:{value}" for name, value in sorted(request.query.items())]
    digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


class AzureServer(ThreadingHTTPServer):
    """The server with one empty container, in a thread of this process."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.containers = {"bucket": {}}
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def stop(self):
        self.shutdown()
        self.server_close()
        self.thread.join()

    def handle_error(self, request, client_address):
        pass  # clients hang up
