"""Parquet files in an S3 server of this machine: fitting columns against a plain PyArrow scan of the same ones."""

import atexit
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.fs as pf
import torch

from benchmarks.parquet import FILES, ROWS, SCAN_LIMIT, write_directory
from benchmarks.timing import Case, repeated
from evenkeel.data import fit_statistics

COLUMNS = [f"c{index}" for index in range(0, 8, 2)]
RUNS = 3  # in a row: a call finds the memory as the one before it left it, which in use is one of its kind


def start_server(folder: Path) -> dict[str, Any]:
    """The options of a client of a server in a process of its own, which ends with this program."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.file_server", str(folder), str(port)])
    atexit.register(server.wait)
    atexit.register(server.terminate)
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    keys = {"access_key": "bench", "secret_key": "bench", "region": "us-east-1"}
    return keys | {"endpoint_override": f"http://127.0.0.1:{port}", "scheme": "http"}


def scan(options: dict[str, Any]) -> int:
    """Read the columns with PyArrow's own settings, and do nothing with them."""
    files = pf.S3FileSystem(**options)
    scanner = ds.dataset("bench/data", filesystem=files).scanner(
        columns=COLUMNS, use_threads=torch.get_num_threads() > 1
    )
    return sum(batch.num_rows for batch in scanner.to_batches())


def fit(options: dict[str, Any]) -> int:
    """Fit the statistics of the columns."""
    return fit_statistics("s3://bench/data", columns=COLUMNS, storage_options=options).rows


def cases() -> Iterator[Case]:
    """Yield the cases: half of the columns of a directory."""
    options = start_server(write_directory(8, "none"))
    yield Case(
        name=f"fit statistics of 4 of 8 columns in an S3 server, {FILES}x{ROWS}x8 float32",
        calls={"evenkeel": repeated(partial(fit, options), RUNS), "scan": repeated(partial(scan, options), RUNS)},
        limits={"scan": SCAN_LIMIT},
    )
