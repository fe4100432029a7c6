"""DyT as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenkeel import functional as F
from evenkeel._errors import InvalidTypeError
from evenkeel._spec import NormSpec
from evenkeel.nn._options import refuse_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class DyT(torch.nn.Module):
    r"""Dynamic Tanh, a norm's stand-in without statistics: `evenkeel.functional.dyt` with parameters.

    .. math:: y = \gamma \tanh(\alpha x) + \beta

    Args:
        normalized_shape: the trailing sizes of weight and bias, or one size.
        alpha: the initial slope at 0; α is a learned scalar.
        bias: whether there is β.
        device: where the parameters live.
        dtype: the dtype of the parameters.
        backend: ``auto`` or ``reference``.

    Example:
        >>> import torch, evenkeel as ek
        >>> ek.nn.DyT(2)(torch.tensor([-100.0, 100.0])).tolist()
        [-1.0, 1.0]

    Source: Zhu, Chen, He, LeCun, Liu, "Transformers without Normalization", 2025.
    """

    __prepare_scriptable__ = refuse_script

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        alpha: float = 0.5,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape = shape
        try:
            self.initial_alpha = float(alpha)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            kind = type(alpha).__name__
            raise InvalidTypeError(f"DyT(): argument 'alpha' must be float, not {kind}; pass a number") from None
        self.backend = backend
        self.alpha = torch.nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set α to its initial value, γ to 1 and β to 0."""
        torch.nn.init.constant_(self.alpha, self.initial_alpha)
        torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        r"""Squash (\*, \*normalized_shape)."""
        return F.dyt(input, self.alpha, self.weight, self.bias, backend=self.backend)

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"{self.normalized_shape}, alpha={self.initial_alpha}, bias={self.bias is not None}"

    @property
    def spec(self) -> NormSpec:
        """What this module does, as a `NormSpec`."""
        return NormSpec(statistic="none", shares="token", center=False, eps=0.0, bias=self.bias is not None)
