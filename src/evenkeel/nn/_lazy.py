"""Constructor and initialization that the lazy Batch- and InstanceNorm modules share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenkeel.nn._options import NormOptions, without_default_bias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evenkeel._spec import Cast, EpsMode


class LazyNormOptions(NormOptions):
    """Mixin of the lazy modules: torch.nn's constructor with options; a forward call may pass a mask."""

    num_features: int
    running_mean: Any

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        eps_mode: EpsMode = "inside",
        weight_offset: float = 0.0,
        cast: Cast = "late",
        backend: str = "auto",
    ) -> None:
        super().__init__(eps, momentum, affine, track_running_stats, device, dtype, **without_default_bias(bias))
        self._set_options(eps_mode=eps_mode, weight_offset=weight_offset, cast=cast, backend=backend)

    def initialize_parameters(self, input: Tensor, mask: Tensor | None = None) -> None:
        """Give the parameters the input's number of channels."""
        super().initialize_parameters(input)  # type: ignore[misc]
        sized = self.weight if self.weight is not None else self.running_mean
        if sized is not None:  # torch forgets it where a state_dict gave the parameters their size
            self.num_features = sized.shape[0]
