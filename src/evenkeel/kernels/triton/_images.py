"""The operators on images on the GPU: strides, allocation and launches; the kernels compute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evenkeel.kernels import _fakes
from evenkeel.kernels.triton import images_kernels
from evenkeel.kernels.triton._columns import as_numbers
from evenkeel.kernels.triton._launch import ALIGNMENT, IMAGE_BLOCK
from evenkeel.kernels.triton._layout import alignment, dense, dividing, merged_axes
from evenkeel.kernels.triton._start import FIRST_WIDE, on_device, program

if TYPE_CHECKING:
    from torch import Tensor


class Images(NamedTuple):
    """Pictures whose leading axes lie evenly.

    Attributes:
        number: how many.
        channels: of each.
        area: pixels of each.
        width: pixels that follow each other evenly: a row, or the whole area.
        image: elements from a picture to the next.
        channel: elements from a channel to the next.
        row: elements from a row to the next.
        pixel: elements from a pixel to the next.
    """

    number: int
    channels: int
    area: int
    width: int
    image: int
    channel: int
    row: int
    pixel: int

    def in_words(self, x: Tensor) -> bool:
        """Whether these are pixels of three bytes that can be read four at a time."""
        pixels = self.pixel == self.channels == 3 and self.channel == 1 and self.width == self.area
        return x.dtype == torch.uint8 and pixels and math.gcd(self.area, self.image, x.data_ptr(), 4) == 4


def describe(x: Tensor) -> Images | None:
    """How pictures (..., channels, height, width) lie, or None where the leading axes do not lie evenly."""
    (channels, height, width), (channel, row, pixel) = x.shape[-3:], x.stride()[-3:]
    leading = merged_axes(x[..., 0, 0, 0], 0) or [(1, 0)]
    if len(leading) > 1:
        return None
    whole = height == 1 or row == width * pixel
    area = height * width
    return Images(leading[0][0], channels, area, area if whole else width, leading[0][1], channel, row, pixel)


def image_normalize(x: Tensor, mean: Tensor, std: Tensor, max_value: float, dtype: torch.dtype) -> Tensor:
    """Contiguous planes."""
    y = _fakes.image_normalize(x, mean, std, max_value, dtype)
    image_normalize_out(x, mean, std, max_value, y)
    return y


def image_normalize_out(x: Tensor, mean: Tensor, std: Tensor, max_value: float, out: Tensor) -> None:
    """The same into contiguous planes."""
    if x.numel() == 0:
        return
    images = describe(x)
    if images is None:
        x = x.contiguous()
        images = describe(x)
        assert images is not None
    source, centre, spread = as_numbers(x), dense(mean), dense(std)
    in_words, forms = out.dtype != torch.float64 and images.in_words(x), None
    block = IMAGE_BLOCK // 2 if in_words else IMAGE_BLOCK  # of whole ones a register is spilled on sm_89
    chunks = -(-images.area // block)
    with on_device(x):
        if x.dtype == torch.uint8 and out.dtype != torch.float64:
            forms = torch.empty((images.channels, 5), dtype=torch.float32, device=x.device)
            form = program(images_kernels.images_form_kernel, LARGEST=max_value)
            form((images.channels,), (centre, spread, forms), ())
        tensors, grid = (source, centre, spread, forms, out), (images.number * chunks,)
        constants: dict[str, Any] = {"EVEN": alignment(images.area), "BLOCK": block, "LARGEST": max_value}
        if in_words:
            integers: tuple[int, ...] = (images.area, chunks, images.image)
            program(images_kernels.images_pixels_kernel, **constants)(grid, tensors, integers)
            return
        constants |= {"CHANNELS": images.channels, "WHOLE": images.width == images.area, "STEP": images.pixel}
        constants["WIDE"] = max(block, images.width) * images.pixel >= FIRST_WIDE
        constants["ALIGNED"] = math.gcd(images.image, images.channel, ALIGNMENT)
        steps = (images.image, images.channel, images.row)
        integers = (images.area, images.width, *dividing(images.width), chunks, *steps)
        program(images_kernels.images_map_kernel, **constants)(grid, tensors, integers)
