"""Token ids in one flat file: a NumPy array (.npy), or bare ids whose type ``::uint16`` or ``::uint32`` names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import StudyError
from evenkeel.lab.training._layout import CHUNK, Fill, Filled, Part, Progress, check_ids, open_bytes, plain_place

if TYPE_CHECKING:
    from evenkeel.data.sources import Place

BARE: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def is_flat(path: Place) -> bool:
    """Whether a place that is no table is a flat file of token ids."""
    plain, member = plain_place(path)
    return not member if Path(str(plain)).suffix == ".npy" else member in BARE


def copy_ids(path: Place, kind: str, share: float, vocabulary: int | None, tell: Progress) -> Fill:
    """Return what copies a flat file, its last part for validation.

    Args:
        path: the file.
        kind: of bare ids; of a NumPy array empty.
        share: of the ids, for validation.
        vocabulary: how many there are; None means as many as the largest one says.
        tell: is told how many bytes are laid out.
    """

    def fill(train: Part, validation: Part) -> Filled:
        with open_bytes(path) as (file, size):
            dtype, count = (BARE[kind], size // BARE[kind].itemsize) if kind else read_header(path, file)
            whole = size - file.tell() == count * dtype.itemsize
            cut, at = count - round(count * share), 0
            while whole and (data := file.read(dtype.itemsize * min(CHUNK, (cut if at < cut else count) - at))):
                ids = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
                ids = check_ids(ids, f"{path}: position {at} or later", vocabulary)
                (train if at < cut else validation).add(ids)
                at += len(ids)
                tell(train.size + validation.size)
        if not whole or at != count:
            raise StudyError(
                f"text {path} does not end where the last id of {dtype} does; give the whole file, and its type"
            )
        train.documents = validation.documents = 1
        return Filled(0, 0, "token", vocabulary or max(len(part.counts()) for part in (train, validation)))

    return fill


def read_header(path: Place, file: Any) -> tuple[np.dtype[Any], int]:
    """Return the dtype of an open NumPy file and how many numbers follow."""
    try:
        shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    except (ValueError, KeyError) as error:
        raise StudyError(f"text {path} is no array that numpy.save wrote; write it again") from error
    if len(shape) != 1 or dtype.kind not in "iu":
        raise StudyError(f"text {path} is an array of {dtype} of shape {shape}; give whole numbers in one dimension")
    return dtype, shape[0]
