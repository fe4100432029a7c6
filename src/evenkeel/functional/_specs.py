"""The arguments of a call as one spec, validated and encoded once for each distinct set of options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from evenkeel._errors import InvalidArgumentError
from evenkeel._spec import (
    ACTIVATIONS,
    EPS_MODES,
    OPTION_DEFAULTS,
    ROW_STATISTICS,
    ChannelOptions,
    NormSpec,
    RowOptions,
    choice_problem,
)
from evenkeel.functional._common import as_number
from evenkeel.kernels import constant_when_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenkeel._spec import Activation, Cast, EpsMode, Gating, ResidualRounding, Shares, Statistic

Function = TypeVar("Function", bound="Callable[..., Any]")


@dataclass(frozen=True, kw_only=True)
class CallSpec(NormSpec):
    """The spec of a call: its choices are checked, its numbers are whatever torch takes, infinities included.

    ``weight`` and ``bias`` stay at their defaults: the call's own tensors say whether there are any.

    Attributes:
        row_options: the encoding for the row operators, made once: it would take a fifth of a call on one row.
        channel_options: the encoding for the channel operators, made once.
        late: the same spec with one rounding at the end, where this one rounds early.
        early: the same spec with the cast ``early``, where this one has ``weight``: they agree in one dtype.
    """

    eps: float
    row_options: RowOptions = field(repr=False, compare=False)
    channel_options: ChannelOptions = field(repr=False, compare=False)
    late: CallSpec | None = field(default=None, repr=False, compare=False)
    early: CallSpec | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Leave the checks to `_build`, whose message names the function."""


GROUPS: dict[Shares, int] = {"token": 0, "channel": 0, "sample_channel": -1}  # as the channel operators count them
_specs: dict[tuple[Any, ...], CallSpec] = {}
_NUMBERS = ("eps", "weight_offset", "groups")  # answers that are no choices: a compiled graph may leave them open
_MOST = 1024  # an eps that changes with every call must not fill the memory
_is_compiling = torch.compiler.is_compiling  # looking the name up takes as long as the call


def row_spec(
    name: str,
    statistic: Statistic,
    eps: float,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    residual_rounding: ResidualRounding | None = None,
    groups: int | None = None,
    gating: Gating | None = None,
) -> CallSpec:
    """The spec of a row norm's call."""
    if type(eps) is not float:  # a tensor, say, whose value may change
        eps = as_number(name, "eps", eps)
    if type(weight_offset) is not float:
        weight_offset = as_number(name, "weight_offset", weight_offset)
    key = (statistic, eps, eps_mode, weight_offset, cast, residual_rounding, groups, gating)
    if not _is_compiling():  # a graph that looked into the cache would be compiled again once the cache has changed
        try:
            return _specs[key]
        except (KeyError, TypeError):  # what cannot be hashed is no choice either
            pass
    return _build(
        name,
        key,
        statistic=statistic,
        shares="token",
        center=statistic == "moments",
        eps=eps,
        eps_mode=eps_mode,
        weight_offset=weight_offset,
        cast=cast,
        residual_rounding=residual_rounding,
        groups=groups,
        gating=gating,
    )


def channel_spec(
    name: str,
    shares: Shares,
    eps: float,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    activation: Activation | None = None,
    groups: int | None = None,
) -> CallSpec:
    """The spec of a channel norm's call."""
    if type(eps) is not float:
        eps = as_number(name, "eps", eps)
    if type(weight_offset) is not float:
        weight_offset = as_number(name, "weight_offset", weight_offset)
    # 2.0 is no number of groups, though it equals 2
    key = (shares, eps, eps_mode, weight_offset, cast, activation, groups, type(groups))
    if not _is_compiling():
        try:
            return _specs[key]
        except (KeyError, TypeError):
            pass
    return _build(
        name,
        key,
        statistic="moments",
        shares=shares,
        eps=eps,
        eps_mode=eps_mode,
        weight_offset=weight_offset,
        cast=cast,
        activation=activation,
        groups=groups,
    )


def spec_of_rows(options: Sequence[float], residual_rounding: ResidualRounding | None) -> CallSpec:
    """The spec of a row norm's call that `RowOptions` encode, here as plain numbers."""
    statistic, eps, eps_mode, weight_offset, *_ = options
    choices = decoded(ROW_STATISTICS, statistic), eps, decoded(EPS_MODES, eps_mode), weight_offset
    return row_spec("norm", *choices, residual_rounding=residual_rounding)


def spec_of_channels(options: Sequence[float]) -> CallSpec:
    """The spec of a channel norm's call that `ChannelOptions` encode, here as plain numbers."""
    groups, eps, eps_mode, weight_offset, activation = options
    shares: Shares = "sample_group" if groups > 0 else decoded({"channel": 0, "sample_channel": -1}, groups)
    count = int(groups) if groups > 0 else None
    eps_choice, squash = decoded(EPS_MODES, eps_mode), decoded(ACTIVATIONS, activation)
    return channel_spec("norm", shares, eps, eps_choice, weight_offset, activation=squash, groups=count)


def decoded(codes: Mapping[Any, int], code: float) -> Any:
    """The choice that has a code."""
    return next(choice for choice, own in codes.items() if own == code)


def _build(name: str, key: tuple[Any, ...], **answers: Any) -> CallSpec:
    if problem := _problem(**{label: answer for label, answer in answers.items() if label not in _NUMBERS}):
        raise InvalidArgumentError(f"{name}: {problem}")
    late = early = None
    if (cast := answers.get("cast", "late")) != "late":
        late = _encoded(answers | {"cast": "late"}, None)
    if cast == "weight":
        early = _encoded(answers | {"cast": "early"}, late)
    spec = _encoded(answers, late, early)
    if not _is_compiling():
        if len(_specs) >= _MOST:
            _specs.clear()
        _specs[key] = spec
    return spec


@constant_when_compiled
def _problem(**choices: Any) -> str:
    return choice_problem(choices)


def _encoded(answers: dict[str, Any], late: CallSpec | None, early: CallSpec | None = None) -> CallSpec:
    options = OPTION_DEFAULTS | answers
    statistic, shared, eps_mode, activation = _codes(
        options["statistic"], options["shares"], options["eps_mode"], options["activation"]
    )
    eps, weight_offset = options["eps"], options["weight_offset"]
    rounded = options.get("residual_rounding") != "unrounded"
    groups = options["groups"] if shared is None else shared
    return CallSpec(
        **answers,
        row_options=RowOptions(statistic, eps, eps_mode, weight_offset, options["cast"] == "early", rounded),
        channel_options=ChannelOptions(groups, eps, eps_mode, weight_offset, activation),
        late=late,
        early=early,
    )


@constant_when_compiled
def _codes(
    statistic: Statistic, shares: Shares, eps_mode: EpsMode, activation: Activation | None
) -> tuple[int, int | None, int, int]:
    """The choices as the operators count them; None for groups that are counted by the call."""
    return ROW_STATISTICS[statistic], GROUPS.get(shares), EPS_MODES[eps_mode], ACTIVATIONS[activation]


def keyword_options(options: Any) -> Callable[[Function], Function]:
    """Let a function's ``**options`` be those of a `TypedDict`, explicit in its signature, and refuse others."""
    defaults = {name: default for name, default in OPTION_DEFAULTS.items() if name in options.__annotations__}

    def decorate(function: Function) -> Function:
        @wraps(function)
        def checked(*args: Any, **arguments: Any) -> Any:
            if unknown := arguments.keys() - parameters:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {min(unknown)!r}")
            return function(*args, **defaults | arguments)

        signature = inspect.signature(function)
        explicit = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for name in defaults:
            annotation = getattr(options.__annotations__[name], "__forward_arg__", options.__annotations__[name])
            kind = inspect.Parameter.KEYWORD_ONLY
            explicit.append(inspect.Parameter(name, kind, default=OPTION_DEFAULTS[name], annotation=annotation))
        parameters = {p.name for p in explicit}
        checked.__signature__ = signature.replace(parameters=explicit)  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate
