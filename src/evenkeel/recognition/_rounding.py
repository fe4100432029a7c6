"""Where a module rounds: its results in 16 bits, beside those of the casts that a spec knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch

from evenkeel._spec import Cast
from evenkeel.recognition._probes import RefusedError, attempt, random_values, ulps

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel.recognition._fit import Fit
    from evenkeel.recognition._subject import Subject

__all__ = ["Agreement", "fit_cast", "signed_values"]

HALVES = (torch.bfloat16, torch.float16)
# dtypes of the input and of the parameters
PAIRS = (*((dtype, dtype) for dtype in HALVES), (torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16))
# Sums in another order change the last bit of a statistic, and one rounding in thousands; another cast one in four.
MOST_UNEQUAL = 0.01
MOST_ULPS = 16.0  # of float32, where both round after every step in an order of their own
SMALL = 2.0**-8  # of the order of weights that 1 + weight in bfloat16 forgets


@dataclass(frozen=True)
class Agreement:
    """How far a module and the reference of its spec agree in a dtype.

    Attributes:
        equal: the share of the elements with the same bits.
        ulps: the largest difference, in units of the last place of the largest value.
        exact: whether both round in the same places.

    Example:
        >>> import torch, evenkeel as ek
        >>> ek.convert.recognize(torch.nn.RMSNorm(8)).agreement["bfloat16"]
        Agreement(equal=1.0, ulps=0.0, exact=True)
    """

    equal: float
    ulps: float
    exact: bool


def signed_values(subject: Subject, fit: Fit) -> dict[str, Tensor]:
    """Values of either sign, many of them small, for what may have them."""
    values = subject.values(seed=7)
    for k, name in enumerate((fit.roles.weight, fit.roles.bias, fit.roles.mean)):
        if name is not None:
            normal = random_values(values[name].shape, 50 + k)
            small = torch.arange(normal.numel()).reshape(normal.shape) % 2 == 0
            values[name] = (normal * torch.where(small, SMALL, 1.0)).float().double()
    return values


def fit_cast(subject: Subject, fit: Fit, shape: tuple[int, ...], *, training: bool) -> tuple[Fit, dict[str, Agreement]]:
    """Find the cast whose reference repeats the bits in every pair of dtypes, and tell how far each agrees.

    Where none does, the module rounds in places that no spec names: the cast is ``late``.
    """
    base = random_values(shape, 11) * 3.0
    values = signed_values(subject, fit)
    casts = get_args(Cast) if fit.spec.shares == "token" else ("late", "early")
    agreements: dict[Cast, dict[str, Agreement]] = {cast: {} for cast in casts}
    for x_dtype, w_dtype in PAIRS:
        if x_dtype != w_dtype and not fit.spec.weight:
            continue
        try:
            copy = subject.copy(w_dtype, values, training=training)
            y = attempt(copy, base.to(x_dtype))
        except RefusedError:
            continue
        label = dtype_name(x_dtype) if x_dtype == w_dtype else f"{dtype_name(x_dtype)}, {dtype_name(w_dtype)} weight"
        given = {name: tensor.to(w_dtype).clone() for name, tensor in values.items()}
        for cast, found in agreements.items():
            expected = fit.with_answers(cast=cast)(base.to(x_dtype), dict(given), 0.0 if training else None)
            found[label] = agreement(y, expected)
    return choose(fit, agreements)


def choose(fit: Fit, agreements: dict[Cast, dict[str, Agreement]]) -> tuple[Fit, dict[str, Agreement]]:
    """Take the cast that agrees in the most pairs of dtypes, ``late`` first among equals."""
    score = {cast: sum(a.exact for a in found.values()) for cast, found in agreements.items()}
    cast = max(score, key=lambda name: (score[name], name == "late", name == "early"))
    return fit.with_answers(cast=cast), agreements[cast]


def agreement(y: Tensor, expected: Tensor) -> Agreement:
    """Compare two results, whose dtypes have to be equal."""
    if y.dtype != expected.dtype or y.shape != expected.shape:
        return Agreement(0.0, float("inf"), False)
    equal, error = float((y == expected).double().mean()), ulps(y, expected)
    return Agreement(equal, error, error <= MOST_ULPS if y.dtype.itemsize > 2 else equal >= 1 - MOST_UNEQUAL)


def dtype_name(dtype: torch.dtype) -> str:
    """The name without torch's."""
    return str(dtype).removeprefix("torch.")
