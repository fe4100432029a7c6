"""What each backward step says."""

from __future__ import annotations

from evenkeel.explain._view import View, latex_list, latex_number
from evenkeel.explain._words import Words, always

__all__ = ["BACKWARD"]


def describe_upstream(v: View) -> str:
    """Where the upstream gradient comes from."""
    return (
        "How the loss changes with each output: ∂L/∂y. None was given, so these are fixed pseudo-random numbers; any "
        "other gradient of yours can take their place."
        if "default_upstream" in v.values
        else "How the loss changes with each output, ∂L/∂y, as given."
    )


def projected_formula(v: View) -> str:
    """The projection in symbols."""
    factor = "" if v.setup.eps_mode == "inside" and not v.setup.correction else "k "
    if v.setup.norm.family == "rms":
        return rf"p = \hat{{g}} - \hat{{x}} \, {factor}b"
    return rf"p = \hat{{g}} - a - \hat{{x}} \, {factor}b"


def projected_numbers(v: View) -> str:
    """The projection with numbers."""
    mean = "" if v.setup.norm.family == "rms" else f" - {v.signed('mean_g')}"
    factor = latex_number(v.value("factor"))
    times = "" if factor == "1" else rf"{factor} \cdot "
    return (
        rf"p = {v.vec('g_hat')}{mean} - {v.vec('normalized')} \cdot {times}{v.signed('mean_g_xhat')} "
        f"= {v.vec('projected')}"
    )


def describe_projected(v: View) -> str:
    """Which directions go."""
    if v.setup.norm.family == "rms":
        return "Growing all elements in proportion does not change the output, so the direction of x̂ is removed."
    return (
        "Moving all elements alike, or stretching them, does not change the output (up to ε): both directions, 1 and "
        "x̂, are removed from the gradient."
    )


def describe_kept(v: View) -> str:
    """The shares in words."""
    along, kept = f"{v.value('share_xhat'):.4g} % along x̂", f"{v.value('share_kept'):.4g} % remain"
    if "share_one" not in v.values:
        return f"Of the squared length of ĝ: {along}, {kept}."
    one = f"{v.value('share_one'):.4g} % along 1"
    return f"Of the squared length of ĝ: {one}, {along}, {kept}. The directions are perpendicular: the shares add up."


def dx_formula(v: View) -> str:
    """The input's gradient in symbols."""
    family = v.setup.norm.family
    if family == "dyt":
        return r"\frac{\partial L}{\partial x} = \hat{g} \, (1 - \hat{x}^2) \, \alpha"
    if family == "minmax":
        return r"\frac{\partial L}{\partial x} = \frac{\hat{g}}{d} \; (\text{less the sums at the two ends})"
    if family == "image":
        return r"\frac{\partial L}{\partial x} = \frac{\hat{g}}{d \cdot \mathrm{scale}}"
    top = r"\hat{g}" if v.setup.given else "p"
    return rf"\frac{{\partial L}}{{\partial x}} = \frac{{{top}}}{{d}}"


def dx_numbers(v: View) -> str:
    """The input's gradient with numbers."""
    left, result = r"\frac{\partial L}{\partial x}", v.vec("dx")
    if "projected" in v.values:
        return rf"{left} = \frac{{{v.vec('projected')}}}{{{v.num('denominator')}}} = {result}"
    return f"{left} = {result}"


def describe_dx(v: View) -> str:
    """What the gradient of the input is like."""
    if v.setup.norm.family == "dyt":
        return "Saturated elements get almost no gradient: the slope of tanh is near 0 there."
    if v.setup.norm.family == "minmax":
        return "Only the elements at the two ends feel the others; where several share an end, the first one does."
    if v.setup.given:
        return "With constant statistics each element's gradient is scaled and nothing is removed."
    return "What the layer below receives. A larger input has a larger divisor, so its gradient is smaller."


def parameter_numbers(name: str, symbol: str) -> Words:
    """The words of a parameter's gradient."""
    title = {"dweight": "Gradient of the weight", "dbias": "Gradient of the bias", "dalpha": "Gradient of α"}[name]
    formula = {
        "dweight": r"\frac{\partial L}{\partial \gamma} = \sum g \, \hat{x}",
        "dbias": r"\frac{\partial L}{\partial \beta} = \sum g",
        "dalpha": r"\frac{\partial L}{\partial \alpha} = \sum \hat{g} \, (1 - \hat{x}^2) \, x",
    }[name]
    return Words(
        title,
        always(formula),
        lambda v: rf"\frac{{\partial L}}{{\partial {symbol}}} = {latex_list(v.values[name].reshape(-1))}",
        always("Summed over every element that the parameter touches, in every group."),
    )


BACKWARD: dict[str, Words] = {
    "upstream": Words("Upstream gradient", always("g"), lambda v: f"g = {v.vec('upstream')}", describe_upstream),
    "g_hat": Words(
        "Through the scale",
        lambda v: r"\hat{g} = g \, (b - a)" if v.setup.norm.family == "minmax" else r"\hat{g} = g \, \gamma'",
        lambda v: rf"\hat{{g}} = {v.vec('g_hat')}",
        always("The gradient at the normalized values, ∂L/∂x̂; γ' is the weight with its offset, 1 without one."),
    ),
    "mean_g": Words(
        "Its component along 1",
        always(r"a = \frac{1}{n} \sum_i \hat{g}_i"),
        lambda v: rf"a = \frac{{{v.plain_sum('g_hat')}}}{{{v.n}}} = {v.num('mean_g')}",
        always("The part of the gradient that would move all elements alike."),
    ),
    "mean_g_xhat": Words(
        "Its component along x̂",
        always(r"b = \frac{1}{n} \sum_i \hat{g}_i \hat{x}_i"),
        lambda v: rf"b = \frac{{{v.product_sum('g_hat', 'normalized')}}}{{{v.n}}} = {v.num('mean_g_xhat')}",
        always("The part of the gradient that would stretch all elements in proportion."),
    ),
    "share_one": Words(
        "Share along 1, in percent",
        always(r"100 \, \frac{n a^2}{\sum_i \hat{g}_i^2}"),
        lambda v: rf"{v.num('share_one')}\,\%",
        always("Of the squared length of ĝ: this part is removed."),
    ),
    "share_xhat": Words(
        "Share along x̂, in percent",
        always(r"100 \, \frac{(n b)^2}{\sum_i \hat{x}_i^2 \sum_i \hat{g}_i^2}"),
        lambda v: rf"{v.num('share_xhat')}\,\%",
        always("Of the squared length of ĝ: this part is removed (all of it where ε is small against the spread)."),
    ),
    "share_kept": Words(
        "Share that remains, in percent",
        always(r"100 - \text{removed}"),
        lambda v: rf"{v.num('share_kept')}\,\%",
        describe_kept,
    ),
    "projected": Words("Remove both directions", projected_formula, projected_numbers, describe_projected),
    "sum_at_max": Words(
        "What the maximum takes",
        always(r"\sum_i \hat{g}_i \hat{x}_i"),
        lambda v: v.num("sum_at_max"),
        always("Raising the maximum lowers every other value in proportion to where it lies."),
    ),
    "sum_at_min": Words(
        "What the minimum takes",
        always(r"\sum_i \hat{g}_i (1 - \hat{x}_i)"),
        lambda v: v.num("sum_at_min"),
        always("Lowering the minimum raises every other value likewise."),
    ),
    "slope": Words(
        "Slope of the tanh",
        always(r"1 - \hat{x}^2"),
        lambda v: v.vec("slope"),
        always("1 in the middle, near 0 where the tanh saturates."),
    ),
    "dx": Words("Gradient of the input", dx_formula, dx_numbers, describe_dx),
    "dalpha": parameter_numbers("dalpha", r"\alpha"),
    "dweight": parameter_numbers("dweight", r"\gamma"),
    "dbias": parameter_numbers("dbias", r"\beta"),
    "finite_difference": Words(
        "Checked by moving each input a little",
        always(r"\frac{L(x_i + h) - L(x_i - h)}{2 h}, \quad L = \sum_j g_j y_j"),
        lambda v: (
            rf"{latex_list(v.values['finite_difference'][:, 2])} \approx "
            f"{latex_list(v.values['finite_difference'][:, 1])}"
        ),
        always("Each row has an element's number, its gradient from above, and the same from two forward passes."),
    ),
}
