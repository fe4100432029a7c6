"""Tables written block by block, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import EvenkeelError, InvalidArgumentError
from evenkeel.data._columns import require_package

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["WRITTEN", "open_writer", "writing"]

# Rows of a row group: what a Parquet writer holds at a time.
GROUP_ROWS = 1 << 18
NPY_HEADER = 128


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary name beside the path; what is there at the end gets the path's own name, on an error nothing does."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise EvenkeelError(f"cannot write {path}: {error.strerror or error}; choose a folder that exists") from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


class BatchWriter:
    """Passes record batches to one of PyArrow's writers."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def write(self, batch: Any) -> None:
        """Append rows."""
        self.writer.write_batch(batch)

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()


class ParquetWriter(BatchWriter):
    """Collects record batches to row groups of a size that readers like."""

    def __init__(self, writer: Any, schema: Any) -> None:
        super().__init__(writer)
        self.schema, self.rows = schema, 0
        self.held: list[Any] = []

    def write(self, batch: Any) -> None:
        """Append rows; they reach the file with the next full row group."""
        self.held.append(batch)
        self.rows += batch.num_rows
        if self.rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what was collected as a row group."""
        if self.held:
            table = require_package("pyarrow").Table.from_batches(self.held, self.schema)
            self.writer.write_table(table, row_group_size=table.num_rows)
        self.held, self.rows = [], 0

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        super().close()


class ArrayWriter:
    """Writes a (rows, columns) .npy file whose number of rows is known at the end only."""

    def __init__(self, path: Path, schema: Any) -> None:
        kinds = {field.type.to_pandas_dtype() for field in schema}
        self.dtype = np.result_type(*kinds)
        self.columns, self.rows = len(schema), 0
        self.file = path.open("wb")
        self.file.write(bytes(NPY_HEADER))

    def write(self, batch: Any) -> None:
        """Append rows."""
        table = np.empty((batch.num_rows, self.columns), self.dtype)
        for index, column in enumerate(batch.columns):
            table[:, index] = column.to_numpy(zero_copy_only=False)
        self.file.write(table.data)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Write the header and finish the file."""
        shape = f"({self.rows}, {self.columns})"
        text = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
        header = text.ljust(NPY_HEADER - 11) + "\n"
        self.file.seek(0)
        self.file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("ascii"))
        self.file.close()


def open_parquet(path: Path, schema: Any) -> ParquetWriter:
    """A writer of a Parquet file."""
    return ParquetWriter(require_package("pyarrow.parquet").ParquetWriter(path, schema), schema)


def open_arrow(path: Path, schema: Any) -> BatchWriter:
    """A writer of an Arrow (Feather) file."""
    return BatchWriter(require_package("pyarrow").ipc.new_file(str(path), schema))


def open_csv(path: Path, schema: Any) -> BatchWriter:
    """A writer of a CSV file."""
    return BatchWriter(require_package("pyarrow.csv").CSVWriter(str(path), schema))


WRITERS = {
    ".parquet": open_parquet,
    ".pq": open_parquet,
    ".feather": open_arrow,
    ".arrow": open_arrow,
    ".ipc": open_arrow,
    ".csv": open_csv,
    ".npy": ArrayWriter,
}
WRITTEN = ", ".join(WRITERS)


def open_writer(path: Path, suffix: str, schema: Any) -> Any:
    """The writer of a file whose name will end so."""
    if suffix not in WRITERS:
        raise InvalidArgumentError(
            f"cannot write {suffix or 'a file without an ending'}; the name must end in {WRITTEN}"
        )
    return WRITERS[suffix](path, schema)
