"""Mergeable quantiles: a KLL sketch for each feature, and exact counting histograms for 8- and 16-bit integers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._packages import require_package
from evenkeel.data.statistics._encoding import take_array

Array = np.ndarray[Any, Any]
# Two numbers of this size differ by one of float64, whatever their signs.
LARGEST = 2.0**1022
COUNTED = ("bool", "uint8", "int8", "uint16", "int16")
COUNTED_RANGE = -(1 << 15), 1 << 16
# Bytes of a serialized sketch before its levels, and levels that 64 bits of values can fill.
SKETCH_HEADER = 20
MOST_LEVELS = 60
# Rows of a block that is turned into float64 columns for the sketches: 8 MB for each 16 features.
BLOCK_ROWS = 1 << 16


def require_datasketches() -> Any:
    """Import the sketches' library, or raise an EvenkeelError that names the extra."""
    return require_package("datasketches")


def weighted_quantiles(values: Array, weights: Array, q: Array) -> Array:
    """Quantiles of weighted values, interpolated as NumPy does by default."""
    order = np.argsort(values, kind="stable")
    values, ranks = values[order], np.cumsum(weights[order])
    position = q * (ranks[-1] - 1)
    below = np.floor(position)
    lower = values[np.searchsorted(ranks, below, side="right")]
    upper = values[np.searchsorted(ranks, np.ceil(position), side="right")]
    share = position - below
    with np.errstate(over="ignore", invalid="ignore"):
        between = upper - lower
        steps = np.where(np.isinf(between), lower * (1 - share) + upper * share, lower + between * share)
        return np.where(lower == upper, lower, steps)


def exact_percentiles(x: Array, percentages: Sequence[float]) -> Array:
    """Percentiles of each column (percentages, columns); NaN is left out, and a column without values gives NaN."""
    largest = max(np.fmax.reduce(x, axis=None, initial=0.0), -np.fmin.reduce(x, axis=None, initial=0.0))
    unit = 4.0 if largest > LARGEST else 1.0  # NumPy takes differences of neighbours, which would overflow
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="All-NaN slice", category=RuntimeWarning)
        return np.asarray(np.nanpercentile(x if unit == 1 else x / unit, percentages, axis=0)) * unit


class Sketches:
    """A KLL sketch for each feature (Karnin, Lang and Liberty 2016, by Apache DataSketches).

    Kept as the library's bytes: reading and writing one takes 2 µs, bytes can be copied and sent, and no object of the
    library outlives a call (its binding complains about those when the interpreter ends).
    """

    kind = "float64"

    def __init__(self, features: int, k: int) -> None:
        library = require_datasketches()
        self.features, self.k = features, k
        self.blobs: list[bytes] = [library.kll_doubles_sketch(k).serialize()] * features

    @property
    def error(self) -> float:
        """The error of a quantile's rank at 99 % confidence, as a share of the values."""
        return float(require_datasketches().kll_doubles_sketch.get_normalized_rank_error(self.k, False))

    def update(self, x: Tensor, valid: Tensor | None) -> None:
        """Add the rows of a (rows, features) tensor; NaN and values where ``valid`` is False do not count."""
        for start in range(0, x.shape[0], BLOCK_ROWS):
            block = x[start : start + BLOCK_ROWS].double()
            if valid is not None:
                block = block.masked_fill(~valid[start : start + BLOCK_ROWS], torch.nan)
            for feature, column in enumerate(block.T.contiguous().cpu().numpy()):
                sketch = read_sketch(self.blobs[feature])
                sketch.update(column)
                self.blobs[feature] = sketch.serialize()

    def merge(self, other: Sketches) -> None:
        """Add what another has seen."""
        for feature, (mine, theirs) in enumerate(zip(self.blobs, other.blobs, strict=True)):
            sketch = read_sketch(mine)
            sketch.merge(read_sketch(theirs))
            self.blobs[feature] = sketch.serialize()

    def counts(self, feature: int) -> tuple[Array, Array]:
        """The values that a feature's sketch keeps, and how many each stands for."""
        return sketch_contents(self.blobs[feature])

    def to_arrays(self) -> dict[str, Array]:
        """Named arrays, which `quantiles_from_arrays` reads."""
        lengths = np.array([len(blob) for blob in self.blobs], np.int64)
        return {"sketch": np.frombuffer(b"".join(self.blobs), np.uint8), "sketch_bytes": lengths}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], count: Array, k: int) -> Sketches:
        """Take what `to_arrays` wrote; ValueError where the parts contradict each other or the counts."""
        lengths = take_array(arrays, "sketch_bytes", "i8", count.shape)
        joined = take_array(arrays, "sketch", "u1", (None,))
        if (lengths < 0).any() or (lengths > joined.size).any() or lengths.sum() != joined.size:
            raise ValueError("the sketches' lengths do not fit")
        self, ends = cls(count.size, k), np.cumsum(lengths).tolist()
        kept = [joined[end - size : end].tobytes() for end, size in zip(ends, lengths.tolist(), strict=True)]
        for blob, empty, values in zip(kept, self.blobs, count.tolist(), strict=True):
            check_sketch(blob, empty, values)
        self.blobs = kept
        return self


def check_sketch(blob: bytes, empty: bytes, count: float) -> None:
    """Raise ValueError unless a blob is a sketch of so many values, with the parameters of an empty one.

    The library takes the levels' positions in its items as they come, and would read memory that is not its own.
    """
    values, weights = sketch_contents(blob)
    try:
        sketch = read_sketch(blob) if blob[4:8] == empty[4:8] and not np.isnan(values).any() else None
    except (IndexError, RuntimeError, ValueError) as error:
        raise ValueError(f"a sketch cannot be read: {error}") from error
    if sketch is None or (sketch.n, sketch.num_retained, weights.sum()) != (count, values.size, count):
        raise ValueError("a sketch does not fit the counts or the sketch size")


def sketch_contents(blob: bytes) -> tuple[Array, Array]:
    """The values of a serialized sketch, and how many each stands for; ValueError where its levels are damaged.

    The library's own iteration gives all of them the weight 1 where the lowest level is empty, as after many a merge.
    """
    if len(blob) <= SKETCH_HEADER:  # no value or one: nothing but a shorter header stands before it
        values = np.frombuffer(blob, "<f8", offset=8)
        return values, np.ones(values.size)
    levels = blob[18]
    if not 0 < levels <= MOST_LEVELS:
        raise ValueError(f"a sketch has {levels} levels")
    starts = np.frombuffer(blob, "<u4", levels, SKETCH_HEADER).astype(np.int64)
    values = np.frombuffer(blob, "<f8", offset=SKETCH_HEADER + 4 * levels)[2:]  # after the least and the greatest
    sizes = np.diff(starts, append=starts[0] + values.size)
    if (sizes < 0).any():
        raise ValueError("a sketch's levels overlap")
    return values, np.repeat(np.exp2(np.arange(levels)), sizes)


def read_sketch(blob: bytes) -> Any:
    """Deserialize a sketch of the library."""
    return require_datasketches().kll_doubles_sketch.deserialize(blob)


class Histograms:
    """Counts of each integer, for each feature: quantiles of 8- and 16-bit integers are exact."""

    kind = "uint8"
    error = 0.0

    def __init__(self, features: int) -> None:
        self.features = features
        self.offset, self.table = 0, np.zeros((features, 0), np.int64)  # column i counts the value offset + i

    def update(self, x: Tensor, valid: Tensor | None) -> None:
        """Add the rows of a (rows, features) integer tensor; values where ``valid`` is False do not count."""
        if x.numel() == 0:
            return
        columns = x.detach().cpu().T.to(torch.int64)
        low, high = int(columns.min()), int(columns.max())
        self._cover(low, high + 1)
        for feature, column in enumerate(columns):
            kept = column if valid is None else column[valid[:, feature].cpu()]
            counts = torch.bincount(kept - low, minlength=high - low + 1)
            self.table[feature, low - self.offset : high + 1 - self.offset] += counts.numpy()

    def merge(self, other: Histograms) -> None:
        """Add what another has seen."""
        if other.table.shape[1]:
            low, high = other.offset, other.offset + other.table.shape[1]
            self._cover(low, high)
            self.table[:, low - self.offset : high - self.offset] += other.table

    def _cover(self, low: int, high: int) -> None:
        """Widen the table to count the values low <= v < high."""
        if not self.table.shape[1]:
            self.offset = low
        left, right = max(self.offset - low, 0), max(high - self.offset - self.table.shape[1], 0)
        if left or right:
            self.table = np.pad(self.table, ((0, 0), (left, right)))
            self.offset -= left

    def counts(self, feature: int) -> tuple[Array, Array]:
        """The values of a feature that occurred, and how often."""
        (places,) = np.nonzero(self.table[feature])
        return (places + self.offset).astype(np.float64), self.table[feature, places].astype(np.float64)

    def to_arrays(self) -> dict[str, Array]:
        """Named arrays, which `quantiles_from_arrays` reads."""
        return {"histogram": np.ascontiguousarray(self.table), "histogram_offset": np.array([self.offset], np.int64)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], count: Array) -> Histograms:
        """Take what `to_arrays` wrote; ValueError where the parts contradict each other or the counts."""
        self = cls(count.size)
        self.table = take_array(arrays, "histogram", "i8", (count.size, None))
        self.offset = int(take_array(arrays, "histogram_offset", "i8", (1,))[0])
        low, high = COUNTED_RANGE
        if not low <= self.offset <= self.offset + self.table.shape[1] <= high:
            raise ValueError("a histogram leaves the range of 16 bits")
        if (self.table < 0).any() or (self.table.sum(1, dtype=np.float64) != count).any():
            raise ValueError("a histogram does not fit the counts")
        return self


Quantiles = Sketches | Histograms


def new_quantiles(features: int, dtype: str, k: int) -> Quantiles:
    """Histograms for 8- and 16-bit integers, sketches for every other dtype."""
    return Histograms(features) if dtype in COUNTED else Sketches(features, k)


def quantiles_from_arrays(arrays: dict[str, Array], count: Array, k: int) -> Quantiles | None:
    """Take what `to_arrays` wrote of features with so many values, or None where there are no values yet."""
    if "histogram" in arrays:
        return Histograms.from_arrays(arrays, count)
    return Sketches.from_arrays(arrays, count, k) if "sketch" in arrays or count.any() else None


def check_same_kind(a: Quantiles, b: Quantiles) -> None:
    """Raise `InvalidInputError` where an exact histogram would meet a sketch."""
    if type(a) is not type(b):
        raise InvalidInputError(
            "quantiles of 8- or 16-bit integers are counted exactly and those of other dtypes sketched, and the two do "
            "not merge; convert every batch to one dtype first, e.g. float32"
        )


def check_ranks(q: Any) -> Array:
    """The ranks asked for as a float64 array, each between 0 and 1."""
    ranks = np.asarray(q, dtype=np.float64)
    if not ((ranks >= 0) & (ranks <= 1)).all():
        raise InvalidArgumentError(f"quantile: ranks lie between 0 and 1, but got {q!r}; divide percentages by 100")
    return ranks
