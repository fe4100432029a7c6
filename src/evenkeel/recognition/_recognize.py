"""Recognise a norm by what it computes: candidates from its parameters, the decision from its results."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from evenkeel._errors import InvalidTypeError
from evenkeel.recognition._copies import floating_tensors
from evenkeel.recognition._fit import Fit, fit_eps, fit_form
from evenkeel.recognition._gradients import check_gradients
from evenkeel.recognition._layout import Layout, candidate_shapes, feature_shape, layout_of, sharing
from evenkeel.recognition._memory import fit_frozen, fit_memory
from evenkeel.recognition._probes import RefusedError, attempt, distance, gate_for, isolated, probes, random_values
from evenkeel.recognition._recognition import Recognition
from evenkeel.recognition._rounding import Agreement, agreement, fit_cast, signed_values
from evenkeel.recognition._subject import FURTHER, Subject, joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["recognize"]

CLOSE = 1e-5
CALLS = 3  # a module that counts its calls may change with them


def recognize(module: nn.Module, *, example: Tensor | None = None) -> Recognition:
    """Recognise the norm that a module computes, whatever its class and its names.

    A copy of the module runs on inputs that tell norms apart: magnitudes from 1e-15 to 1e6, zeros, a shift, one large
    element; with random parameters and with its own; in training and in evaluation; in float64, float32, bfloat16 and
    float16. A spec counts when its reference repeats every result and the gradients, and no other spec does. The
    module itself is never called.

    Args:
        module: any module.
        example: an input, where the shapes that it takes do not follow from its parameters.

    Returns:
        The spec with the evidence, or the reason why there is none.

    Raises:
        InvalidTypeError: the argument is no module.

    Example:
        >>> import torch, evenkeel as ek
        >>> class Norm(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scale = torch.nn.Parameter(torch.zeros(16))
        ...     def forward(self, x):
        ...         return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + self.scale)
        >>> spec = ek.convert.recognize(Norm()).spec
        >>> spec.statistic, spec.eps, spec.eps_mode, spec.weight_offset
        ('rms', 1e-06, 'inside', 1.0)
    """
    if not isinstance(module, nn.Module):
        raise InvalidTypeError(f"recognize: expected a torch.nn.Module, but got {type(module).__name__}; pass a layer")
    evidence: list[str] = []
    with isolated():
        subject = None
        try:
            subject = Subject(module)
            return examine(subject, example, evidence)
        except RefusedError as refusal:
            reason = str(refusal)
            if subject is not None and subject.gate is not None:
                evidence.append(f"with {subject.gate} as a gate: {reason}")
                reason = f"{FURTHER}: {subject.gate}"
            return Recognition(reason=reason, evidence=tuple(evidence), agreement={})


def examine(subject: Subject, example: Tensor | None, evidence: list[str]) -> Recognition:
    """Find the spec of a subject, noting what was seen."""
    shape, still, moving = layouts(subject, example)
    values = subject.values()
    x = random_values(shape, 5).to(subject.wide)
    steady(subject, x, values)
    learned = subject.effective(x, values)
    changed = subject.changed(x, values, training=True)
    if subject.changed(x, values, training=False):
        raise RefusedError("its tensors change in evaluation")
    momentum, frozen = None, False
    if not changed and moving == still:
        same_in_both_modes(subject, x, values)
    if still.shares is None and moving.shares is None:
        fit, frozen, training = fit_frozen(subject, shape, still, learned), True, False
    else:
        training = moving != still
        fit = fit_statistics(subject, shape, moving, [n for n in learned if n not in changed], training=training)
        if training or changed:
            fit, momentum = fit_memory(subject, shape, fit, changed, still)
    evidence.append(f"inputs of {tuple(shape)} share statistics as {fit.spec.shares!r}")
    names = " and ".join(str(dtype).removeprefix("torch.") for dtype in subject.precise)
    evidence.append(f"results agree in {names} on {len(probes(shape, torch.float64))} inputs of 1e-15 to 1e6")
    check_own_values(subject, fit, shape, training=training)
    check_gradients(subject, fit, shape, training=training)
    check_gate(subject, fit, x, values, training=training)
    still_contiguous = subject.runner(subject.wide, values, training=training)(x).is_contiguous()
    fit = replace(fit, layout=replace(fit.layout, contiguous=still_contiguous))
    ranks = ranks_taken(subject, fit, example, training=training)
    fit, agreements = fit_cast(subject, fit, shape, training=training)
    agreements = {"float32": own_agreement(subject, fit, shape, training=training)} | agreements
    evidence += [f"{dtype}: {a.equal:.1%} of the bits, {a.ulps:.2g} ulps" for dtype, a in agreements.items()]
    return Recognition(
        spec=fit.spec,
        layout=fit.layout,
        roles=fit.roles,
        momentum=momentum,
        frozen=frozen,
        ranks=ranks,
        agreement=agreements,
        evidence=tuple(evidence),
    )


def layouts(subject: Subject, example: Tensor | None) -> tuple[tuple[int, ...], Layout, Layout]:
    """The shape of the first input that is taken, and the layouts in evaluation and in training.

    Raises:
        RefusedError: no input is taken, or none shares statistics as a norm does.
    """
    reasons: list[tuple[int, str]] = []
    values = subject.values()
    size = feature_shape(subject.original)
    tried = itertools.product((torch.float64, torch.float32), candidate_shapes(subject.original, example))
    for dtype, shape in tried:
        runs = [subject.runner(dtype, values, training=training) for training in (False, True)]
        try:
            repeatable(runs[1], random_values(shape, 4).to(dtype))
            found = [sharing(run, shape, dtype) for run in runs]
        except RefusedError as refusal:
            reasons.append((0 if str(refusal).startswith("it raises") else 2, str(refusal)))
            continue
        named = [indices if isinstance(indices, str) else layout_of(indices, shape, size) for indices in found]
        still, moving = named
        if isinstance(still, Layout) and isinstance(moving, Layout):
            subject.wide = dtype
            return shape, still, moving
        reasons.append((1, next(reason for reason in named if isinstance(reason, str))))
    raise RefusedError(max(reasons, key=lambda pair: pair[0])[1] if reasons else "it takes no input that was tried")


def repeatable(run: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Refuse what gives two results for one input."""
    first, second = run(x), run(x)
    if not torch.equal(torch.nan_to_num(first), torch.nan_to_num(second)):
        raise RefusedError("in training, it gives different results for the same input")


def steady(subject: Subject, x: Tensor, values: dict[str, Tensor]) -> None:
    """Refuse what changes its input, or with the number of calls."""
    copy = subject.copy(subject.wide, values)
    first, given = attempt(copy, x), x.clone()
    copy(given)
    if not torch.equal(given, x):
        raise RefusedError("it changes its input in place")
    if not all(torch.equal(torch.nan_to_num(attempt(copy, x)), torch.nan_to_num(first)) for _ in range(CALLS)):
        raise RefusedError("its result changes from call to call")


def fit_statistics(
    subject: Subject, shape: tuple[int, ...], layout: Layout, learned: list[str], *, training: bool
) -> Fit:
    """Fit the form and eps of statistics of the input."""
    if len(learned) > 2:
        raise RefusedError(f"it has {len(learned)} learned tensors ({joined(learned)}); a norm has a weight and a bias")
    values = {name: tensor.to(subject.wide) for name, tensor in subject.values().items()}
    run = subject.runner(subject.wide, values, training=training)
    inputs = probes(shape, subject.wide)
    form = fit_form(run, layout, inputs["scale 10000"], values, learned, subject.gate)
    signed = signed_values(subject, form)
    plain = subject.values(seed=3)
    if form.roles.bias is not None:  # eps shows in results that are small beside a bias
        plain[form.roles.bias].zero_()
    observed = [
        subject.observe(probes(shape, dtype), tensors, training=training)
        for dtype, tensors in itertools.product(subject.precise, (plain, signed))
    ]
    return fit_eps(form, subject.declared, observed)


def same_in_both_modes(subject: Subject, x: Tensor, values: dict[str, Tensor]) -> None:
    """Refuse what has no memory and yet computes something else in training."""
    still, moving = (subject.runner(subject.wide, values, training=mode)(x) for mode in (False, True))
    if not torch.equal(torch.nan_to_num(still), torch.nan_to_num(moving)):
        raise RefusedError("it computes something else in training than in evaluation")


def check_own_values(subject: Subject, fit: Fit, shape: tuple[int, ...], *, training: bool) -> None:
    """Refuse what computes something else with its own values."""
    own = {name: tensor.detach().to(subject.wide) for name, tensor in floating_tensors(subject.original).items()}
    run = subject.runner(subject.wide, own, training=training)
    for name, probe in probes(shape, subject.wide).items() if all(map(usable, own.values())) else ():
        if distance(run(probe), fit(probe, dict(own), 0.0 if training else None)) > 1e-3:
            raise RefusedError(f"with its own parameters it is no {fit.spec!r} on the input '{name}'")


def check_gate(subject: Subject, fit: Fit, x: Tensor, values: dict[str, Tensor], *, training: bool) -> None:
    """Refuse what is another norm with other gates, or without one where it may be called so."""
    if fit.roles.gate is None:
        return
    copy = subject.copy(subject.wide, values, training=training)
    wide = {name: tensor.to(subject.wide) for name, tensor in values.items()}
    given_gate = gate_for(x)
    copy(x.clone(), given_gate)
    if not torch.equal(given_gate, gate_for(x)):
        raise RefusedError("it changes its gate in place")
    for (name, gate), small in itertools.product(probes(tuple(x.shape), subject.wide).items(), (False, True)):
        given = 1e-4 * x if small else x
        if distance(attempt(copy, given, gate), fit(given, wide, gate=gate)) > CLOSE:
            raise RefusedError(f"its gate does something else on the gate '{name}'")
    try:
        y = type(copy).forward(copy, x.clone())
    except Exception:  # it needs its gate
        return
    plain = fit.with_answers(gating=None)
    if not isinstance(y, torch.Tensor) or distance(y.detach(), plain(x, wide)) > CLOSE:
        raise RefusedError("without it, it computes something else")


def usable(tensor: Tensor) -> bool:
    """Whether values are finite and of a size that no arithmetic loses."""
    return bool(tensor.isfinite().all()) and bool((tensor.abs() < 1e6).all())


def ranks_taken(subject: Subject, fit: Fit, example: Tensor | None, *, training: bool) -> tuple[int, ...]:
    """The numbers of axes of the inputs that it takes.

    Raises:
        RefusedError: on one of them, it computes something else.
    """
    values = {name: tensor.to(subject.wide) for name, tensor in subject.values(seed=5).items()}
    run = subject.runner(subject.wide, values, training=training)
    ranks = []
    for shape in candidate_shapes(subject.original, example):
        x = random_values(shape, 41).to(subject.wide)
        try:
            y = run(x)
            expected = fit(x, dict(values), 0.0 if training else None)
        except Exception:  # either refuses the shape
            continue
        if y.shape == x.shape and distance(y, expected) > CLOSE:
            alone = fit.spec.shares == "sample_channel" and example_of_one(fit, x, dict(values))
            if not isinstance(alone, torch.Tensor) or distance(y, alone) > CLOSE:
                raise RefusedError(f"it computes something else on an input of {tuple(shape)}")
        if y.shape == x.shape:
            ranks.append(len(shape))
    return tuple(sorted(set(ranks)))


def example_of_one(fit: Fit, x: Tensor, values: dict[str, Tensor]) -> Tensor:
    """The result for one example without the axis of the batch, as InstanceNorm takes it."""
    return fit(x.unsqueeze(0), values).squeeze(0)


def own_agreement(subject: Subject, fit: Fit, shape: tuple[int, ...], *, training: bool) -> Agreement:
    """How far float32 results agree."""
    values = signed_values(subject, fit)
    x = random_values(shape, 12).float() * 3.0
    given = {name: tensor.float() for name, tensor in values.items()}
    y = subject.runner(torch.float32, values, training=training)(x)
    return agreement(y, fit(x, given, 0.0 if training else None))
