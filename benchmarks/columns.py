"""The columns of tables: their mean and variance, and standardizing them, against one plain read of the table.

"copy" is a plain read: torch's sum of all elements, which runs at the speed of memory on tables of this size.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

import evenkeel as ek
from benchmarks.timing import Call, Case
from evenkeel import data

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


def scaler_cases() -> Iterator[Case]:
    """Yield the scaler's own fit and transform: into an array that is used again, into a new one, and in place.

    In place, infinities are searched for before anything is overwritten: a read more than the limit of the other.
    """
    for columns in (16, 7):
        x = torch.randn(ELEMENTS // columns, columns)
        array = x.numpy()
        out = np.empty_like(array)
        ours, theirs = data.StandardScaler().fit(array), StandardScaler().fit(array[:10000])
        title, read = f"float32, {x.shape[0]}x{columns}", x.view(-1).sum
        yield Case(
            name=f"StandardScaler.fit, {title}",
            calls={"copy": read, "evenkeel": partial(data.StandardScaler().fit, array)},
            limits={"copy": READS},
        )
        yield Case(
            name=f"StandardScaler.transform, output reused, {title}",
            calls={"copy": read, "evenkeel": partial(ours.transform, array, out=out)},
            limits={"copy": TRANSFORM_READS},
        )
        yield Case(
            name=f"StandardScaler.transform, output allocated, {title}",
            calls={
                "copy": read,
                "evenkeel": partial(ours.transform, array),
                "scikit-learn": partial(theirs.transform, array),
            },
            limits={"scikit-learn": TRANSFORM_SHARE},
        )
        yield Case(
            name=f"StandardScaler.transform, in place, {title}",
            calls={
                "copy": read,
                "evenkeel": partial(ours.transform, array.copy(), copy=False),
                "scikit-learn": partial(theirs.transform, array.copy(), copy=False),
            },
        )


def cases() -> Iterator[Case]:
    """Yield the cases."""
    yield from fit_cases()
    yield from scaler_cases()
