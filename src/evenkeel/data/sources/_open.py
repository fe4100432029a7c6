"""The one door to sources: what an object holds decides how it is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenkeel._errors import InvalidTypeError, SourceError
from evenkeel.data.sources._columns import Columns
from evenkeel.data.sources._datasets import is_dataset, open_dataset
from evenkeel.data.sources._files import open_path, open_paths
from evenkeel.data.sources._lance import is_lance, open_tables
from evenkeel.data.sources._memory import is_frame, open_array, open_frame
from evenkeel.data.sources._source import Source
from evenkeel.data.sources._sql import is_query, open_query
from evenkeel.data.sources._stores import StoredFile, check_options, locate_all
from evenkeel.data.sources._stream import open_stream


def open_source(
    source: Any,
    *,
    columns: Columns = None,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Source:
    """Open anything that holds rows.

    Args:
        source: a path or URL, several of them, or an object that holds rows.
        columns: names or positions of the columns to use; see `fit`.
        on_error: "skip" lets unreadable files be passed over while looking for the first schema.
        storage_options: for the client of the store that a URL names.

    Raises:
        SourceError: there is nothing to read, or no such columns.
        InvalidTypeError: no way to read such an object is known.
    """
    skip = on_error == "skip"
    if isinstance(source, Source):
        return source
    if is_query(source):
        check_options(storage_options, source)
        return open_query(source, columns)
    source = locate_all(source, storage_options)
    if isinstance(source, Path | StoredFile):
        return open_path(source, columns, skip=skip)
    if isinstance(source, list) and source and all(isinstance(place, Path | StoredFile) for place in source):
        return open_paths(source, columns, skip=skip)
    if is_lance(source):
        return open_tables([("", source)], source.uri, columns)
    if is_dataset(source):
        return open_dataset(source, columns)
    if isinstance(source, Mapping):
        source = (source,)  # one batch
    if isinstance(source, list | tuple) and not any(isinstance(item, Mapping) or is_array(item) for item in source):
        source = as_table(source)
    if isinstance(source, torch.Tensor | np.ndarray):
        return open_array(source, columns)
    if is_frame(source):
        return open_frame(source, columns)
    if isinstance(source, Iterable):
        return open_stream(source, columns)
    if isinstance(source, torch.utils.data.Dataset):
        raise InvalidTypeError(
            "a Dataset gives single samples; wrap it in torch.utils.data.DataLoader(dataset, batch_size=1024)"
        )
    raise InvalidTypeError(
        f"cannot read rows from a {type(source).__name__}; give an array, tensor, frame, Arrow table, path, "
        "or an iterable of batches"
    )


def is_array(item: Any) -> bool:
    """Whether an item of a list is a batch of its own, not a number or a row of numbers."""
    return hasattr(item, "__len__") and hasattr(item, "shape")


def as_table(rows: Sequence[Any]) -> np.ndarray[Any, Any]:
    """A list of rows of numbers as an array."""
    try:
        return np.asarray(rows)
    except ValueError as error:
        raise SourceError(f"the rows of a list must have one length: {error}") from error
