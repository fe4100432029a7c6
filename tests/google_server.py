"""gcp-storage-emulator in a process of its own, which prints its port and ends with its standard input.

PyArrow's client of Google's store waits for a request while it holds Python's lock: a server in its process, or a
proxy, could not answer.
"""

import http.server
import logging
import sys


def serve():
    # The emulator answers one request after the other; an object that nobody reads to its end would keep it waiting.
    http.server.HTTPServer = http.server.ThreadingHTTPServer
    from gcp_storage_emulator.server import create_server

    logging.disable(logging.CRITICAL)
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    sys.stdout.write(f"{server._api._httpd.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    serve()
