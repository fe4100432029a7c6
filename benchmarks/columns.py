"""The columns of tables: their mean and variance, and standardizing them, against one plain read of the table.

"copy" is a plain read: torch's sum of all elements, which runs at the speed of memory on tables of this size.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import evenkeel as ek
from benchmarks.timing import Call, Case

ELEMENTS = 32_000_000
READS, TRANSFORM_READS, TRANSFORM_SHARE = 2.0, 2.5, 0.3


def fit_cases() -> Iterator[Case]:
    """Yield the fits: the table of the target, float64, and other widths."""
    for dtype in (torch.float32, torch.float64):
        for columns in (16, 1, 7, 1000):
            x = torch.randn(ELEMENTS * 4 // dtype.itemsize // columns, columns, dtype=dtype)
            calls: dict[str, Call] = {
                "copy": x.view(-1).sum,
                "evenkeel": partial(ek.functional.column_moments, x, backend="cpu"),
            }
            if columns == 16:
                calls["torch"] = partial(torch.var_mean, x, 0)
            if columns == 16 and dtype == torch.float32:
                calls["NumPy"] = partial(numpy_moments, x.numpy())
                calls["scikit-learn"] = partial(StandardScaler().fit, x.numpy())
            name = f"mean and variance, {dtype}, {x.shape[0]}x{columns}".replace("torch.", "")
            yield Case(name=name, calls=calls, limits={"copy": READS})


def numpy_moments(array: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Return mean and variance with NumPy's float64 sums."""
    return array.mean(0, dtype=np.float64), array.var(0, dtype=np.float64)


def transform(x: Tensor, scaler: StandardScaler, out: Tensor | None) -> Call:
    """Return a call that standardizes a table."""
    mean, scale = torch.from_numpy(scaler.mean_), torch.from_numpy(1 / scaler.scale_)
    return lambda: ek.functional.column_affine(x, mean, scale, out=out, backend="cpu")


def transform_cases() -> Iterator[Case]:
    """Yield the transforms, into memory that is used again and into new memory."""
    for columns in (16, 7):
        x = torch.randn(ELEMENTS // columns, columns)
        array = x.numpy()
        scaler = StandardScaler().fit(array[:10000])
        title = f"float32, {x.shape[0]}x{columns}"
        yield Case(
            name=f"standardize, output reused, {title}",
            calls={"copy": x.view(-1).sum, "evenkeel": transform(x, scaler, torch.empty_like(x))},
            limits={"copy": TRANSFORM_READS},
        )
        yield Case(
            name=f"standardize, output allocated, {title}",
            calls={"evenkeel": transform(x, scaler, None), "scikit-learn": partial(scaler.transform, array)},
            limits={"scikit-learn": TRANSFORM_SHARE},
        )


def cases() -> Iterator[Case]:
    """Yield the cases."""
    yield from fit_cases()
    yield from transform_cases()
