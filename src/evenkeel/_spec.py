"""`NormSpec`: the few questions whose answers tell one normalization from another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from evenkeel._errors import InvalidArgumentError

__all__ = ["Cast", "EpsMode", "Memory", "NormSpec", "Shares", "Statistic"]

Statistic = Literal["moments", "rms", "l2", "range", "quantile", "none"]
Shares = Literal["token", "channel", "sample_channel", "sample_group", "feature"]
EpsMode = Literal["inside", "outside", "clamp"]
Cast = Literal["late", "early"]
Memory = Literal["batch", "running"]


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    r"""What one normalization does, in the answers to seven questions.

    Every normalization computes ``y = (x - centre) / scale * (weight_offset + weight) + bias``, where centre and
    scale are statistics of the elements that share them.

    Attributes:
        statistic: what is computed over the sharing elements: ``moments`` (mean and variance), ``rms``, ``l2``
            (Euclidean length), ``range`` (minimum and maximum), ``quantile``, or ``none`` (element-wise functions
            that take a norm's place).
        shares: which elements share one statistic: ``token`` (the trailing axes of one position: LayerNorm,
            RMSNorm), ``channel`` (one channel over batch and positions: BatchNorm), ``sample_channel``
            (InstanceNorm), ``sample_group`` (GroupNorm), ``feature`` (a column of a whole data set).
        center: whether the mean (or the minimum) is subtracted.
        eps: the constant that keeps the division finite; ``None`` means the machine epsilon of the arithmetic:
            fp32's for fp32, bf16 and fp16 inputs, fp64's for fp64.
        eps_mode: where it enters: ``inside`` x/sqrt(v + eps), ``outside`` x/(sqrt(v) + eps), ``clamp``
            x/max(sqrt(v), eps).
        weight: whether a learned scale follows.
        bias: whether a learned shift follows.
        weight_offset: what is added to the weight before use: 0, or 1 for the (1 + weight) family.
        cast: where low-precision inputs round: ``late`` (once, at the end) or ``early`` (the normalized value is
            rounded to the input's dtype, then multiplied by the weight).
        memory: ``batch`` (statistics of the data at hand) or ``running`` (remembered statistics in inference).

    Raises:
        InvalidArgumentError: an answer is not one of the choices, or two answers contradict each other.

    Example:
        >>> import evenkeel as ek
        >>> gemma = ek.NormSpec(statistic="rms", shares="token", center=False, eps=1e-6, bias=False, weight_offset=1.0)
        >>> gemma.eps_mode, gemma.cast
        ('inside', 'late')
    """

    statistic: Statistic
    shares: Shares
    center: bool = True
    eps: float | None = 1e-5
    eps_mode: EpsMode = "inside"
    weight: bool = True
    bias: bool = True
    weight_offset: float = 0.0
    cast: Cast = "late"
    memory: Memory = "batch"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            choices = get_args(hint)
            if choices and isinstance(choices[0], str) and getattr(self, name) not in choices:
                raise InvalidArgumentError(
                    f"NormSpec: {name} must be one of {', '.join(choices)}, but got {getattr(self, name)!r}"
                )
        check_eps(self.eps)
        if not math.isfinite(self.weight_offset):
            raise InvalidArgumentError(f"NormSpec: weight_offset must be finite, but got {self.weight_offset}")
        if self.center and self.statistic in ("rms", "l2", "none"):
            raise InvalidArgumentError(
                f"NormSpec: statistic={self.statistic!r} has no centre to subtract; pass center=False"
            )
        if self.memory == "running" and self.shares not in ("channel", "sample_channel", "feature"):
            raise InvalidArgumentError(
                f"NormSpec: memory='running' needs statistics that outlive a sample, but shares={self.shares!r}; "
                "use shares='channel', 'sample_channel' or 'feature'"
            )


def check_eps(eps: float | None) -> None:
    """Raise `InvalidArgumentError` unless eps is None or a finite number."""
    if eps is not None and not math.isfinite(eps):
        raise InvalidArgumentError(f"eps must be a finite number or None, but got {eps!r}")
