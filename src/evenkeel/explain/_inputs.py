"""Numbers from text and files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from evenkeel._errors import EvenkeelError, InvalidInputError
from evenkeel._options.names import nearest
from evenkeel._options.numbers import check_rows, is_number, nested_lists, typed_rows
from evenkeel._packages import require_package

if TYPE_CHECKING:
    import os

    from torch import Tensor

__all__ = ["parse_numbers", "read_input"]

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def parse_numbers(text: str) -> Tensor:
    """Numbers as typed: separated by spaces or commas, rows by semicolons or line feeds, or nested lists as JSON.

    Args:
        text: such as `1 2 3`, `1,2;3,4` or `[[1, 2], [3, 4]]`; `nan` and `inf` are numbers.

    Returns:
        A tensor, int64 where every number is written as a whole one, float64 otherwise.

    Raises:
        InvalidInputError: something is not a number, the rows have different lengths, or there is none.

    Example:
        >>> parse_numbers("1 2; 3 4.5").tolist()
        [[1.0, 2.0], [3.0, 4.5]]
    """
    if text.lstrip().startswith("["):
        return from_json(text, "the input")
    rows = typed_rows(text)
    table = from_rows(rows)
    return table[0] if len(rows) == 1 else table


def from_rows(rows: list[list[str]]) -> Tensor:
    """Convert a table's cells to numbers."""
    try:
        return torch.tensor([[int(cell) for cell in row] for row in rows])
    except (ValueError, OverflowError, RuntimeError):
        pass  # not all whole, or too large for an integer
    return torch.tensor([[float(cell) for cell in row] for row in rows], dtype=torch.float64)


def from_json(text: str, name: str) -> Tensor:
    """Parse nested lists of numbers."""
    data, _ = nested_lists(text, name)
    array = np.asarray(data)
    return torch.from_numpy(array.astype(np.int64 if array.dtype.kind == "i" else np.float64))


def read_input(path: str | os.PathLike[str], *, key: str | None = None) -> Tensor:
    r"""Read numbers from a .npy, .npz, .csv, .tsv, .txt, .json, .safetensors or image file.

    Args:
        path: the file; its ending tells its kind. A table's first line may hold names. An image is read as
            (height, width, 3) colours from 0 to 255.
        key: which tensor of a .npz or .safetensors file that holds several.

    Returns:
        The tensor, in the dtype that the file has.

    Raises:
        InvalidInputError: the file is missing or is not what its ending says.
        EvenkeelError: an image, and Pillow is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> from evenkeel.explain import read_input
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "x.csv")
        ...     _ = file.write_text("1.5,2\n3,4\n")
        ...     read_input(file)
        tensor([[1.5000, 2.0000],
                [3.0000, 4.0000]], dtype=torch.float64)
    """
    file = Path(path)
    kind = file.suffix.lower()
    readers = {".npy": read_npy, ".npz": read_npz, ".json": read_json, ".safetensors": read_safetensors}
    readers |= dict.fromkeys((".csv", ".tsv", ".txt"), read_table) | dict.fromkeys(IMAGES, read_image)
    if kind not in readers:
        raise InvalidInputError(f"explain: {file} has an ending that is not known; use {', '.join(readers)}")
    if not file.is_file():
        raise InvalidInputError(f"explain: there is no file {file}; check the path")
    try:
        tensor = readers[kind](file, key)
    except EvenkeelError:
        raise
    except Exception as error:  # each format's reader has its own exceptions for what is not that format
        raise InvalidInputError(f"explain: {file} cannot be read as {kind[1:]}: {error}") from error
    if tensor.numel() == 0:
        raise InvalidInputError(f"explain: {file} holds no numbers (shape {tuple(tensor.shape)})")
    return tensor


def read_npy(file: Path, key: str | None) -> Tensor:
    """Read one numpy array; object arrays, which would run code, are refused."""
    with file.open("rb") as opened:
        if opened.read(6) != b"\x93NUMPY":
            raise InvalidInputError(f"explain: {file} is no .npy file; write it with numpy.save")
    return from_numpy(np.load(file, allow_pickle=False))


def read_npz(file: Path, key: str | None) -> Tensor:
    """Read one of several numpy arrays."""
    with np.load(file, allow_pickle=False) as arrays:
        return from_numpy(arrays[choose(file, list(arrays.files), key)])


def from_numpy(array: np.ndarray) -> Tensor:
    """Convert an array to a tensor of its dtype, or the nearest that torch has."""
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"explain: expected an array of numbers, but it has dtype {array.dtype}")
    wide = array.dtype.kind == "f" and array.dtype.itemsize > np.dtype(np.float64).itemsize
    array = array.astype(np.float64 if wide else array.dtype.newbyteorder("="))
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)


def read_json(file: Path, key: str | None) -> Tensor:
    """Read nested lists."""
    return from_json(file.read_text(encoding="utf-8"), str(file))


def read_table(file: Path, key: str | None) -> Tensor:
    """Read cells separated by commas, tabs, semicolons or spaces; a first line of names is skipped."""
    text = file.read_text(encoding="utf-8-sig")
    first = text.partition("\n")[0]
    mark = next((m for m in (",", "\t", ";") if m in first), None)
    if mark is None:
        rows = [line.split() for line in text.splitlines()]
    else:
        rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), delimiter=mark)]
    rows = [row for row in rows if any(row)]
    if rows and not any(is_number(cell) for cell in rows[0]):
        rows = rows[1:]
    if not rows:
        raise InvalidInputError(f"explain: {file} holds no numbers")
    check_rows(rows, str(file))
    table = from_rows(rows)
    return table[:, 0] if table.shape[1] == 1 else table


def read_safetensors(file: Path, key: str | None) -> Tensor:
    """Read one tensor of a safetensors file."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as tensors:
        return tensors.get_tensor(choose(file, list(tensors.keys()), key))


def choose(file: Path, names: list[str], key: str | None) -> str:
    """Return the name of the tensor to read: the key, or the only name."""
    if key in names:
        return str(key)
    if key is None and len(names) == 1:
        return names[0]
    if key is not None and names:
        raise InvalidInputError(f"explain: {file} has no tensor {key!r}; did you mean {nearest(key, names)}?")
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    wrong = f"holds several tensors; choose with --key (key=): {listed}" if names else "holds no tensors"
    raise InvalidInputError(f"explain: {file} {wrong}")


def read_image(file: Path, key: str | None) -> Tensor:
    """Read an image as (height, width, 3) from 0 to 255."""
    with require_package("PIL.Image").open(file) as picture:
        return torch.from_numpy(np.array(picture.convert("RGB")))
