"""The input contract: what data looked like when statistics were fitted, and whether other data looks like it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np

from evenkeel._errors import ContractError, InvalidArgumentError
from evenkeel._options.names import OnMismatch
from evenkeel.data._arrays import as_tensor, column_names, dtype_name, ordered_columns
from evenkeel.data.statistics import Statistics

Constant = Literal["one", "zero", "raise"]
# Factors between units that are commonly confused: 8- and 16-bit images scaled to [0, 1], percentages, thousands.
FACTORS = (255.0, 256.0, 65535.0, 32768.0, 100.0, 1000.0)
# How far values may leave the range seen, in ranges: no sample of the same data leaves it so far by chance, unless the
# fit saw next to nothing.
MARGIN = 1.0
LARGEST = 2.0**1000


class ContractWarning(UserWarning):
    """Data does not look like the data the statistics were fitted on, and ``on_mismatch="warn"``."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The look of data that statistics were computed of: the conditions under which they may be applied.

    Attributes:
        features: the number of features.
        names: their names in their order, or None.
        dtypes: the dtypes seen.
        minimum: (features,) least values seen.
        maximum: (features,) greatest values seen.
        mean: (features,) means.
        std: (features,) population deviations.
        rows: the number of rows seen.
        ddof: what was subtracted from the count in the variance.
        units: one for all features, or one for each name.
        layout: ``HWC`` or ``CHW`` for images.
        channel_order: ``RGB`` or another for images.
        source: a fingerprint or description of the data, any JSON value.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import Contract, Statistics
        >>> contract = Contract.from_statistics(Statistics().update(np.arange(512.0).reshape(-1, 2)))
        >>> contract.problems(np.arange(512.0).reshape(-1, 2) / 255)
        ['the values look divided by 255, which those of the fit were not; scale them as there']
    """

    features: int
    names: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] = ()
    minimum: tuple[float, ...] = ()
    maximum: tuple[float, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    rows: int = 0
    ddof: float = 0
    units: Mapping[str, str] | str | None = None
    layout: str | None = None
    channel_order: str | None = None
    source: Any = None

    @classmethod
    def from_statistics(cls, statistics: Statistics, **notes: Any) -> Self:
        """The contract of the data that statistics have seen.

        Args:
            statistics: of a table's columns or of channels.
            **notes: the attributes that statistics do not know: ddof, units, layout, channel_order, source.
        """
        return cls(
            features=statistics.count.size,
            names=statistics.names,
            dtypes=statistics.dtypes,
            rows=statistics.rows,
            minimum=tuple(statistics.minimum.tolist()),
            maximum=tuple(statistics.maximum.tolist()),
            mean=tuple(statistics.mean.tolist()),
            std=tuple(statistics.std().tolist()),
            **notes,
        )

    def annotated(self, **notes: Any) -> Self:
        """A copy with other notes: units, source, layout, channel_order."""
        return dataclasses.replace(self, **notes)

    def problems(self, batch: Any, *, names: bool = True) -> list[str]:
        """The contradictions between a batch and this contract, in words; an empty list if there are none.

        Args:
            batch: an array, tensor or frame whose last axis holds the features.
            names: whether a frame's column names and their order are looked at.
        """
        problems = self._column_problems(batch) if names else []
        if not problems and self.names is not None and names:
            batch = ordered_columns(batch, self.names)
        x = as_tensor(batch)
        if x.ndim == 0 or x.shape[-1] != self.features:
            return problems or [f"expected {self.features} features, but the batch has the shape {tuple(x.shape)}"]
        problems += self._dtype_problems(dtype_name(batch))
        if problems or not x.numel() or not self.rows:
            return problems
        return self._value_problems(Statistics().update(x.reshape(-1, self.features)))

    def check(self, batch: Any, *, on_mismatch: OnMismatch = "raise") -> None:
        """Look for `problems` and report them.

        Args:
            batch: an array, tensor or frame whose last axis holds the features.
            on_mismatch: ``raise`` a `ContractError`, ``warn`` with a `ContractWarning`, or ``ignore``.

        Raises:
            ContractError: the batch contradicts the contract.
        """
        if on_mismatch != "ignore":
            report(self.problems(batch), on_mismatch)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    def _column_problems(self, batch: Any) -> list[str]:
        names = column_names(batch)
        if names is None or self.names is None or names == list(self.names):
            return []
        missing = [name for name in self.names if name not in names]
        extra = [name for name in names if name not in self.names]
        if missing:
            return [f"the columns {', '.join(missing)} are missing; the table has {', '.join(names)}"]
        if extra:
            return [f"the columns {', '.join(extra)} were not there before; select {', '.join(self.names)}"]
        return [f"the columns come in another order: expected {', '.join(self.names)}, but got {', '.join(names)}"]

    def _dtype_problems(self, dtype: str) -> list[str]:
        """Floats may stand for anything (the values decide); integers must hold every value of those seen."""
        if not self.dtypes or dtype in self.dtypes or np.dtype(_spelled(dtype)).kind == "f":
            return []
        if any(_holds(seen, dtype) for seen in self.dtypes):
            return []
        seen = " or ".join(self.dtypes)
        return [
            f"expected values of dtype {seen}, but got {dtype}, which cannot hold them; read or convert them as {seen}"
        ]

    def _value_problems(self, batch: Statistics) -> list[str]:
        """A factor between the units, or values far outside the range seen."""
        factor = self._factor(batch)
        if factor is not None:
            return [f"the values look {scaling_of(factor)}, which those of the fit were not; scale them as there"]
        low, high = np.array(self.minimum), np.array(self.maximum)
        known = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(known, low, -np.inf), np.where(known, high, np.inf)
        with np.errstate(over="ignore"):
            margin = MARGIN * np.maximum(high - low, np.maximum(np.abs(low), np.abs(high)) * 1e-6)
            outside = np.flatnonzero((batch.maximum > high + margin) | (batch.minimum < low - margin))
        if not outside.size:
            return []
        first = int(outside[0])
        label = repr(self.names[first]) if self.names else str(first)
        return [
            f"{outside.size} of {self.features} features leave the range seen by more than the range itself: feature "
            f"{label} ranges from {batch.minimum[first]:.6g} to {batch.maximum[first]:.6g}, seen were {low[first]:.6g} "
            f"to {high[first]:.6g}; check the units"
        ]

    def _factor(self, batch: Statistics) -> float | None:
        """The factor by which every feature differs, where the batch contradicts 1 and fits that factor."""
        mean, std, rows = np.array(self.mean), np.array(self.std), batch.count
        spread = (std > 0) & (rows > 0) & np.isfinite(std)
        if not spread.any():
            return None
        mean, std, rows, new_mean, new_std = (part[spread] for part in (mean, std, rows, batch.mean, batch.std()))
        if np.abs([mean, new_mean, std, new_std]).max() > LARGEST:  # a factor times these would overflow
            mean, std, new_mean, new_std = (part / 2**40 for part in (mean, std, new_mean, new_std))
        if not (np.abs(new_mean - mean) > 5 * std / np.sqrt(rows)).all():
            return None
        for factor in (*FACTORS, *(1 / number for number in FACTORS)):
            near = np.abs(new_mean - factor * mean) <= 3 * factor * std
            alike = (new_std <= 3 * factor * std) & (factor * std <= 3 * new_std)
            if near.all() and (alike | (rows < 3)).all():
                return factor
        return None


def check_on_mismatch(on_mismatch: str) -> None:
    """Raise `InvalidArgumentError` unless an option has one of its values."""
    if on_mismatch not in get_args(OnMismatch):
        raise InvalidArgumentError(f"on_mismatch must be raise, warn or ignore, but got {on_mismatch!r}")


def report(problems: list[str], on_mismatch: OnMismatch) -> None:
    """Raise or warn about problems, if there are any."""
    check_on_mismatch(on_mismatch)
    if not problems or on_mismatch == "ignore":
        return
    text = f"the data is not like that of the fit: {'; '.join(problems)}"
    if on_mismatch == "raise":
        raise ContractError(f'{text} (or pass on_mismatch="warn" or "ignore")')
    warnings.warn(text, ContractWarning, stacklevel=4)


def scaling_of(factor: float) -> str:
    """A change of scale by a factor, in words."""
    return f"multiplied by {factor:g}" if factor > 1 else f"divided by {1 / factor:g}"


def _spelled(dtype: str) -> str:
    """A dtype that every NumPy knows, for a float that not every NumPy does."""
    return "float32" if dtype.startswith(("bfloat", "float8", "float96", "float128")) else dtype


def _holds(seen: str, dtype: str) -> bool:
    """Whether an integer dtype holds what was seen: wider ones do; of floats seen, only 32 bits and more may come."""
    old, new = np.dtype(_spelled(seen)), np.dtype(_spelled(dtype))
    return new.itemsize >= 4 if old.kind == "f" else bool(np.can_cast(old, new))
