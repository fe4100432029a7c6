"""`walk`: from an input and a norm to an explanation."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import InvalidArgumentError
from evenkeel._options.axes import check_group, check_upstream
from evenkeel.explain._backward import backward, finite_difference, parameter_gradients
from evenkeel.explain._checks import backward_checks, forward_checks
from evenkeel.explain._data import Check, Explanation, Step, default_upstream
from evenkeel.explain._forward import Rows, forward, rows_of
from evenkeel.explain._norms import find_norm
from evenkeel.explain._notes import notes
from evenkeel.explain._setup import Setup, numbers, read_spec, set_up
from evenkeel.explain._view import View
from evenkeel.explain._words import PHRASES, STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from evenkeel._spec import EpsMode

__all__ = ["explain", "output_of", "walk"]


def walk(
    x: Any,
    norm: str = "layer",
    *,
    axis: int | Sequence[int] | None = None,
    channel_axis: int | None = None,
    groups: int | None = None,
    eps: float | None = None,
    eps_mode: EpsMode | None = None,
    mask: Any = None,
    weight: Any = None,
    bias: Any = None,
    weight_offset: float | None = None,
    mean: Any = None,
    variance: Any = None,
    std: Any = None,
    correction: int | None = None,
    feature_range: Sequence[float] | None = None,
    scale: float | None = None,
    alpha: float | None = None,
    dtype: str | torch.dtype | None = None,
    show: int = 0,
    backward: bool = False,
    upstream: Any = None,
) -> Explanation:
    r"""Explain a normalization of the given numbers, step by step, forward and (if asked) backward.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, (\text{weight\_offset} + \gamma) + \beta

    and its relatives. Every number is computed in float64 from the input as its dtype holds it, then compared with
    the library's own function in that dtype. An option that is None has the norm's default.

    Args:
        x: numbers, nested lists, a numpy array or a tensor of any shape; floating dtypes stay, others become float64.
        norm: ``layer``, ``rms``, ``batch``, ``instance``, ``group``, ``standardize``, ``minmax``, ``image`` or ``dyt``.
        axis: the axes that share statistics (layer, rms: the last; standardize, minmax: the first), or have
            parameters (dyt).
        channel_axis: where the channels are (batch, instance, group: axis 1; image: the axis that fits).
        groups: into how many groups the channels are divided (group).
        eps: ε; RMSNorm's default is the machine epsilon of the arithmetic, that of the others 1e-5.
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``.
        mask: True where valid: of the input's shape, without the channel axis, or of leading axes.
        weight: γ, of the shared axes' shape (channel norms: a number for each channel), or one number for all.
        bias: β likewise.
        weight_offset: added to the weight: 1 for the (1 + γ) family.
        mean: remembered mean for each group, or one number (image: the constants of the channels).
        variance: remembered variance likewise.
        std: the constants of the channels (image).
        correction: 0 divides by n (population), 1 by n - 1 (sample) (standardize).
        feature_range: the low and the high end (minmax).
        scale: what colours are divided by first (image).
        alpha: α (dyt).
        dtype: float64, float32, bfloat16 or float16, to explain the input in another dtype.
        show: the group whose numbers the formulas show, counted from 0.
        backward: whether to go on to the gradients.
        upstream: ∂L/∂y of the input's shape; fixed pseudo-random numbers by default.

    Returns:
        The explanation: numbered steps, checks and notes, as data.

    Raises:
        InvalidTypeError: the input is not made of real numbers.
        InvalidInputError: the input is empty or ragged, or a shape does not fit.
        InvalidArgumentError: an unknown norm, an option that the norm does not have, or a bad value.

    Example:
        >>> import evenkeel as ek
        >>> explanation = ek.explain.walk([1.0, 2.0, 3.0, 4.0], "layer", eps=1e-5)
        >>> explanation.step("mean").substituted
        '\\mu = \\frac{1 + 2 + 3 + 4}{4} = 2.5'
        >>> [check.passed for check in explanation.checks]
        [True, True, True]
    """
    given: dict[str, Any] = {"axis": axis, "channel_axis": channel_axis, "groups": groups}
    given |= {"eps": eps, "eps_mode": eps_mode, "mask": mask, "weight": weight, "bias": bias}
    given |= {"weight_offset": weight_offset, "mean": mean, "variance": variance, "std": std}
    given |= {"correction": correction, "feature_range": feature_range, "scale": scale, "alpha": alpha}
    kind = find_norm(norm)
    spec, given = read_spec(kind, given)
    return explain(set_up(x, kind, spec, given, dtype), show, backward, upstream)


def explain(setup: Setup, show: int, want_backward: bool, upstream: Any) -> Explanation:
    """Explain a setup, with the numbers of one group in the formulas."""
    group, gradient = group_to_show(show, setup), read_upstream(upstream, setup)
    # What inf - inf or an overflow gives is part of the explanation, not a warning.
    with np.errstate(all="ignore"):
        return Walk(setup, group, gradient, want_backward).explanation()


def output_of(setup: Setup) -> np.ndarray:
    """Compute the output alone, to try what a layer computes."""
    return setup.elements(forward(rows_of(setup))["output"])


def group_to_show(show: int, setup: Setup) -> int:
    """Return the group to show, which has to exist."""
    try:
        return check_group(operator.index(show), setup.layout)
    except TypeError as error:
        raise InvalidArgumentError(f"explain: the group to show is a whole number, but got {show!r}") from error


def read_upstream(upstream: Any, setup: Setup) -> np.ndarray | None:
    """Return the upstream gradient, which has the input's shape."""
    if upstream is None:
        return None
    array = numbers("upstream", upstream)
    check_upstream(array.shape, setup.x.shape)
    return array.reshape(setup.x.shape)


class Walk:
    """One walk: the arithmetic of all groups, then the words about one."""

    def __init__(self, setup: Setup, group: int, upstream: np.ndarray | None, want_backward: bool) -> None:
        self.setup, self.group, self.given_upstream, self.want_backward = setup, group, upstream, want_backward
        self.rows: Rows = rows_of(setup)
        self.steps = forward(self.rows)
        self.extra: dict[str, np.ndarray] = {}
        self.checks = forward_checks(self.rows, self.steps, self.flat("output"), group)
        if want_backward:
            self.go_back()

    def flat(self, name: str) -> np.ndarray:
        """Return a step's value: elements in the input's shape, groups as they are."""
        values = self.steps[name]
        return values if values.ndim == 1 else self.setup.elements(values)

    def go_back(self) -> None:
        """Add the backward steps and their checks."""
        setup = self.setup
        g = default_upstream(setup.x.shape) if self.given_upstream is None else self.given_upstream
        g = np.where(setup.valid, g, 0.0)
        self.steps |= backward(self.rows, self.steps, g.reshape(-1)[setup.layout.order])
        names = [name for name in ("upstream", "g_hat", "slope", "normalized") if name in self.steps]
        self.extra = parameter_gradients(setup, {name: self.flat(name).reshape(-1) for name in names})
        dx = self.flat("dx")
        differences = self.extra["finite_difference"] = finite_difference(setup, self.group, dx, g)
        self.checks += backward_checks(self.rows, self.steps, dx, g, differences, self.group)

    def explanation(self) -> Explanation:
        """Return the steps, checks and notes as data."""
        view = self.view()
        values = {"input": self.setup.x} | {name: self.flat(name) for name in self.steps} | self.extra
        if self.setup.spec.statistic != "none":
            groups = self.setup.elements(np.arange(view.groups, dtype=np.float64)[:, None])
            values["groups"] = np.where(self.setup.valid, groups, -1.0)
        steps = [
            Step(
                id=name,
                title=words.title,
                formula=view.tell(words.formula),
                substituted=view.tell(words.numbers),
                value=values[name],
                meaning=view.tell(words.meaning),
            )
            for name, words in STEPS.items()
            if name in values
        ]
        return Explanation(
            norm=self.setup.norm.key,
            title=view.tell(PHRASES["title"]),
            options=self.setup.options(upstream=self.given_upstream, backward=self.want_backward),
            shown=self.group,
            steps=tuple(steps),
            checks=tuple[Check, ...](self.checks),
            notes=tuple(notes(self.rows, self.steps, view)),
        )

    def view(self) -> View:
        """Return the shown group's numbers: the valid members of elements, the one number of statistics."""
        keep = self.rows.valid[self.group]
        arrays = self.steps | {"input": self.rows.x, "gamma": self.rows.gamma, "beta": self.rows.beta}
        own = {name: v[self.group] for name, v in arrays.items() if v is not None}
        return View(
            setup=self.setup,
            group=self.group,
            groups=self.setup.layout.groups,
            n=int(keep.sum()),
            upstream_given=self.given_upstream is not None,
            values={name: v[keep] if v.ndim else float(v) for name, v in own.items()}
            | {name: v if name == "finite_difference" else v.reshape(-1) for name, v in self.extra.items()},
        )
