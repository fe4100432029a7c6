"""The kernels of images: numbers of any type and stride to normalized planes, bytes without divisions."""

from __future__ import annotations

import triton
import triton.language as tl

from evenkeel.kernels.triton.columns_kernels import widened
from evenkeel.kernels.triton.shared_kernels import quotient_of, steps_inside

LARGE = tl.constexpr(103079215104.0)  # 1.5 * 2^36: adding it rounds to a multiple of 2^-16
FORM = tl.constexpr(5)  # numbers of a channel's form
UNSPECIALIZED = ("area", "width", "factor", "shift", "chunks", "x_image", "x_channel", "x_row")


@triton.jit
def defined(v, mean, std, LARGEST: tl.constexpr):
    """The definition, in float64."""
    return (v / tl.full(v.shape, LARGEST, tl.float64) - mean) / std


@triton.jit
def by_form(v, shift, scale, scale_rest, rest):
    """Bytes by a channel's form: the difference is exact, what shift and scale lack enters below the last place."""
    d = v.to(tl.float32) - shift
    zero = tl.zeros_like(d)
    return tl.fma(d, zero + scale, tl.fma(d, zero + scale_rest, zero + rest))


@triton.jit
def images_form_kernel(mean, std, forms, LARGEST: tl.constexpr):
    """A channel's form, and whether it gives the definition's float32 results for all 256 bytes."""
    channel = tl.program_id(0)
    own_mean, own_std = tl.load(mean + channel), tl.load(std + channel)
    wide_shift, wide_scale = own_mean * LARGEST, 1.0 / (own_std * LARGEST)
    shift, scale = ((wide_shift + LARGE) - LARGE).to(tl.float32), wide_scale.to(tl.float32)
    scale_rest = (wide_scale - scale.to(tl.float64)).to(tl.float32)
    rest = ((shift.to(tl.float64) - wide_shift) * wide_scale).to(tl.float32)
    v = tl.arange(0, 256)
    exact = defined(v.to(tl.float64), own_mean, own_std, LARGEST).to(tl.float32)
    differ = by_form(v, shift, scale, scale_rest, rest).to(tl.int32, bitcast=True) != exact.to(tl.int32, bitcast=True)
    form = forms + channel * FORM
    tl.store(form, shift)
    tl.store(form + 1, scale)
    tl.store(form + 2, scale_rest)
    tl.store(form + 3, rest)
    tl.store(form + 4, tl.where(tl.max(differ.to(tl.int32), 0) > 0, 0.0, 1.0))


@triton.jit
def normalized(v, mean, std, forms, channel, WIDE: tl.constexpr, LARGEST: tl.constexpr):
    """Some elements of a channel, in float32 or float64."""
    if forms is None:
        result = defined(widened(v), tl.load(mean + channel), tl.load(std + channel), LARGEST)
        if not WIDE:
            result = result.to(tl.float32)
    else:
        form = forms + channel * FORM
        result = by_form(v, tl.load(form), tl.load(form + 1), tl.load(form + 2), tl.load(form + 3))
        if tl.load(form + 4) == 0.0:
            exact = defined(widened(v), tl.load(mean + channel), tl.load(std + channel), LARGEST)
            result = exact.to(tl.float32)
    return result


@triton.jit
def byte_of(first, second, third, INDEX: tl.constexpr):
    """A byte of three words."""
    word = first if INDEX < 4 else second if INDEX < 8 else third
    return (word >> (8 * (INDEX % 4))) & 255


@triton.jit(do_not_specialize=UNSPECIALIZED)
def images_map_kernel(
    x, mean, std, forms, y, area, width, factor, shift, chunks, x_image, x_channel, x_row, CHANNELS: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Some pixels of a picture, channel after channel: STEP elements from one to the next in rows of ``width``.

    WHOLE says that rows follow each other evenly, WIDE that places in them have 64 bits. EVEN divides the area, ALIGNED
    what lies between pictures.
    """
    program = tl.program_id(0)
    start = (program % chunks).to(tl.int64) * BLOCK
    image = (program // chunks).to(tl.int64)
    pixel = tl.arange(0, BLOCK)
    inside = steps_inside(start, area, EVEN, BLOCK)
    x += tl.multiple_of(image * x_image, ALIGNED)
    if WHOLE:
        x += start * STEP
        offsets = (pixel.to(tl.int64) if WIDE else pixel) * STEP
    else:
        position = tl.cast(start, area.dtype) + pixel
        row = quotient_of(position, width, factor, shift)
        column = position - row * width
        offsets = row.to(tl.int64) * x_row + (column.to(tl.int64) if WIDE else column) * STEP
    for channel in range(CHANNELS):
        own = x + tl.multiple_of(channel * tl.cast(x_channel, tl.int64), ALIGNED)
        v = tl.load(own + offsets, mask=inside, other=0)
        result = normalized(v, mean, std, forms, channel, y.dtype.element_ty == tl.float64, LARGEST)
        plane = y + tl.multiple_of((image * CHANNELS + channel) * area, EVEN) + start
        tl.store(plane + pixel, result.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def images_pixels_kernel(
    x, mean, std, forms, y, area, chunks, x_image, EVEN: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr
):
    """Pixels of three bytes, four of them in three words, so that planes are written in whole vectors."""
    program = tl.program_id(0)
    start = (program % chunks).to(tl.int64) * BLOCK
    image = (program // chunks).to(tl.int64)
    quad = tl.arange(0, BLOCK // 4)
    inside = steps_inside(start // 4, area // 4, 1, BLOCK // 4)
    words = (x + image * x_image + 3 * start).to(tl.pointer_type(tl.int32)) + 3 * quad
    first = tl.load(words, mask=inside, other=0)
    second = tl.load(words + 1, mask=inside, other=0)
    third = tl.load(words + 2, mask=inside, other=0)
    for channel in tl.static_range(3):
        even = tl.join(byte_of(first, second, third, channel), byte_of(first, second, third, channel + 6))
        odd = tl.join(byte_of(first, second, third, channel + 3), byte_of(first, second, third, channel + 9))
        v = tl.reshape(tl.join(even, odd), [BLOCK])
        result = normalized(v, mean, std, forms, channel, False, LARGEST)
        plane = y + tl.multiple_of((image * 3 + channel) * area, EVEN) + start
        written = steps_inside(start, area, EVEN, BLOCK)
        tl.store(plane + tl.arange(0, BLOCK), result.to(y.dtype.element_ty), mask=written)
