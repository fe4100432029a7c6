"""image_normalize and image_moments: pictures to normalized float planes, and the statistics for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel.functional._columns import ColumnMoments, check_result_dtype, column_moments_reference
from evenkeel.functional._common import as_number, check_tensor
from evenkeel.functional._out import unshared
from evenkeel.kernels import composite_required, runs_kernel, unobserved

if TYPE_CHECKING:
    from torch import Tensor

ImageLayout = Literal["HWC", "CHW"]
PerChannel = Sequence[float] | torch.Tensor


def channels_first(images: Tensor, layout: ImageLayout) -> Tensor:
    """A view (..., channels, height, width)."""
    return images.movedim(-1, -3) if layout == "HWC" else images


def image_normalize_reference(
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    layout: ImageLayout,
    max_value: float = 255.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """`image_normalize` in plain PyTorch, in float64: the definition (no argument checks)."""
    x = channels_first(images, layout).double()
    centred = x / max_value - mean.double().reshape(-1, 1, 1)
    return (centred / std.double().reshape(-1, 1, 1)).to(dtype).contiguous()


def image_normalize(
    images: Tensor,
    mean: PerChannel,
    std: PerChannel,
    *,
    layout: ImageLayout,
    max_value: float = 255.0,
    dtype: torch.dtype = torch.float32,
    out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Scale pictures to [0, 1] and standardize their channels, in one pass from bytes to float planes.

    .. math:: y_{chw} = \frac{x_{hwc} / \text{max} - \mu_c}{\sigma_c}

    The value is that of float64 arithmetic, rounded to ``dtype`` (16-bit formats by way of float32, as torch does).

    Args:
        images: (..., height, width, channels) for ``HWC`` or (..., channels, height, width) for ``CHW``: uint8, or any
            other real dtype. Crops, alpha channels left out and the like are read where they are.
        mean: one number per channel, of the scaled pictures: 0.485, not 123.7.
        std: one number per channel, not 0; of a tensor on a GPU this is not checked, since looking would wait for it.
        layout: ``HWC`` (NumPy, PIL, decoded files) or ``CHW`` (torch).
        max_value: the number that becomes 1: 255 for 8 bits, 65535 for 16, 1 for pictures that are scaled already.
        dtype: of the result, floating.
        out: a contiguous tensor of the result's shape and dtype to write into; not differentiable.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``. While torch compiles or transforms, and where a
            gradient is asked for, the reference runs.

    Returns:
        A contiguous tensor (..., channels, height, width), or ``out``.

    Raises:
        InvalidArgumentError: an unknown layout, a std of 0 or a max_value that is not positive.
        InvalidInputError: a shape or dtype does not fit.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> pixel = torch.tensor([[[120, 100, 90]]], dtype=torch.uint8)  # (height, width, channels)
        >>> F.image_normalize(pixel, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], layout="HWC").flatten()
        tensor([-0.0629, -0.2850, -0.2358])
    """
    tensors = [t for t in (images, mean, std, out) if isinstance(t, torch.Tensor)]
    if has_torch_function_variadic(*tensors):
        options: dict[str, Any] = {
            "layout": layout,
            "max_value": max_value,
            "dtype": dtype,
            "out": out,
            "backend": backend,
        }
        return handle_torch_function(image_normalize, tensors, images, mean, std, **options)
    _check_images("image_normalize", images, layout)
    numbers = [_per_channel(name, v, images, layout) for name, v in (("mean", mean), ("std", std))]
    max_value = as_number("image_normalize", "max_value", max_value)
    _check_scale(numbers[1], max_value, dtype)
    centre, spread = (_on(images.device, t) for t in numbers)
    if out is not None:
        check_tensor("image_normalize", "out", out)
        _check_out(channels_first(images, layout), out, dtype)
    by_kernel = runs_kernel("images", backend, None, images, centre, spread, out)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (images, centre, spread))
    if not by_kernel or needs_grad or composite_required() or torch.compiler.is_compiling():
        y = image_normalize_reference(images, centre, spread, layout=layout, max_value=max_value, dtype=dtype)
        return y if out is None else out.copy_(y)
    planes = channels_first(images, layout)
    if out is not None and unshared("image_normalize", out, planes, centre, spread):
        torch.ops.evenkeel.image_normalize_out.default(planes, centre, spread, max_value, out)
        return out
    y = torch.ops.evenkeel.image_normalize.default(planes, centre, spread, max_value, dtype)
    return y if out is None else out.copy_(y)


def image_moments(images: Tensor, *, layout: ImageLayout, backend: str = "auto") -> ColumnMoments:
    r"""Count, mean, squared differences and range of each channel of each picture.

    .. math:: \mu_{nc} = \frac{1}{HW} \sum_{hw} x_{nhwc} \qquad M_{nc} = \sum_{hw} (x_{nhwc} - \mu_{nc})^2

    Two statistics of a data set go by the same name. *Pooled*: all pixels together, by merging the pictures' moments.
    *Per image*: the mean over pictures of each one's deviation √(M/HW), as in the well-known 0.229 of ImageNet, whose
    pooled deviation is about 0.28. Both follow from what this returns. Sums over 8- and 16-bit integers are exact.
    A picture of a contiguous batch has the bits that it has alone, at any number of threads and any SIMD level. Not
    differentiable, and not for vmap or torch.compile.

    Args:
        images: (..., height, width, channels) for ``HWC`` or (..., channels, height, width) for ``CHW``;
            any real dtype.
        layout: ``HWC`` or ``CHW``.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.

    Returns:
        A `ColumnMoments` of tensors (..., channels), in the pictures' own unit (0 to 255 for bytes).

    Raises:
        InvalidArgumentError: an unknown layout.
        InvalidInputError: a shape or dtype does not fit.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> pictures = torch.tensor([[[[0], [255]]], [[[100], [100]]]], dtype=torch.uint8)  # two of 1 x 2 pixels
        >>> moments = F.image_moments(pictures, layout="HWC")
        >>> (moments.m2 / moments.count).sqrt().mean(0)  # the per-image deviation
        tensor([63.7500], dtype=torch.float64)
    """
    _check_images("image_moments", images, layout)
    planes = channels_first(images.detach(), layout)
    leading, channels = planes.shape[:-3], planes.shape[-3]
    pixels = planes.movedim(-3, -1).reshape(math.prod(leading), planes.shape[-2] * planes.shape[-1], channels)
    if not runs_kernel("columns", backend, None, pixels):
        moments = column_moments_reference(pixels)
    else:
        moments = ColumnMoments(*torch.ops.evenkeel.column_moments.default(pixels, None))
    return ColumnMoments(*(t.reshape(*leading, channels) for t in moments))


def _check_images(name: str, images: Tensor, layout: str) -> None:
    if layout not in get_args(ImageLayout):
        raise InvalidArgumentError(f"{name}: layout must be one of HWC, CHW, but got {layout!r}")
    check_tensor(name, "images", images)
    if images.ndim < 3 or images.is_complex():
        raise InvalidInputError(
            f"{name}: expected real pictures (..., {', '.join(layout)}), but got {images.dtype} of shape "
            f"{tuple(images.shape)}; give a grey picture its channel axis with unsqueeze"
        )


def _per_channel(name: str, values: PerChannel, images: Tensor, layout: ImageLayout) -> Tensor:
    """One float64 number per channel, where they are."""
    numbers = torch.as_tensor(values, dtype=torch.float64)
    channels = images.shape[-1] if layout == "HWC" else images.shape[-3]
    if numbers.shape != (channels,):
        raise InvalidInputError(
            f"image_normalize: {name} must have one number for each of the {channels} channels of {layout} pictures of "
            f"shape {tuple(images.shape)}, but has shape {tuple(numbers.shape)}; is the layout right?"
        )
    return numbers


def _on(device: torch.device, numbers: Tensor) -> Tensor:
    if numbers.device == device or numbers.requires_grad or device.type != "cuda" or not unobserved():
        return numbers.to(device)
    return _sent(tuple(numbers.tolist()), device)


@lru_cache(maxsize=64)
def _sent(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers on a GPU, where they stay: sending them waits, and a graph that captured it would send what is gone."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=torch.float64, device=device)


def _check_scale(std: Tensor, max_value: float, dtype: torch.dtype) -> None:
    # while compiling, the values of a tensor are not known; looking at those on a GPU would wait for it
    known = std.is_cpu and not torch.compiler.is_compiling() and not composite_required()
    if known and (std == 0).any():
        raise InvalidArgumentError(f"image_normalize: std must not be 0, but got {std.tolist()}")
    if not 0 < max_value < math.inf:
        raise InvalidArgumentError(f"image_normalize: max_value must be positive and finite, but got {max_value}")
    check_result_dtype("image_normalize", dtype)


def _check_out(planes: Tensor, out: Tensor, dtype: torch.dtype) -> None:
    if out.shape != planes.shape or out.dtype != dtype or not out.is_contiguous():
        raise InvalidInputError(
            f"image_normalize: out must be contiguous {dtype} of shape {tuple(planes.shape)}, but got {out.dtype} of "
            f"shape {tuple(out.shape)} with strides {out.stride()}"
        )
    if torch.is_grad_enabled() and (planes.requires_grad or out.requires_grad):
        raise InvalidInputError("image_normalize: out= is not differentiable; leave it out, or use torch.no_grad()")
