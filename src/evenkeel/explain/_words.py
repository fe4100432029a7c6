"""What each forward step says: title, formula, the formula with numbers, and its meaning."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from evenkeel.explain._view import View, latex_list, latex_number, short

__all__ = ["FORWARD", "Words"]


class Words(NamedTuple):
    """How one step is told.

    Attributes:
        title: the heading.
        formula: LaTeX in symbols, given the view.
        substituted: LaTeX with numbers.
        meaning: prose.
    """

    title: str
    formula: Callable[[View], str]
    substituted: Callable[[View], str]
    meaning: Callable[[View], str]


def always(text: str) -> Callable[[View], str]:
    """The same text for every view."""
    return lambda _: text


def describe_input(v: View) -> str:
    """What the input is."""
    shape = " × ".join(str(n) for n in v.setup.x.shape)
    kind = str(v.setup.tensor.dtype).removeprefix("torch.")
    masked = int((~v.setup.valid).sum())
    left_out = f" The mask leaves out {masked:,} of them: they count nowhere and become 0." if masked else ""
    return f"{v.setup.x.size:,} numbers of shape {shape}, as {kind} holds them.{left_out}"


def describe_groups(v: View) -> str:
    """Who shares."""
    shown = f" The formulas show group {v.group} (counted from 0)." if v.groups > 1 else ""
    return f"Statistics are shared by {v.setup.norm.shares}. {v.groups:,} group{'s' * (v.groups > 1)}.{shown}"


def describe_mean(v: View) -> str:
    """Where the centre is."""
    if v.setup.given:
        return "A remembered constant, not computed from these numbers."
    return "The balance point of the group: the differences from it add up to 0."


def describe_variance(v: View) -> str:
    """What variance is, and where it is none."""
    if v.setup.given:
        return "A remembered constant, not computed from these numbers."
    if v.value("variance") == 0:
        return "Every element of the group is the same: there is no spread, and ε (if any) decides the result."
    return "The mean squared distance from the mean, divided by n: what every norm layer uses."


def describe_std(v: View) -> str:
    """The deviation against the mean distance, with which it is often confused."""
    if v.setup.norm.family == "image" or v.setup.given:
        return "A remembered constant, computed on a data set."
    distance = float(np.abs(v.values["centred"]).mean()) if v.n else math.nan
    if not math.isfinite(distance):
        return "Not finite: see the notes."
    return f"The root of the mean squared distance, not the mean distance, which is {distance:.6g} here."


def describe_sample_std(v: View) -> str:
    """Both deviations side by side."""
    if math.isnan(v.value("sample_std")):
        if v.n > 1 and not v.setup.given:
            return "Not finite: see the notes."
        return "The sample deviation is not defined here: it needs at least two elements, whose statistics are taken."
    used = "This one is used here." if v.setup.correction else "The norm uses the population one."
    ratio = v.value("sample_std") / v.value("std") if v.value("std") else 1.0
    return f"Population {v.value('std'):.6g}, sample {v.value('sample_std'):.6g}: a factor of {ratio:.6g}. {used}"


def square_symbol(v: View) -> tuple[str, str, str]:
    """The symbol of the squared statistic, its step, and the symbol of its root."""
    if v.setup.norm.family == "rms":
        return "q", "mean_square", r"\mathrm{rms}"
    return ("s^2", "sample_variance", "s") if v.setup.correction else (r"\sigma^2", "variance", r"\sigma")


def denominator_formula(v: View) -> str:
    """How the divisor comes about."""
    if v.setup.norm.family in ("minmax", "image"):
        return r"d = \max - \min" if v.setup.norm.family == "minmax" else r"d = \sigma"
    square, _, root = square_symbol(v)
    if "eps" not in v.setup.norm.options:
        return f"d = {root}"
    return {
        "inside": rf"d = \sqrt{{{square} + \epsilon}}",
        "outside": rf"d = {root} + \epsilon",
        "clamp": rf"d = \max({root}, \epsilon)",
    }[v.setup.eps_mode]


def denominator_numbers(v: View) -> str:
    """The divisor with numbers."""
    result = v.num("denominator")
    if v.setup.norm.family in ("minmax", "image") or "eps" not in v.setup.norm.options:
        return f"d = {result}"
    _, step, _ = square_symbol(v)
    root, eps = latex_number(math.sqrt(v.value(step))) if v.value(step) >= 0 else r"\text{NaN}", v.setup.eps
    return {
        "inside": rf"d = \sqrt{{{v.num(step)} + {latex_number(eps)}}} = {result}",
        "outside": rf"d = {root} + {latex_number(eps)} = {result}",
        "clamp": rf"d = \max({root}, {latex_number(eps)}) = {result}",
    }[v.setup.eps_mode]


def describe_denominator(v: View) -> str:
    """Where ε enters, and what a divisor of 0 means."""
    if v.value("denominator") == 0:
        return "The divisor is 0: the result is 0/0, not a number. An ε above 0 prevents that."
    if "eps" not in v.setup.norm.options:
        step = {"minmax": "range"}.get(v.setup.norm.family, "std")
        constant = "The group is constant: it is divided by 1, so that it becomes 0 rather than noise. "
        return (constant if v.value(step) == 0 else "") + "What every difference is divided by."
    where = {
        "inside": "added to the square, under the root: torch, BatchNorm, most language models",
        "outside": "added to the root: the code of RMSNorm's authors and several texts",
        "clamp": "a floor under the root: the style of F.normalize",
    }
    return f"ε = {short(v.setup.eps)} is {where[v.setup.eps_mode]}. It keeps the division finite."


def describe_eps(v: View) -> str:
    """How much ε matters here."""
    effect = v.value("eps_effect")
    if math.isnan(effect):
        return "Without ε and without spread there is nothing to compare."
    if effect == 100.0:
        return "The group has no spread: ε alone decides the divisor, and the result is 0 whatever its size."
    if effect >= 1.0:
        return f"ε shrinks the result by {effect:.3g} %: it is not small against the spread: where it enters matters."
    return f"ε shrinks the result by {effect:.3g} % against no ε at all."


def numerator(v: View) -> tuple[str, str]:
    """The symbol and the step that is divided."""
    family = v.setup.norm.family
    return {"rms": ("x", "input"), "minmax": (r"(x - \min)", "input")}.get(family, ("c", "centred"))


def normalized_formula(v: View) -> str:
    """The quotient in symbols."""
    if v.setup.norm.family == "dyt":
        return r"\hat{x} = \tanh(s)"
    return rf"\hat{{x}} = \frac{{{numerator(v)[0].strip('()')}}}{{d}}"


def normalized_numbers(v: View) -> str:
    """The quotient with numbers."""
    if v.setup.norm.family == "dyt":
        return rf"\hat{{x}} = \tanh({v.vec('stretched')}) = {v.vec('normalized')}"
    top = v.vec(numerator(v)[1])
    if v.setup.norm.family == "minmax":
        top = f"{top} - {v.signed('minimum')}"
    return rf"\hat{{x}} = \frac{{{top}}}{{{v.num('denominator')}}} = {v.vec('normalized')}"


def describe_normalized(v: View) -> str:
    """What the quotient is like."""
    family, xhat = v.setup.norm.family, v.values["normalized"]
    if not v.n or not np.isfinite(xhat).all():
        return "Not finite: see the notes on what the non-finite inputs, or the missing spread, do."
    if family == "minmax":
        return "0 for the least value, 1 for the largest."
    if family == "dyt":
        return f"Between -1 and 1; the largest magnitude here is {np.abs(xhat).max():.6g}."
    mean, std = float(xhat.mean()), float(xhat.std())
    if family == "rms":
        return f"Root mean square {math.sqrt(float(np.square(xhat).mean())):.6g}; the mean is {mean:.6g}, not removed."
    if v.setup.given:
        return f"With given statistics: mean {mean:.6g}, deviation {std:.6g}, not 0 and 1 in general."
    bound = math.sqrt(max(0, v.n - 1))
    return f"Mean {mean:.2g}, deviation {std:.6g}. No magnitude can exceed √(n − 1) = {bound:.6g}."


def scaled_formula(v: View) -> str:
    """The weight's part in symbols."""
    if v.setup.norm.family == "minmax":
        return r"w = \hat{x} (b - a)"
    if v.setup.weight_offset:
        return rf"w = \hat{{x}} ({latex_number(v.setup.weight_offset)} + \gamma)"
    return r"w = \hat{x} \gamma"


def scaled_numbers(v: View) -> str:
    """The weight's part with numbers."""
    if v.setup.norm.family == "minmax":
        factor = latex_number(v.setup.high - v.setup.low)
    else:
        factor = latex_list(v.values["gamma"])
    return rf"w = {v.vec('normalized')} \cdot {factor} = {v.vec('scaled')}"


def output_formula(v: View) -> str:
    """The shift in symbols."""
    start = "w" if "scaled" in v.values else r"\hat{x}"
    shift = r" + \beta" if v.setup.beta is not None else " + a" if v.setup.norm.family == "minmax" else ""
    return f"y = {start}{shift}"


def output_numbers(v: View) -> str:
    """The shift with numbers."""
    result = v.vec("output")
    start = v.vec("scaled") if "scaled" in v.values else v.vec("normalized")
    if v.setup.beta is not None:
        return f"y = {start} + {latex_list(v.values['beta'])} = {result}"
    if v.setup.norm.family == "minmax":
        return f"y = {start} + {latex_number(v.setup.low)} = {result}"
    return f"y = {result}"


def describe_output(v: View) -> str:
    """The result, and the claim of this norm that is most often told wrongly."""
    plain = v.setup.gamma is None and v.setup.beta is None and "weight" in v.setup.norm.options
    start = "Without weight and bias (γ' = 1, β = 0, as at the start of training) only this last part is the identity. "
    return (start if plain else "") + v.setup.norm.result


FORWARD: dict[str, Words] = {
    "input": Words("The input", always("x"), lambda v: f"x = {v.vec('input')}", describe_input),
    "groups": Words(
        "Who shares statistics", always(r"n = \text{elements that share}"), lambda v: f"n = {v.n}", describe_groups
    ),
    "unit": Words(
        "To the range 0 to 1",
        always(r"u = \frac{x}{\mathrm{scale}}"),
        lambda v: rf"u = \frac{{{v.vec('input')}}}{{{latex_number(v.setup.scale)}}} = {v.vec('unit')}",
        always("The constants belong to colours between 0 and 1; scaling twice or not at all is the usual mistake."),
    ),
    "mean": Words(
        "Mean",
        lambda v: r"\mu" if v.setup.given else r"\mu = \frac{1}{n} \sum_i x_i",
        lambda v: (
            rf"\mu = {v.num('mean')}"
            if v.setup.given
            else rf"\mu = \frac{{{v.plain_sum('input')}}}{{{v.n}}} = {v.num('mean')}"
        ),
        describe_mean,
    ),
    "centred": Words(
        "Subtract the mean",
        lambda v: r"c = u - \mu" if v.setup.norm.family == "image" else r"c = x - \mu",
        lambda v: (
            f"c = {v.vec('unit' if v.setup.norm.family == 'image' else 'input')} - {v.signed('mean')} "
            f"= {v.vec('centred')}"
        ),
        always("Every element's distance from the mean, with its sign."),
    ),
    "variance": Words(
        "Variance",
        lambda v: r"\sigma^2" if v.setup.given else r"\sigma^2 = \frac{1}{n} \sum_i c_i^2",
        lambda v: (
            rf"\sigma^2 = {v.num('variance')}"
            if v.setup.given
            else rf"\sigma^2 = \frac{{{v.square_sum('centred')}}}{{{v.n}}} = {v.num('variance')}"
        ),
        describe_variance,
    ),
    "sample_variance": Words(
        "Sample variance, for comparison",
        always(r"s^2 = \frac{1}{n - 1} \sum_i c_i^2"),
        lambda v: (
            rf"s^2 = \frac{{{v.square_sum('centred')}}}{{{v.n} - 1}} = {v.num('sample_variance')}"
            if v.n > 1 and not v.setup.given
            else rf"s^2 = {v.num('sample_variance')}"
        ),
        always("Divided by n - 1, it estimates the variance of what the numbers were drawn from, without bias."),
    ),
    "std": Words(
        "Standard deviation",
        always(r"\sigma = \sqrt{\sigma^2}"),
        lambda v: (
            rf"\sigma = \sqrt{{{v.num('variance')}}} = {v.num('std')}"
            if "variance" in v.values
            else rf"\sigma = {v.num('std')}"
        ),
        describe_std,
    ),
    "sample_std": Words(
        "Population and sample deviation side by side",
        always(r"s = \sqrt{s^2}"),
        lambda v: rf"\sigma = {v.num('std')}, \quad s = {v.num('sample_std')}",
        describe_sample_std,
    ),
    "mean_square": Words(
        "Mean square",
        always(r"q = \frac{1}{n} \sum_i x_i^2"),
        lambda v: rf"q = \frac{{{v.square_sum('input')}}}{{{v.n}}} = {v.num('mean_square')}",
        always("No mean is subtracted: the distance is taken from 0."),
    ),
    "rms": Words(
        "Root mean square",
        always(r"\mathrm{rms} = \sqrt{q}"),
        lambda v: rf"\mathrm{{rms}} = \sqrt{{{v.num('mean_square')}}} = {v.num('rms')}",
        always("The typical size of an element. It equals the deviation where the mean is 0."),
    ),
    "minimum": Words(
        "Minimum", always(r"\min_i x_i"), lambda v: rf"\min = {v.num('minimum')}", always("The least value.")
    ),
    "maximum": Words(
        "Maximum", always(r"\max_i x_i"), lambda v: rf"\max = {v.num('maximum')}", always("The largest value.")
    ),
    "range": Words(
        "Range",
        always(r"\max - \min"),
        lambda v: rf"{v.num('maximum')} - {v.signed('minimum')} = {v.num('range')}",
        always("Two values decide everything; a single outlier moves it."),
    ),
    "denominator": Words("The divisor", denominator_formula, denominator_numbers, describe_denominator),
    "eps_effect": Words(
        "What ε changes, in percent",
        lambda v: rf"100 \left(1 - \frac{{{square_symbol(v)[2]}}}{{d}}\right)",
        lambda v: rf"{v.num('eps_effect')}\,\%",
        describe_eps,
    ),
    "stretched": Words(
        "Stretch",
        always(r"s = \alpha x"),
        lambda v: rf"s = {latex_number(v.setup.alpha)} \cdot {v.vec('input')} = {v.vec('stretched')}",
        always("α, one learned number, sets where the tanh begins to saturate."),
    ),
    "normalized": Words("Normalize", normalized_formula, normalized_numbers, describe_normalized),
    "scaled": Words(
        "Scale", scaled_formula, scaled_numbers, always("The learned scale (or the width of the range asked for).")
    ),
    "output": Words("The output", output_formula, output_numbers, describe_output),
}
