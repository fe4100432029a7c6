"""FeatureAffine and PixelNormalize: fitted data scaling as the first layer of a model."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenkeel._errors import InvalidArgumentError, InvalidInputError, InvalidTypeError
from evenkeel.functional import column_affine, image_normalize
from evenkeel.nn._options import refuse_script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, Self

    from torch import Tensor

CONVOLUTIONS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}


class FeatureAffine(nn.Module):
    r"""Shift and scale each feature by fixed numbers: a fitted data scaler as a layer.

    .. math:: y = (x - \text{shift}) \cdot \text{scale} + \text{offset}

    The numbers are float64 buffers and the difference is taken before anything is rounded, so that float32 inputs keep
    their digits at any mean. They move with ``.to(device)``, are in the state dict, and keep float64 under ``.half()``
    and ``.to(dtype)``; the result has the input's floating dtype, and torch's default one for integers (uint8 images,
    counts).

    Shape: any with ``features`` elements along ``axis``, returned unchanged.

    Args:
        shift: (features,), what is subtracted.
        scale: (features,), what the difference is multiplied by.
        offset: (features,), what is added; 0 by default.
        clip: the lowest and the highest value of the result, None where there is none.
        axis: the axis of the features: -1 for tables, 1 or -3 for (batch, channels, height, width).
        inverse: shift, scale and offset of the inverse, where they are known better than by inverting.

    Raises:
        InvalidArgumentError: the numbers are not as many, or clip's bounds are in the wrong order.

    Example:
        >>> import torch, evenkeel as ek
        >>> layer = ek.nn.FeatureAffine([2.0, 20.0], [1.0, 0.1])
        >>> y = layer(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
        >>> y
        tensor([[-1., -1.],
                [ 1., 1.]])
        >>> layer.inverse()(y)
        tensor([[ 1., 10.],
                [ 3., 30.]])
    """

    __prepare_scriptable__ = refuse_script
    shift: Tensor
    scale: Tensor
    offset: Tensor
    inverse_numbers: Tensor

    def __init__(
        self,
        shift: Any,
        scale: Any,
        offset: Any = None,
        *,
        clip: tuple[float | None, float | None] | None = None,
        axis: int = -1,
        inverse: tuple[Any, Any, Any] | None = None,
    ) -> None:
        super().__init__()
        shift, scale = _numbers(shift), _numbers(scale)
        offset = torch.zeros_like(shift) if offset is None else _numbers(offset)
        if not shift.shape == scale.shape == offset.shape or shift.ndim != 1:
            raise InvalidArgumentError(
                "FeatureAffine: shift, scale and offset need one number for each feature, but have the shapes "
                f"{tuple(shift.shape)}, {tuple(scale.shape)} and {tuple(offset.shape)}"
            )
        low, high = (None if bound is None else float(bound) for bound in clip or (None, None))
        if low is not None and high is not None and not low <= high:
            raise InvalidArgumentError(f"FeatureAffine: clip needs (lowest, highest), but got {clip}")
        if type(axis) is not int:
            raise InvalidTypeError(f"FeatureAffine(): argument 'axis' must be int, not {type(axis).__name__}")
        self.axis, self.clip = axis, None if low is None and high is None else (low, high)
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)
        # x = (y - offset) / scale + shift; where scale is 0 nothing of x is left but the shift
        back = (offset, torch.where(scale == 0, 0.0, 1 / scale), shift) if inverse is None else inverse
        self.register_buffer("inverse_numbers", torch.stack([_numbers(part) for part in back]))

    @property
    def features(self) -> int:
        """The number of features."""
        return self.shift.numel()

    def forward(self, input: Tensor) -> Tensor:
        """Shift and scale the features of a tensor.

        Args:
            input: any real dtype, with the features along ``axis``.

        Raises:
            InvalidInputError: the number of features differs.
        """
        axis = self.axis
        if not isinstance(input, torch.Tensor) or input.is_nested:
            kind = "a nested one" if isinstance(input, torch.Tensor) else type(input).__name__
            raise InvalidTypeError(f"{type(self).__name__}: input must be a dense Tensor, not {kind}")
        if not -input.ndim <= axis < input.ndim or input.shape[axis] != self.features:
            raise InvalidInputError(
                f"{type(self).__name__}: expected {self.features} features along axis {axis}, but got the shape "
                f"{tuple(input.shape)}"
            )
        moved = input if axis == -1 else input.movedim(axis, -1)
        y = column_affine(moved, self.shift, self.scale, self.offset, clip=self.clip)
        return y if axis == -1 else y.movedim(-1, axis)

    def inverse(self) -> FeatureAffine:
        """The layer that undoes this one; clipped values and features scaled by 0 do not come back."""
        shift, scale, offset = self.inverse_numbers
        return FeatureAffine(shift, scale, offset, axis=self.axis, inverse=(self.shift, self.scale, self.offset))

    def fold_into(self, layer: nn.Module) -> nn.Module:
        r"""Fold this layer into the one that follows it, which then costs nothing more.

        .. math:: W' = W \cdot \text{scale}, \qquad b' = b + W (\text{offset} - \text{shift} \cdot \text{scale})

        The folded layer rounds large inputs before it subtracts: keep this layer where means are large next to
        deviations. Integer inputs need ``.float()`` first.

        Args:
            layer: a `torch.nn.Linear`, `Conv1d`, `Conv2d` or `Conv3d` that takes this one's result.

        Returns:
            A new layer of the same type, with a bias.

        Raises:
            InvalidArgumentError: it cannot be folded, and why: a subclass may do more than its base, clipping is not
                affine, other features, or padding with zeros, which stand for another number before this layer.
        """
        self._refuse_fold(layer)
        assert isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
        weight = layer.weight.detach().double()
        rest = self.offset - self.shift * self.scale
        groups = 1 if isinstance(layer, nn.Linear) else layer.groups
        shape = (groups, 1, -1, *[1] * (weight.ndim - 2))
        grouped = weight.unflatten(0, (groups, -1))  # (groups, outputs, inputs of the group, ...)
        added = (grouped * rest.view(shape)).flatten(2).sum(-1).flatten()
        folded = copy.deepcopy(layer)
        bias = added if layer.bias is None else added + layer.bias.detach().double()
        folded.weight = nn.Parameter((grouped * self.scale.view(shape)).flatten(0, 1).to(layer.weight))
        folded.bias = nn.Parameter(bias.to(layer.weight))
        for new, old in ((folded.weight, layer.weight), (folded.bias, layer.bias)):
            new.requires_grad_(layer.weight.requires_grad if old is None else old.requires_grad)
        return folded

    def _refuse_fold(self, layer: nn.Module) -> None:
        kind = type(layer)
        name = kind.__name__
        if kind is not nn.Linear and kind not in CONVOLUTIONS:
            raise InvalidArgumentError(
                f"fold_into: expected a Linear, Conv1d, Conv2d or Conv3d of torch.nn itself, but got a {name}, which "
                "may compute something else; keep this layer in front of it"
            )
        if self.clip is not None:
            raise InvalidArgumentError(
                f"fold_into: clipping to {self.clip} is not affine; keep this layer, or refit it"
            )
        axes = (-1,) if kind is nn.Linear else (1, -1 - CONVOLUTIONS[kind])
        if self.axis not in axes:
            raise InvalidArgumentError(
                f"fold_into: a {name} takes features along axis {axes[0]}, but this layer has them along {self.axis}"
            )
        inputs = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
        if inputs != self.features:
            raise InvalidArgumentError(
                f"fold_into: the {name} takes {inputs} features, but this layer has {self.features}"
            )
        if kind is not nn.Linear and _pads_zeros(layer) and (self.offset != self.shift * self.scale).any():
            raise InvalidArgumentError(
                f"fold_into: the {name} pads with zeros, which stand for {self._number_of_zero()} now and would stand "
                "for the input 0 then; keep this layer, or use padding=0 or padding_mode='replicate'"
            )

    def _number_of_zero(self) -> str:
        first = int((self.offset != self.shift * self.scale).nonzero()[0])
        zero = (self.shift[first] - self.offset[first] / self.scale[first]).item()
        return f"{f'the input {zero:.6g}' if math.isfinite(zero) else 'no input at all'} (feature {first})"

    def extra_repr(self) -> str:
        """What the constructor was given, for ``repr``."""
        clip = "" if self.clip is None else f", clip={self.clip}"
        return f"{self.features}, axis={self.axis}{clip}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers, and keep them float64: half-precision copies of a mean would be another mean."""
        kept = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, moved in self._buffers.items():
            before = kept[name]
            if moved is not None and before is not None and moved.dtype != before.dtype:
                self._buffers[name] = before.to(moved.device)
        return self


class PixelNormalize(FeatureAffine):
    r"""Images to normalized float planes, as a layer: bytes in, (x/255 - mean) / std out, in one pass.

    .. math:: y_{chw} = \frac{x_{chw} / \text{max} - \mu_c}{\sigma_c}

    Shape: (..., channels, height, width) for ``CHW`` or (..., height, width, channels) for ``HWC``, of any real dtype;
    returns (..., channels, height, width) of the module's dtype.

    Args:
        mean: one number per channel, of images scaled to [0, 1].
        std: one number per channel, not 0.
        layout: of the images that come in: ``CHW`` or ``HWC``.
        max_value: the value that becomes 1: 255 for 8 bits, 65535 for 16, 1 for images that are scaled already.
        dtype: of the result.

    Example:
        >>> import torch, evenkeel as ek
        >>> layer = ek.nn.PixelNormalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        >>> layer(torch.tensor([120, 100, 90], dtype=torch.uint8).reshape(1, 3, 1, 1)).flatten()
        tensor([-0.0629, -0.2850, -0.2358])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: Sequence[float] | Tensor,
        std: Sequence[float] | Tensor,
        *,
        layout: Literal["HWC", "CHW"] = "CHW",
        max_value: float = 255.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        centre, spread = _numbers(mean), _numbers(std)
        if layout not in ("HWC", "CHW"):
            raise InvalidArgumentError(f"PixelNormalize: layout must be HWC or CHW, but got {layout!r}")
        max_value = float(max_value)
        if (spread == 0).any() or not max_value > 0:
            raise InvalidArgumentError(f"PixelNormalize: std and max_value must not be 0, but got {std}, {max_value}")
        back = (torch.zeros_like(centre), spread * max_value, centre * max_value)
        super().__init__(centre * max_value, 1 / (spread * max_value), axis=-3, inverse=back)
        self.layout, self.max_value, self.dtype = layout, max_value, dtype
        self.register_buffer("mean", centre)
        self.register_buffer("std", spread)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize images.

        Args:
            input: of the module's layout, any real dtype.

        Raises:
            InvalidInputError: the number of channels differs.
        """
        return image_normalize(
            input, self.mean, self.std, layout=self.layout, max_value=self.max_value, dtype=self.dtype
        )

    def _refuse_fold(self, layer: nn.Module) -> None:
        if self.layout != "CHW":
            raise InvalidArgumentError("fold_into: this layer also turns HWC into CHW; keep it, or feed CHW images")
        super()._refuse_fold(layer)

    def extra_repr(self) -> str:
        """What the constructor was given, for ``repr``."""
        return f"{self.features}, layout={self.layout}, max_value={self.max_value:g}, dtype={self.dtype}"


def _numbers(values: Any) -> Tensor:
    """A float64 vector of its own."""
    return torch.as_tensor(values, dtype=torch.float64).detach().clone()


def _pads_zeros(layer: Any) -> bool:
    """Whether a convolution reads zeros beyond the border."""
    padding, kernel = layer.padding, layer.kernel_size
    if padding == "same":
        return layer.padding_mode == "zeros" and any(size > 1 for size in kernel)
    return layer.padding_mode == "zeros" and padding != "valid" and any(padding)
