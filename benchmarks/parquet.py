"""Parquet directories: fitting the mean and variance of every column against a plain PyArrow scan of the same files.

Linux only: with one thread, both are held to one processor.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch

from benchmarks.timing import Case
from evenkeel.data import fit_statistics

ROWS = 1_000_000
FILES = 12
# Work the scan does not do may cost this much: 0.85 of its throughput remain.
SCAN_LIMIT = 1 / 0.85


def write_directory(columns: int, compression: str) -> Path:
    """A directory of random float32 columns, deleted when the program ends: 12 files, 4 MB a column each."""
    folder = Path(tempfile.mkdtemp(prefix="evenkeel-parquet-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    table = np.random.default_rng(0).standard_normal((columns, ROWS), dtype=np.float32)
    names = [f"c{index}" for index in range(columns)]
    for number in range(FILES):
        values = pa.table(dict(zip(names, table + np.float32(number), strict=True)))
        pq.write_table(values, folder / f"{number:02}.parquet", compression=compression)
    return folder


@contextmanager
def processors() -> Iterator[None]:
    """Where torch has one thread, hold all threads to one processor: PyArrow starts some whatever it is told."""
    allowed = os.sched_getaffinity(0)
    try:
        if torch.get_num_threads() == 1:
            hold_threads({min(allowed)})
        yield
    finally:
        hold_threads(allowed)


def hold_threads(allowed: set[int]) -> None:
    """Let the threads of this process, and those that they start, run on these processors only."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), allowed)


def scan(folder: Path) -> int:
    """Read every row with PyArrow's own settings, and do nothing with it."""
    with processors():
        scanner = ds.dataset(folder).scanner(use_threads=torch.get_num_threads() > 1)
        return sum(batch.num_rows for batch in scanner.to_batches())


def fit(folder: Path) -> int:
    """Fit the statistics of every column, with as many workers as torch has threads."""
    with processors():
        return fit_statistics(folder, workers=torch.get_num_threads()).rows


def cases() -> Iterator[Case]:
    """Yield the cases: PyArrow's default compression, and none, where reading costs least."""
    for columns, compression in ((8, "snappy"), (8, "none")):
        folder = write_directory(columns, compression)
        yield Case(
            name=f"fit statistics of a Parquet directory, {FILES}x{ROWS}x{columns} float32, {compression}",
            calls={"evenkeel": partial(fit, folder), "scan": partial(scan, folder)},
            limits={"scan": SCAN_LIMIT},
        )
