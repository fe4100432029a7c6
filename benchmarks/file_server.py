"""A directory as a bucket of S3, as far as reading needs it: a server whose own work is next to nothing.

Usage: python -m benchmarks.file_server DIRECTORY PORT. The whole servers in Python read an object for each range of it,
so that with them the number of requests decides, and not what is read.
"""

import os
import sys
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


class Handler(BaseHTTPRequestHandler):
    """Answers HEAD, GET of ranges, and the listing of a bucket."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # headers in one packet
    root = Path()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if "list-type" in query:
            self.list_bucket(query.get("prefix", [""])[0])
            return
        path = self.root / unquote(parts.path).rpartition("/")[2]
        if not path.is_file():
            self.answer(404, {"Content-Length": "0"})
            return
        size = path.stat().st_size
        start, _, stop = (self.headers.get("Range") or "bytes=0-").partition("=")[2].partition("-")
        first, last = int(start), min(int(stop), size - 1) if stop else size - 1
        facts = {"Content-Length": str(last - first + 1), "Content-Range": f"bytes {first}-{last}/{size}"}
        self.answer(206 if "Range" in self.headers else 200, facts | {"ETag": f'"{size}"'})
        if self.command == "GET":
            self.wfile.flush()
            with path.open("rb") as file:
                while first <= last:
                    first += os.sendfile(self.connection.fileno(), file.fileno(), first, last - first + 1)

    def list_bucket(self, prefix: str) -> None:
        """Answer with the objects of a directory; it has no others."""
        now = datetime(2026, 1, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        found = [path for path in sorted(self.root.iterdir()) if f"data/{path.name}".startswith(prefix)]
        objects = "".join(
            f"<Contents><Key>data/{path.name}</Key><LastModified>{now}</LastModified><ETag>x</ETag>"
            f"<Size>{path.stat().st_size}</Size></Contents>"
            for path in found
        )
        text = f"<?xml version='1.0'?><ListBucketResult><Name>bench</Name><KeyCount>{len(found)}</KeyCount>"
        text += f"<IsTruncated>false</IsTruncated>{objects}</ListBucketResult>"
        self.answer(200, {"Content-Length": str(len(text)), "Content-Type": "application/xml"})
        self.wfile.write(text.encode())

    def do_HEAD(self) -> None:
        """Answer as to GET, without the bytes."""
        self.do_GET()

    def answer(self, status: int, headers: dict[str, str]) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    Handler.root = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
