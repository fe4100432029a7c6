"""The norms that can be explained: the rows of `assets/explain.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from evenkeel._options.axes import Axes
from evenkeel._options.names import check_choice
from evenkeel._spec import NormSpec
from evenkeel.explain._words import NORM_ROWS

__all__ = ["NORMS", "Norm", "find_norm", "norm_of"]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """One norm: what `walk` needs to know of it.

    Attributes:
        key: its name in `walk` and on the command line.
        name: its name in prose.
        family: which formulas it follows: moments, rms, minmax, image or dyt.
        spec: the norm with its default options.
        axes: which axes share.
        options: the keywords of `walk` that it takes, besides those that every norm takes.
        defaults: the values of options that are not given and not in the spec.
        shared_by: which elements share statistics, in words.
        result: what the output means.
    """

    key: str
    name: str
    family: str
    spec: NormSpec
    axes: Axes
    options: tuple[str, ...]
    defaults: dict[str, Any] = field(default_factory=dict)
    shared_by: str
    result: str


def read_norm(key: str, row: dict[str, Any]) -> Norm:
    """Read one row of the file; its spec has a weight or bias where its options name one."""
    options = tuple(row["options"])
    spec = NormSpec(**row["spec"], weight="weight" in options, bias="bias" in options)
    return Norm(**row | {"key": key, "options": options, "spec": spec, "axes": Axes(**row["axes"])})


NORMS: tuple[Norm, ...] = tuple(read_norm(key, row) for key, row in NORM_ROWS.items())


def find_norm(key: str) -> Norm:
    """Return the norm of that key."""
    check_choice("explain: norm", key, NORM_ROWS)
    return next(norm for norm in NORMS if norm.key == key)


def norm_of(spec: NormSpec) -> Norm:
    """Return the norm with a spec's statistic and shares."""
    return next(n for n in NORMS if (n.spec.statistic, n.spec.shares) == (spec.statistic, spec.shares))
