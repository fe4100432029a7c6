"""`NormSpec`: the few questions whose answers tell one normalization from another."""

from __future__ import annotations

import html
import math
import numbers
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, get_args

import torch

from evenkeel._errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Activation", "Cast", "EpsMode", "Gating", "Memory", "NormSpec", "ResidualRounding", "Shares", "Statistic"]

Statistic = Literal["moments", "rms", "l2", "range", "quantile", "none"]
Shares = Literal["token", "channel", "sample_channel", "sample_group", "feature"]
EpsMode = Literal["inside", "outside", "clamp"]
Cast = Literal["late", "early", "weight"]
Memory = Literal["batch", "running"]
Activation = Literal["relu", "silu"]
Gating = Literal["silu_before", "silu_after", "sigmoid_before", "sigmoid_after"]
ResidualRounding = Literal["rounded", "unrounded"]

CHOICES: dict[str, tuple[str, ...]] = {
    "statistic": get_args(Statistic),
    "shares": get_args(Shares),
    "eps_mode": get_args(EpsMode),
    "cast": get_args(Cast),
    "memory": get_args(Memory),
    "activation": get_args(Activation),
    "gating": get_args(Gating),
    "residual_rounding": get_args(ResidualRounding),
}
OPTIONAL = ("activation", "gating", "residual_rounding")  # which may be None

# The numbers by which the operators know the answers.
ROW_STATISTICS = {"rms": 0, "moments": 1, "l2": 2}
EPS_MODES = {"inside": 0, "outside": 1, "clamp": 2}
ACTIVATIONS: dict[Activation | None, int] = {None: 0, "relu": 1, "silu": 2}


def machine_epsilon(dtype: torch.dtype | None) -> float:
    """The machine epsilon of the compute dtype: float64's for float64, float32's for every other."""
    return 2.0**-52 if dtype == torch.float64 else 2.0**-23  # torch.finfo takes 2 µs


class BaseNormOptions(TypedDict, total=False):
    """The keyword-only options of every norm."""

    eps_mode: EpsMode
    weight_offset: float


class CastNormOptions(BaseNormOptions, total=False):
    """The keyword-only options of a norm that may round in several places."""

    cast: Cast


class RowNormOptions(CastNormOptions, total=False):
    """The keyword-only options of a row norm."""

    groups: int | None


class ChannelNormOptions(CastNormOptions, total=False):
    """The keyword-only options of a channel norm."""

    activation: Activation | None


OPTION_DEFAULTS: dict[str, Any] = {
    "eps_mode": "inside",
    "weight_offset": 0.0,
    "cast": "late",
    "activation": None,
    "groups": None,
}


class RowOptions(NamedTuple):
    """The spec of a row norm, in the order of the operators' schemas."""

    statistic: int
    eps: float
    eps_mode: int
    weight_offset: float
    early: bool
    rounded: bool


class ChannelOptions(NamedTuple):
    """The spec of a channel norm, in the order of the operators' schemas.

    Groups are those of a sample: 0 stands for one statistic per channel over the batch, -1 for as many as the channels.
    """

    groups: int
    eps: float
    eps_mode: int
    weight_offset: float
    activation: int


def choice_problem(answers: Mapping[str, Any]) -> str:
    """Say which answer is not one of its choices, or ""."""
    for name, choices in CHOICES.items():
        if name not in answers:
            continue
        answer = answers[name]
        if answer not in choices and not (answer is None and name in OPTIONAL):
            words = "None, 'relu' or 'silu'" if name == "activation" else f"one of {', '.join(choices)}"
            return f"{name} must be {words}, but got {answer!r}"
    if answers.get("cast") == "weight" and answers.get("shares") != "token":
        return f"cast='weight' needs shares='token', but shares={answers.get('shares')!r}; use 'late' or 'early'"
    return ""


def is_number(value: Any) -> bool:
    """Whether a value is a real number, or a tensor or array of one."""
    try:
        math.isfinite(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    r"""What one normalization does, in the answers to a few questions.

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
        cast: where low-precision inputs round: ``late`` (once, at the end), ``early`` (the normalized value is
            rounded to the input's dtype, then multiplied by the weight) or ``weight`` (it is rounded to the weight's
            dtype if that has 16 bits, and the result has the promoted dtype: T5).
        memory: ``batch`` (statistics of the data at hand) or ``running`` (remembered statistics in inference).
        groups: for ``sample_group``, into how many groups the channels are divided, None where that is left open; for
            ``token``, into how many equal parts the trailing axes are, each with a statistic of its own (the groups of
            Mamba 2, the heads of Cohere), None for one.
        activation: ``relu`` or ``silu`` after the affine, before the one rounding, or None.
        gating: what a second input, the gate, does: its SiLU or sigmoid multiplies the input (``silu_before``: Mamba 2)
            or the result (``silu_after``: Qwen3-Next, ``sigmoid_after``: GLM 5), before that is rounded; or None.
        residual_rounding: whether the sum of a residual connection is ``rounded`` to the stream's dtype before it is
            normalized or ``unrounded``; None where nothing is added.

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
    groups: int | None = None
    activation: Activation | None = None
    gating: Gating | None = None
    residual_rounding: ResidualRounding | None = None

    def __repr__(self) -> str:
        told = [f"{name}={value!r}" for name, value, default in self._answers() if value != default]
        return f"NormSpec({', '.join(told)})"

    def __str__(self) -> str:
        return "\n".join([repr(self), *(f"  {name:<17}  {value}" for name, value, _ in self._answers())])

    def _repr_markdown_(self) -> str:
        lines = [
            "| question | answer |",
            "| --- | --- |",
            *(f"| {name} | {value} |" for name, value, _ in self._answers()),
        ]
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        rows = (f"<tr><td>{name}</td><td>{html.escape(str(value))}</td></tr>" for name, value, _ in self._answers())
        return f"<table><tr><th>question</th><th>answer</th></tr>{''.join(rows)}</table>"

    def _answers(self) -> list[tuple[str, Any, Any]]:
        """Each question with its answer and the default, which no repetition needs to tell."""
        return [(field.name, getattr(self, field.name), field.default) for field in fields(self)]

    def __post_init__(self) -> None:
        for name in ("eps", "weight_offset"):
            value = getattr(self, name)
            if not (is_number(value) or (value is None and name == "eps")):
                raise InvalidTypeError(f"NormSpec: {name} must be a number, but got {value!r}")
        if problem := choice_problem(vars(self)) or self._contradiction():
            raise InvalidArgumentError(f"NormSpec: {problem}")

    def _contradiction(self) -> str:
        if self.eps is not None and not math.isfinite(self.eps):
            return f"eps must be a finite number or None, but got {self.eps!r}"
        if not math.isfinite(self.weight_offset):
            return f"weight_offset must be finite, but got {self.weight_offset}"
        if self.center and self.statistic in ("rms", "l2", "none"):
            return f"statistic={self.statistic!r} has no centre to subtract; pass center=False"
        if self.memory == "running" and self.shares not in ("channel", "sample_channel", "feature"):
            return (
                f"memory='running' needs statistics that outlive a sample, but shares={self.shares!r}; "
                "use shares='channel', 'sample_channel' or 'feature'"
            )
        countable = isinstance(self.groups, numbers.Integral) and self.groups > 0
        if self.groups is not None and not (countable and self.shares in ("sample_group", "token")):
            wanted = "shares='sample_group' or 'token' and a positive whole number"
            return f"groups={self.groups!r} needs {wanted}; leave it out"
        if self.gating is not None and self.shares != "token":
            return f"gating needs shares='token', but shares={self.shares!r}; leave it out"
        if self.residual_rounding is not None and self.shares != "token":
            return f"residual_rounding needs shares='token', but shares={self.shares!r}; leave it out"
        return ""

    def epsilon(self, dtype: torch.dtype) -> float:
        """Return the number that eps stands for with inputs of a dtype.

        Args:
            dtype: the input's.

        Returns:
            eps, or the machine epsilon of the compute dtype where eps is None.

        Example:
            >>> import torch, evenkeel as ek
            >>> ek.nn.RMSNorm(4).spec.epsilon(torch.bfloat16) == torch.finfo(torch.float32).eps
            True
        """
        return machine_epsilon(dtype) if self.eps is None else self.eps
