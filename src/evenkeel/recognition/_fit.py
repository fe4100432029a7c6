"""The spec whose reference repeats what a module computes, on inputs of every magnitude."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import torch

from evenkeel._errors import EvenkeelError
from evenkeel._spec import ACTIVATIONS, Gating, NormSpec
from evenkeel.recognition._apply import Tensors, apply_norm
from evenkeel.recognition._explain import explanation
from evenkeel.recognition._probes import RefusedError, distance, gate_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from evenkeel.recognition._layout import Layout

__all__ = ["Fit", "Roles", "fit_eps", "fit_form", "tolerance"]

# Some compute in float32 whatever the input; ten roundings of which are these parts of the largest value.
TOLERANCE = 2e-6
USUAL_EPS = (0.0, 1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 2.0**-23, 2.0**-52)
KINDS = (("moments", True), ("rms", False), ("l2", False))


@dataclass(frozen=True)
class Roles:
    """The names of the tensors that play a part.

    Attributes:
        weight: the learned scale.
        bias: the learned shift.
        mean: the remembered mean.
        variance: the remembered variance.
        gate: the argument of forward that gates.

    Example:
        >>> import torch, evenkeel as ek
        >>> ek.convert.recognize(torch.nn.BatchNorm1d(8)).roles.variance
        'running_var'
    """

    weight: str | None = None
    bias: str | None = None
    mean: str | None = None
    variance: str | None = None
    gate: str | None = None


@dataclass(frozen=True)
class Fit:
    """A spec, where its statistics lie, and which tensors play which part."""

    spec: NormSpec
    layout: Layout
    roles: Roles

    def __call__(
        self, x: Tensor, values: Mapping[str, Tensor], momentum: float | None = None, gate: Tensor | None = None
    ) -> Tensor:
        """What the spec's reference computes; with the gate that goes with the input where it takes one."""
        roles = self.roles
        names = (roles.weight, roles.bias, roles.mean, roles.variance)
        tensors = Tensors(*(None if name is None else values[name] for name in names))
        if gate is None and self.spec.gating is not None:
            gate = gate_for(x)
        return apply_norm(self.spec, self.layout, x, tensors, gate=gate, momentum=momentum)

    def with_answers(self, **answers: object) -> Fit:
        """The same with other answers of the spec."""
        return replace(self, spec=replace(self.spec, **answers))  # type: ignore[arg-type]


def tolerance(name: str) -> float:
    """How far a result may lie from the reference on a probe."""
    return TOLERANCE * (40.0 if "shift" in name or name == "positive" else 1.0)  # a mean of many deviations cancels


def forms(layout: Layout, learned: list[str], gate: str | None = None) -> Iterator[Fit]:
    """Yield every form with these learned tensors, gated by an argument of that name; eps is still open."""
    if gate is not None:
        yield from gated_forms(layout, learned, gate)
        return
    count = len(learned)
    parts: list[tuple[str | None, ...]] = [(None, None)]
    if count == 1:
        parts = [(learned[0], None), (None, learned[0])]
    elif count == 2:
        parts = list(itertools.permutations(learned))
    kinds = KINDS if layout.shares == "token" else KINDS[:1]
    for (statistic, center), (weight, bias), activation in itertools.product(kinds, parts, ACTIVATIONS):
        if (statistic == "l2" and count) or (statistic == "rms" and bias is not None):
            continue
        for offset in (0.0, 1.0) if weight is not None else (0.0,):
            spec = NormSpec(
                statistic=statistic,
                shares=layout.shares or "token",
                center=center,
                weight=weight is not None,
                bias=bias is not None,
                weight_offset=offset,
                groups=None if statistic == "l2" else layout.groups,
                activation=activation,
            )
            yield Fit(spec, layout, Roles(weight, bias))


def gated_forms(layout: Layout, learned: list[str], gate: str) -> Iterator[Fit]:
    """Yield RMSNorms whose input or result a gate multiplies."""
    if layout.shares != "token" or layout.channel_axis != -1 or len(learned) > 1:
        return
    weight = learned[0] if learned else None
    for gating, offset in itertools.product(get_args(Gating), (0.0, 1.0) if learned else (0.0,)):
        spec = NormSpec(
            statistic="rms",
            shares="token",
            center=False,
            weight=weight is not None,
            bias=False,
            weight_offset=offset,
            groups=layout.groups,
            gating=gating,
        )
        yield Fit(spec, layout, Roles(weight, gate=gate))


def fit_form(
    run: Callable[[Tensor], Tensor],
    layout: Layout,
    x: Tensor,
    values: dict[str, Tensor],
    learned: list[str],
    gate: str | None = None,
) -> Fit:
    """Find the form that repeats the result on a large input, where eps does not count.

    Raises:
        RefusedError: none does, or several do.
    """
    if layout.shares == "token" and layout.groups is not None and not learned:
        raise RefusedError("its statistics are those of a part of the last axis, whose size no weight tells")
    y = run(x)
    errors = [(error_of(form, x, values, y), form) for form in forms(layout, learned, gate)]
    fitting = [form for error, form in errors if error <= TOLERANCE]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise RefusedError(f"{len(fitting)} specs repeat it: {fitting[0].spec!r} and {fitting[1].spec!r}")
    if gate is not None:
        raise RefusedError(f"no norm whose input or result the SiLU or sigmoid of {gate} multiplies repeats its result")
    raise RefusedError(explanation(y, x, layout, values, learned) or nearest(errors))


def error_of(form: Fit, x: Tensor, values: dict[str, Tensor], y: Tensor, momentum: float | None = None) -> float:
    """How far a form's result lies from the module's; infinitely, where its parameters have another shape."""
    try:
        return distance(y, form(x, dict(values), momentum))
    except (EvenkeelError, RuntimeError):  # the parameters do not fit, or do not broadcast
        return float("inf")


def nearest(errors: list[tuple[float, Fit]]) -> str:
    """Say how far off the closest spec is."""
    error, form = min(errors, key=lambda pair: pair[0])
    if error == float("inf"):
        return "no spec repeats its result: the shapes of its parameters are those of no norm"
    spec = form.spec
    return (
        f"no spec repeats its result: the closest (statistic={spec.statistic!r}, weight_offset={spec.weight_offset:g}, "
        f"activation={spec.activation!r}) is off by {error:.1g} of the largest value"
    )


def fit_eps(
    form: Fit,
    declared: list[float],
    observed: list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]],
    momentum: float | None = None,
) -> Fit:
    """Find eps and its place: each of ``observed`` is inputs, results and tensors in one dtype.

    Raises:
        RefusedError: no eps repeats the small inputs, or a form differs on some other input.
    """
    modes = ("inside", "outside", "clamp") if form.spec.statistic != "l2" else ("clamp", "outside", "inside")
    estimates = estimated(form, *observed[0])
    known = [None, *dict.fromkeys([*declared, *USUAL_EPS])]
    best = (float("inf"), "", form)
    for mode, eps in [*itertools.product(modes, known), *estimates]:
        candidate = form.with_answers(eps=eps, eps_mode=mode)
        worst, name = disagreement(candidate, observed, momentum)
        if worst <= 1.0:
            return candidate
        best = min(best, (worst, name, candidate), key=lambda entry: entry[0])
    worst, name, candidate = best
    raise RefusedError(
        f"{candidate.spec.statistic} with eps={candidate.spec.eps} {candidate.spec.eps_mode} comes closest, but is off "
        f"by {worst * tolerance(name):.1g} of the largest value on the input '{name}'"
    )


def disagreement(
    form: Fit,
    observed: list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]],
    momentum: float | None = None,
) -> tuple[float, str]:
    """The largest distance in units of what is tolerated, and the probe that shows it; it stops at one too large."""
    worst = (0.0, "")
    for inputs, results, values in observed:
        for name, x in inputs.items():
            found = error_of(form, x, values, results[name], momentum) / tolerance(name)
            worst = max(worst, (found, name))
            if found > 1e3:
                return worst
    return worst


def estimated(
    form: Fit, inputs: dict[str, Tensor], results: dict[str, Tensor], values: dict[str, Tensor]
) -> list[tuple[str, float]]:
    """eps as the smallest input tells it, for each place it may be in; to four digits, as somebody wrote it."""
    name = "scale 1e-15"
    if form.spec.activation is not None or form.roles.bias is not None:
        return []
    # eps = 1 makes the reference x / 1 there; what the module does beyond that is its own divisor
    unit = form.with_answers(eps=1.0, eps_mode="inside")(inputs[name], values)
    ratio = (unit / results[name]).flatten()
    divisor = float(ratio[ratio.isfinite()].median()) if ratio.isfinite().any() else 0.0
    if not (torch.finfo(torch.float32).tiny < divisor < 1e3):
        return []
    return [(mode, float(f"{value:.4g}")) for mode, value in (("inside", divisor**2), ("outside", divisor))] + [
        ("clamp", float(f"{divisor:.4g}"))
    ]
