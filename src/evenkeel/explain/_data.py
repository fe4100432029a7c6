r"""What an explanation is: numbered steps and checks as plain data, and the exact definition of every step.

The arithmetic is float64 on the input's values as its dtype holds them, in plain operations whose order is fixed, so
that any other program (the page's JavaScript) gets the same numbers. ``Σ`` adds from left to right, starting at 0.0.
Elements are numbered in row-major order. Elements that share statistics form a *group*; groups are numbered in
row-major order of the axes that are not shared, and the members of a group in row-major order of the shared ones.
``n`` is the number of valid members (of all, without a mask). An element that the mask leaves out counts as 0.0 in
every sum and is 0.0 in every step after ``input``; its group number is -1. A group without valid members has
mean 0, variance 1.

Shapes: *elements* has the input's shape; *groups* is a flat list, one number for each group; *parameters* has the
weight's shape. γ' is ``weight_offset + weight``, 1 where there is no weight; a missing bias is 0.

======================  ==========  =================================================================================
step                    shape       definition
======================  ==========  =================================================================================
input                   elements    x
groups                  elements    the number of each element's group (-1: masked)
unit                    elements    x / scale (image)
mean                    groups      m0 = Σx / n; r = Σ(x - m0) / n; μ = m0 + r (a given mean: μ = that, m0 = μ, r = 0)
centred                 elements    c = (x - m0) - r
variance                groups      v = Σc² / n (or given)
sample_variance         groups      Σc² / (n - 1); NaN where n < 2 or the variance is given
std                     groups      σ = √v (image: given)
sample_std              groups      √sample_variance
mean_square             groups      q = Σx² / n (rms)
rms                     groups      √q (rms)
minimum, maximum        groups      the least and the largest valid x (minmax)
range                   groups      maximum - minimum (minmax)
denominator             groups      d: inside √(u + ε), outside √u + ε, clamp max(√u, ε), where u = v, or q (rms), or
                                    sample_variance (standardize with correction=1; NaN counts as 0).
                                    standardize, minmax and image: √u, range, std; 1 where that is 0
eps_effect              groups      percent by which ε shrinks the result: 100 (1 - √u / d); NaN where d = 0
normalized              elements    x̂ = c / d; rms x / d; minmax (x - minimum) / d; image c / d; dyt tanh(s)
stretched               elements    s = α x (dyt)
scaled                  elements    w = x̂ γ'; minmax x̂ (high - low). Only with a weight, see below
output                  elements    y = w + β; minmax w + low; image and standardize x̂
upstream                elements    g, given or `default_upstream`
g_hat                   elements    ĝ = g γ'; minmax g (high - low); image and standardize g
mean_g                  groups      a = Σĝ / n (not rms, minmax, image, dyt; not with given statistics)
mean_g_xhat             groups      b = Σ(ĝ x̂) / n (likewise, and rms)
share_one               groups      percent of Σĝ² along 1: 100 (n a a) / Σĝ²; 0 where Σĝ² = 0
share_xhat              groups      percent of Σĝ² along x̂: 100 ((n b)(n b) / Σx̂²) / Σĝ²; 0 where Σx̂² or Σĝ² = 0
share_kept              groups      (100 - share_one) - share_xhat
projected               elements    p = (ĝ - a) - x̂ (k b); rms ĝ - x̂ (k b). k: inside 1, outside d / σ (0 where σ = 0),
                                    clamp 1 where σ > 0 and σ ≥ ε, else 0; times n / (n - 1) with correction=1.
                                    σ is √u
sum_at_max              groups      Σ(ĝ x̂) (minmax)
sum_at_min              groups      Σ(ĝ (1 - x̂)) (minmax)
slope                   elements    1 - x̂ x̂ (dyt)
dx                      elements    p / d; given statistics ĝ / d; image (ĝ / d) / scale; dyt (ĝ slope) α;
                                    minmax ĝ / d, then - sum_at_max / d at the first maximum, then - sum_at_min / d at
                                    the first minimum (where the range is 0: ĝ / d minus Σĝ / d at the first minimum)
dalpha                  scalar      [Σ((ĝ slope) x)] (dyt)
dweight                 parameters  Σ(g x̂) over the elements each weight multiplies, in row-major order
dbias                   parameters  Σg over the elements each bias is added to (not rms)
finite_difference       (k, 3)      rows [flat index, dx, numeric] for at most 16 valid members of the shown group (2
                                    where n > 100 000), at positions floor(i n / k) of them. h = d / 2¹⁷ (dyt: 1 / 2¹⁷,
                                    image: d scale / 2¹⁷); x⁺ = x + h, x⁻ = x - h, numeric
                                    = Σ(g (y⁺ - y⁻)) / (x⁺ - x⁻) over the group. Differencing magnifies the last bit:
                                    two programs agree here to about 1e-6 of the largest entry only
======================  ==========  =================================================================================

Layer-, Batch-, Instance-, GroupNorm and standardize: input, groups, mean, centred, variance, sample_variance, std,
sample_std, denominator, eps_effect, normalized, [scaled], output. RMSNorm: input, groups, mean_square, rms,
denominator, eps_effect, normalized, [scaled], output. minmax: input, groups, minimum, maximum, range, denominator,
normalized, [scaled], output. image: input, groups, unit, mean, centred, std, denominator, normalized, output (mean is
given: centred = unit - mean). dyt: input, stretched, normalized, [scaled], output. standardize has no eps_effect.
The backward steps follow in the order of the table.

``Explanation.options`` has these keys, always all of them; None where the norm has no such option:

* ``shape``, ``dtype``: of the input. ``shared``: the axes over which statistics are taken (GroupNorm: the positions;
  the channels of a group share too). ``parameter_axes``: the axes of the input that weight and bias have.
  ``sample_axis``, ``channel_axis``: of Batch-, Instance- and GroupNorm and of images. ``num_groups``: of GroupNorm;
  the group of an element is sample · num_groups + floor(channel / (channels / num_groups)).
* ``eps``, ``eps_mode``, ``weight_offset``, ``correction`` (0 or 1), ``feature_range`` [low, high], ``scale``,
  ``alpha``.
* ``weight``, ``bias``: nested lists of the parameters' shape, or None. ``mask``: nested lists of 0 and 1 of the input's
  shape, or None. ``mean``, ``variance``, ``std``: the given statistics, a number for each group, or None.
* ``backward``: whether the backward steps are there. ``upstream``: nested lists of the input's shape, or None for
  `default_upstream`.

Without a weight, γ' is 1 (weight_offset has no effect), and there is a step ``scaled`` exactly where ``weight`` is
given (minmax: where high - low is not 1). dweight and dbias exist for layer, rms (dweight only), batch, instance,
group and dyt, as if weight and bias were there, also where they are None.

In JSON, numbers that JSON lacks are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenkeel._display import Displayed
from evenkeel._errors import InvalidInputError

__all__ = ["Check", "Explanation", "Step", "default_upstream"]

ENDS = 3  # how many numbers of a shortened list are kept at its front and at its back


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    r"""One numbered step of an explanation.

    Attributes:
        id: the step's name; `evenkeel.explain` documents what each computes.
        title: a heading.
        formula: LaTeX, in symbols.
        substituted: the same in LaTeX with the numbers of the group that is shown.
        value: float64, of the input's shape, or one number for each group, or of the weight's shape.
        meaning: what the step says, in words.

    Example:
        >>> import evenkeel as ek
        >>> ek.explain.walk([1.0, 2.0, 3.0, 4.0], "layer").step("mean").value.tolist()
        [2.5]
    """

    id: str
    title: str
    formula: str
    substituted: str
    value: np.ndarray
    meaning: str

    def to_dict(self, *, limit: int | None = None) -> dict[str, Any]:
        """The step as JSON-ready data.

        Args:
            limit: a value with more numbers than this is given by its shape, its extremes and its two ends.

        Returns:
            The attributes by name.
        """
        words = {"id": self.id, "title": self.title, "formula": self.formula, "substituted": self.substituted}
        return words | {"value": plain(self.value, limit=limit), "meaning": self.meaning}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One fact that has to hold if the steps are right.

    Attributes:
        id: the check's name.
        title: what is compared.
        value: what was measured.
        expected: what it should be.
        passed: whether it is.
        note: the tolerance and the reason, in words.

    Example:
        >>> import evenkeel as ek
        >>> all(check.passed for check in ek.explain.walk([1.0, 2.0], "rms").checks)
        True
    """

    id: str
    title: str
    value: float
    expected: float
    passed: bool
    note: str

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON-ready data."""
        numbers = {"value": plain_number(self.value), "expected": plain_number(self.expected)}
        return {"id": self.id, "title": self.title, **numbers, "passed": bool(self.passed), "note": self.note}


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation(Displayed):
    """Every step of one normalization on given numbers: what `evenkeel.explain.walk` returns.

    Attributes:
        norm: the norm's key, such as ``layer``.
        title: the norm's name and the input's shape, in words.
        options: everything that decides the result, resolved and JSON-ready: ``walk`` with these and the input
            repeats it.
        shown: the group whose numbers the substituted formulas carry.
        steps: the steps in order, the backward ones last.
        checks: what has to hold if they are right.
        notes: what is special about this input (a constant group, NaN, a single element), in words.

    Example:
        >>> import evenkeel as ek
        >>> explanation = ek.explain.walk([1.0, 2.0, 3.0, 4.0], "layer")
        >>> explanation.step("output").value.round(6).tolist()
        [-1.341635, -0.447212, 0.447212, 1.341635]
        >>> ek.explain.Explanation.from_dict(explanation.to_dict()).to_dict() == explanation.to_dict()
        True
    """

    norm: str
    title: str
    options: dict[str, Any]
    shown: int
    steps: tuple[Step, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = field(default=())
    views = "evenkeel.explain._views"

    def __repr__(self) -> str:
        failed = sum(not check.passed for check in self.checks)
        checks = f"{failed} checks failed" if failed else f"{len(self.checks)} checks passed"
        return f"Explanation({self.title!r}, {len(self.steps)} steps, {checks})"

    def step(self, id: str) -> Step:  # noqa: A002 - the field's name
        """The step of that id.

        Args:
            id: one of the ids of `steps`.

        Returns:
            The step.

        Raises:
            KeyError: this explanation has no such step.
        """
        for step in self.steps:
            if step.id == id:
                return step
        raise KeyError(id)

    def has_step(self, id: str) -> bool:  # noqa: A002 - the field's name
        """Whether there is a step of that id."""
        return any(step.id == id for step in self.steps)

    def to_dict(self, *, limit: int | None = None) -> dict[str, Any]:
        """The explanation as JSON-ready data.

        Args:
            limit: values with more numbers than this are given by their shape, extremes and two ends.

        Returns:
            Strings, numbers, None, lists and dictionaries only.
        """
        return {
            "norm": self.norm,
            "title": self.title,
            "options": {name: shorten_option(value, limit) for name, value in self.options.items()},
            "shown": self.shown,
            "steps": [step.to_dict(limit=limit) for step in self.steps],
            "checks": [check.to_dict() for check in self.checks],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Explanation:
        """Read an explanation from the data that `to_dict` returned.

        Args:
            data: what `to_dict` returned, also after a way through JSON.

        Returns:
            The explanation.

        Raises:
            InvalidInputError: the data is not an explanation, or its values were shortened.
        """
        from msgspec import convert

        from evenkeel.explain._schemas import ExplanationData

        try:
            convert(data, ExplanationData)
            steps = tuple(Step(**step | {"value": parse(step["value"])}) for step in data["steps"])
            checks = tuple(
                Check(**c | {"value": float(c["value"]), "expected": float(c["expected"])}) for c in data["checks"]
            )
            words = {name: data[name] for name in ("norm", "title", "options", "shown")}
            explanation = cls(**words, steps=steps, checks=checks, notes=tuple(data["notes"]))
            if list(explanation.step("input").value.shape) != explanation.options["shape"]:
                raise ValueError(f"the input has another shape than {explanation.options['shape']}")
            if not all(step.value.size for step in steps):
                raise ValueError("a step has no value")
            return explanation
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"this is not the data of a whole explanation ({' '.join(str(error).split())[:300]}); "
                "write it with --format json --full or Explanation.to_dict()"
            ) from error


def default_upstream(shape: tuple[int, ...]) -> np.ndarray:
    """The upstream gradient where none is given: fixed pseudo-random hundredths in [-1, 1).

    Element i (from 0) hashes i + 1 in 32-bit unsigned arithmetic: h = (i + 1) · 2654435761; h ^= h >> 16;
    h *= 2246822519; h ^= h >> 13; the value is (floor(h · 200 / 2³²) - 100) / 100.

    Args:
        shape: the input's shape.

    Returns:
        float64 of that shape.

    Example:
        >>> default_upstream((4,)).tolist()
        [0.61, 0.64, 0.72, -0.66]
    """
    h = np.arange(1, math.prod(shape) + 1, dtype=np.uint32) * np.uint32(2654435761)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(2246822519)
    h = h ^ (h >> np.uint32(13))
    return ((h.astype(np.float64) * 200 // 2**32 - 100) / 100).reshape(shape)


def plain_number(value: float | None) -> float | str | None:
    """Return a number, or the string for NaN and infinities, which JSON lacks."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: np.ndarray, *, limit: int | None = None) -> Any:
    """Return an array as nested lists for JSON; beyond ``limit`` numbers its shape, extremes and ends."""
    if limit is not None and value.size > limit:
        flat = value.reshape(-1)
        finite = flat[np.isfinite(flat)]
        extremes = (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
        return {
            "shape": list(value.shape),
            "first": plain(flat[:ENDS]),
            "last": plain(flat[-ENDS:]),
            "minimum": plain_number(extremes[0]),
            "maximum": plain_number(extremes[1]),
            "omitted": int(flat.size - 2 * ENDS),
        }
    return value.tolist() if np.isfinite(value).all() else spell(value.tolist())


def spell(nested: Any) -> Any:
    """Replace the numbers that JSON lacks by strings."""
    return [spell(item) for item in nested] if isinstance(nested, list) else plain_number(nested)


def parse(nested: Any) -> np.ndarray:
    """Return the array of a nested list that `plain` wrote."""
    return np.array(nested, dtype=np.float64)  # numpy reads "NaN" and "Infinity"


def shorten_option(value: Any, limit: int | None) -> Any:
    """Return an option, long lists shortened as a step's value is."""
    if limit is None or not isinstance(value, list):
        return value
    array = parse(value)
    return value if array.size <= limit else plain(array, limit=limit)
