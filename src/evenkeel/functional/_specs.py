"""The arguments of a call as one `NormSpec`, validated once for each distinct set of options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel._errors import InvalidArgumentError
from evenkeel._spec import NormSpec

if TYPE_CHECKING:
    from typing import Unpack

    from evenkeel._spec import Cast, ChannelNormOptions, EpsMode, ResidualRounding, Shares, Statistic

_specs: dict[tuple[Any, ...], NormSpec] = {}
_MOST = 1024  # an eps that changes with every call must not fill the memory
_is_compiling = torch.compiler.is_compiling  # looking the name up takes as long as the call


def row_spec(
    name: str,
    statistic: Statistic,
    eps: float | None,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    residual_rounding: ResidualRounding | None = None,
) -> NormSpec:
    """The spec of a row norm; the call's own tensors say whether there is a weight and a bias."""
    key = (statistic, eps, eps_mode, weight_offset, cast, residual_rounding)
    if not _is_compiling():  # a graph that looked into the cache would be compiled again once the cache has changed
        try:
            return _specs[key]
        except (KeyError, TypeError):  # what cannot be hashed is no choice either, which NormSpec says
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
    )


def channel_spec(
    name: str, shares: Shares, eps: float, groups: int | None = None, **options: Unpack[ChannelNormOptions]
) -> NormSpec:
    """The spec of a channel norm; the call's own tensors say whether there is a weight and a bias."""
    key = (shares, eps, groups, *options.items())
    if not _is_compiling():
        try:
            return _specs[key]
        except (KeyError, TypeError):
            pass
    return _build(name, key, statistic="moments", shares=shares, eps=eps, groups=groups, **options)


def _build(name: str, key: tuple[Any, ...], **answers: Any) -> NormSpec:
    eps = answers["eps"]
    answers["eps"] = eps if eps is None else float(eps)
    try:
        spec = NormSpec(**answers)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error).replace("NormSpec", name, 1)) from None
    if not _is_compiling():
        if len(_specs) >= _MOST:
            _specs.clear()
        _specs[key] = spec
    return spec
