"""What a module was recognised as."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evenkeel._display import Summarised
from evenkeel._spec import NormSpec
from evenkeel.recognition._fit import Roles
from evenkeel.recognition._layout import Layout
from evenkeel.recognition._rounding import Agreement

__all__ = ["Recognition"]


@dataclass(frozen=True, kw_only=True)
class Recognition(Summarised):
    """The norm that a module computes, or why it is none that a spec describes.

    Attributes:
        spec: what it does, or None.
        layout: where the sharing elements lie: trailing axes, the channels' axis, groups. None where spec is.
        roles: the names of its tensors by their part: weight, bias, mean, variance. None where spec is.
        momentum: how fast remembered statistics follow; None where nothing is remembered, or it is a plain average.
        frozen: whether it uses remembered statistics in training too.
        ranks: the numbers of axes of the inputs that it was seen to take.
        agreement: by dtype: the share of elements with the bits of the spec's reference, and the largest
            difference in ulps.
        evidence: what was seen, line by line.
        reason: why there is no spec; empty where there is one.

    Example:
        >>> import torch, evenkeel as ek
        >>> found = ek.convert.recognize(torch.nn.RMSNorm(8, eps=1e-6))
        >>> found.spec
        NormSpec(statistic='rms', shares='token', center=False, eps=1e-06, bias=False)
        >>> ek.convert.recognize(torch.nn.Linear(8, 8)).reason
        'no spec repeats its result: the shapes of its parameters are those of no norm'
    """

    views = "evenkeel.recognition._views"

    spec: NormSpec | None = None
    layout: Layout | None = None
    roles: Roles | None = None
    momentum: float | None = None
    frozen: bool = False
    ranks: tuple[int, ...] = ()
    agreement: dict[str, Agreement]
    evidence: tuple[str, ...] = ()
    reason: str = ""

    def rounds_alike(self, dtype: torch.dtype, weight: torch.dtype | None = None) -> bool:
        """Whether the spec's reference rounds where the module does, for inputs of a dtype and a weight of another.

        In float32 and float64 both round after every step; the sums may differ in their order.
        """
        half, weight = dtype.itemsize == 2, weight or dtype
        if half == (weight.itemsize == 2):
            found = self.agreement.get(str(dtype).removeprefix("torch."))
            return not half or (found is not None and found.exact)
        found = self.agreement.get("bfloat16, float32 weight" if half else "float32, bfloat16 weight")
        return found is None or found.exact  # what the module refuses, nobody calls
