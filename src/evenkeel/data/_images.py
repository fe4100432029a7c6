"""ImageNormalize: from pictures as they come to normalized float planes, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from evenkeel._errors import InvalidArgumentError, InvalidInputError, InvalidTypeError
from evenkeel._options.names import check_choice
from evenkeel._options.numbers import check_integer
from evenkeel.data._arrays import as_tensor, dtype_name
from evenkeel.data._contract import OnMismatch, report
from evenkeel.data.sources import IMAGES, StoredFile, locate_all, read_images
from evenkeel.data.statistics import Definition, ImageStatistics, Layout, check_definition
from evenkeel.functional import image_normalize
from evenkeel.nn import PixelNormalize

PIL_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class ImagePreset:
    """Published constants, for images scaled to [0, 1], in RGB order.

    Attributes:
        mean: one number per channel.
        std: one number per channel.
        definition: ``per-image`` (the mean of each image's deviation), ``pooled`` (the deviation of all pixels), or
            ``chosen`` (not computed from data).

    Example:
        >>> from evenkeel.data import IMAGE_PRESETS
        >>> IMAGE_PRESETS["imagenet"].std, IMAGE_PRESETS["imagenet"].definition
        ((0.229, 0.224, 0.225), 'per-image')
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    definition: str


IMAGE_PRESETS = {
    "imagenet": ImagePreset((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "per-image"),
    "imagenet-inception": ImagePreset((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "chosen"),
    "clip": ImagePreset(
        (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), "published without definition"
    ),
    "cifar10": ImagePreset((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "pooled"),
    "mnist": ImagePreset((0.1307,), (0.3081,), "pooled"),
}


class ImageNormalize:
    r"""Images from NumPy, PIL or torch to normalized float planes in one pass, and back for showing.

    .. math:: y_{chw} = \frac{x_{hwc} / \text{max} - \mu_c}{\sigma_c}

    Args:
        mean: one number per channel, of images scaled to [0, 1]; needed, as `preset` and `fit` give it.
        std: one number per channel, above 0; needed likewise.
        layout: of the images that come in: ``HWC`` (NumPy, PIL) or ``CHW`` (torch); None infers it from the shape and
            asks where the shape is ambiguous.
        max_value: the value that becomes 1: 255 for 8 bits, 65535 for 16, 1 for images that are scaled already.
        channel_order: what the channels are, e.g. ``RGB``.
        definition: where mean and std come from, in words; see `ImagePreset`.
        dtype: of the result.
        on_mismatch: what to do with images that look scaled already, or of another depth: ``raise``, ``warn``,
            ``ignore``.

    Raises:
        InvalidTypeError: mean or std is missing, or holds no numbers.
        InvalidArgumentError: a std of 0, lengths that differ, or an unknown option.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import ImageNormalize
        >>> normalize = ImageNormalize.preset("imagenet")
        >>> image = np.array([[[120, 100, 90], [0, 0, 255]]], dtype=np.uint8)  # (height, width, channels)
        >>> y = normalize(image)
        >>> y.shape, y[:, 0, 0]
        (torch.Size([3, 1, 2]), tensor([-0.0629, -0.2850, -0.2358]))
        >>> bool((normalize.inverse(y, layout="HWC").numpy() == image).all())
        True
    """

    def __init__(
        self,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        *,
        layout: Layout | None = None,
        max_value: float = 255.0,
        channel_order: str = "RGB",
        definition: str = "given",
        dtype: torch.dtype = torch.float32,
        on_mismatch: OnMismatch = "raise",
    ) -> None:
        self.mean, self.std = _channel_numbers("mean", mean), _channel_numbers("std", std)
        if len(self.mean) != len(self.std) or not all(number > 0 for number in self.std):
            raise InvalidArgumentError(f"expected as many std > 0 as means, but got mean {self.mean}, std {self.std}")
        if not all(map(math.isfinite, (*self.mean, *self.std))):
            raise InvalidArgumentError(f"mean and std must be finite, but got mean {self.mean}, std {self.std}")
        check_depth(max_value)
        if layout not in (None, *get_args(Layout)) or on_mismatch not in get_args(OnMismatch):
            raise InvalidArgumentError(
                "layout must be HWC, CHW or None and on_mismatch raise, warn or ignore, "
                f"but got {layout!r}, {on_mismatch!r}"
            )
        self.layout, self.max_value, self.channel_order = layout, float(max_value), channel_order
        self.definition, self.dtype, self.on_mismatch = definition, dtype, on_mismatch
        self.statistics_: ImageStatistics | None = None

    @classmethod
    def preset(cls, name: str, **options: Any) -> Self:
        """The constants of `IMAGE_PRESETS` by name.

        Args:
            name: ``imagenet``, ``imagenet-inception``, ``clip``, ``cifar10`` or ``mnist``.
            **options: the constructor's other arguments.

        Raises:
            InvalidArgumentError: there is no such preset.
        """
        check_choice("image preset", name, IMAGE_PRESETS)
        preset = IMAGE_PRESETS[name]
        return cls(preset.mean, preset.std, definition=f"{name}: {preset.definition}", **options)

    @classmethod
    def fit(
        cls,
        images: Any,
        *,
        definition: Definition,
        channels: int = 3,
        layout: Layout | None = None,
        max_value: float | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Constants fitted on images; the definition has to be named, because the two differ by a fifth.

        Args:
            images: a folder or its URL (searched through), one batch, or an iterable of images or batches of any sizes.
            definition: ``pooled`` or ``per-image``; see `ImageStatistics`.
            channels: 1 (grey), 3 or 4.
            layout: of arrays; None infers it.
            max_value: the value that becomes 1; None takes 255 for uint8, 65535 for uint16 and 1 for floats.
            storage_options: for the client of the store that a URL names; see `evenkeel.data.fit`.
            **options: the constructor's other arguments.

        Raises:
            InvalidInputError: there is no image, their depths differ, or a channel is constant.
            EvenkeelError: a file of the folder cannot be read.
        """
        check_definition(definition)
        check_integer("channels", channels, least=1)
        if max_value is not None:
            check_depth(max_value)
        statistics, depths = ImageStatistics(), set()
        for image in _images_of(images, storage_options):
            array, order = _as_image(image, channels, layout)
            depths.add(_depth(image if hasattr(image, "dtype") else array) if max_value is None else float(max_value))
            statistics.update(array, layout=order)
        if len(depths) != 1:
            seen = f"the depths {sorted(depths)} are mixed" if depths else "there is no image"
            endings = ", ".join(IMAGES.suffixes)
            raise InvalidInputError(f"ImageNormalize.fit: {seen}; give images of one depth ({endings})")
        (depth,) = depths
        mean, std = statistics.mean(definition) / depth, statistics.std(definition) / depth
        if not (std > 0).all():
            raise InvalidInputError(f"ImageNormalize.fit: a channel is constant, its deviations are {std.tolist()}")
        fitted = cls(mean.tolist(), std.tolist(), layout=layout, max_value=depth, definition=definition, **options)
        fitted.statistics_ = statistics
        return fitted

    def __call__(self, image: Any, *, layout: Layout | None = None) -> Tensor:
        """Normalize an image or a batch of one size.

        Args:
            image: a PIL image, or an array or tensor (height, width), (height, width, channels), (channels, height,
                width), or a batch of the last two.
            layout: overrides the constructor's.

        Returns:
            (..., channels, height, width) of ``dtype``.

        Raises:
            InvalidInputError: the shape fits no layout, or several.
            ContractError: the values look scaled already, or are of another depth, under ``on_mismatch="raise"``.
        """
        array, order = _as_image(image, len(self.mean), layout or self.layout)
        if self.on_mismatch != "ignore":
            report(self._problems(array), self.on_mismatch)
        return image_normalize(array, self.mean, self.std, layout=order, max_value=self.max_value, dtype=self.dtype)

    def inverse(self, y: Tensor, *, layout: Layout = "HWC", dtype: torch.dtype | None = None) -> Tensor:
        """The image that was normalized, for showing; exact for integers that became float32 or float64.

        Args:
            y: (..., channels, height, width).
            layout: of the result.
            dtype: of the result: by default uint8 or, for a max_value above 255, int32; floats are not rounded.

        Returns:
            (..., height, width, channels) for ``HWC``, values from 0 to max_value.
        """
        dtype = dtype or (
            torch.float32 if self.max_value == 1 else torch.uint8 if self.max_value <= 255 else torch.int32
        )
        x = self.to_module().inverse()(y.double())
        if not dtype.is_floating_point:
            x = x.round().clamp(0, self.max_value)
        return (x.movedim(-3, -1) if layout == "HWC" else x).to(dtype)

    def to_module(self, *, layout: Layout = "CHW") -> PixelNormalize:
        """The same map as an `evenkeel.nn.PixelNormalize`: buffers, exact inverse, foldable into a convolution.

        Args:
            layout: of the tensors that the module will get.
        """
        return PixelNormalize(self.mean, self.std, layout=layout, max_value=self.max_value, dtype=self.dtype)

    def __repr__(self) -> str:
        rounded = [[round(number, 4) for number in part] for part in (self.mean, self.std)]
        return f"ImageNormalize(mean={rounded[0]}, std={rounded[1]}, max_value={self.max_value:g}, {self.definition})"

    def _problems(self, x: Tensor) -> list[str]:
        """The signs that values are normalized already, or of another depth."""
        if x.dtype == torch.uint8 and self.max_value <= 255:
            wrong = self.max_value == 1
            return ["8-bit images came where values from 0 to 1 were expected; divide by 255 first"] if wrong else []
        if not x.numel():
            return []
        low, high = float(x.amin()), float(x.amax())
        if low < 0:
            return [f"images have no negative values, but the lowest is {low:.4g}: is it normalized already?"]
        if high > self.max_value * (1 + 1e-6):
            return [f"expected values from 0 to {self.max_value:g}, but the highest is {high:.6g}; check the depth"]
        if self.max_value > 1 and x.is_floating_point() and high <= 1:
            return [
                f"expected values from 0 to {self.max_value:g}, but the highest is {high:.4g}: is it scaled already?"
            ]
        if self.max_value > 255 and x.dtype == torch.uint8:
            return [f"expected values from 0 to {self.max_value:g}, but the image has 8 bits; read it with 16"]
        return []


def check_depth(max_value: float) -> None:
    """Raise `InvalidArgumentError` unless a value can be that which becomes 1."""
    if not 0 < float(max_value) < math.inf:
        raise InvalidArgumentError(f"max_value must be finite and above 0, but got {max_value!r}; use 255 for 8 bits")


def _channel_numbers(name: str, numbers: Sequence[float] | None) -> tuple[float, ...]:
    try:
        return tuple(map(float, numbers))  # type: ignore[arg-type]  # None is one of those that fail
    except (TypeError, ValueError, RuntimeError) as error:  # the last is torch's, of sparse and nested tensors
        seen = "nothing" if numbers is None else type(numbers).__name__
        raise InvalidTypeError(
            f"ImageNormalize: expected {name}, one number per channel, but got {seen}; pass mean and std, "
            "or use ImageNormalize.preset(name) or ImageNormalize.fit(images, definition=...)"
        ) from error


def _as_image(image: Any, channels: int, layout: Layout | None) -> tuple[Tensor, Layout]:
    """An image or batch as a tensor, and its layout."""
    if hasattr(image, "getbands"):
        mode = PIL_MODES.get(channels)
        if mode is not None and not image.mode.startswith("I;16") and image.mode != mode:
            image = image.convert(mode)
        array = np.asarray(image)
        return as_tensor(array[..., None] if array.ndim == 2 else array), "HWC"
    x = as_tensor(image)
    if x.ndim == 2 and channels == 1:
        return x[None], "CHW"
    return x, layout or _infer_layout(tuple(x.shape), channels)


def _infer_layout(shape: tuple[int, ...], channels: int) -> Layout:
    last, first = len(shape) >= 3 and shape[-1] == channels, len(shape) >= 3 and shape[-3] == channels
    if last != first:
        return "HWC" if last else "CHW"
    reason = "both HWC and CHW fit" if last else f"no axis has {channels} channels"
    raise InvalidInputError(f"image of shape {shape}: {reason}; pass layout='HWC' or layout='CHW'")


def _depth(image: Any) -> float:
    """The value that becomes 1, from the dtype."""
    name = dtype_name(image)
    depths = {"uint8": 255.0, "uint16": 65535.0}
    if name not in depths and not name.startswith(("float", "bfloat")):
        raise InvalidInputError(f"images of dtype {name} have no usual depth; pass max_value=")
    return depths.get(name, 1.0)


def _images_of(images: Any, storage_options: Mapping[str, Any] | None) -> Iterator[Any]:
    """Yield the images of a folder in the order of their paths, of an iterable, or the one batch itself."""
    images = locate_all(images, storage_options)
    if isinstance(images, Path | StoredFile):
        yield from read_images(images)
    elif hasattr(images, "shape") or hasattr(images, "getbands"):
        yield images
    else:
        yield from images
