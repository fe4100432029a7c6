"""The forward of the channel norms: sums of chunks, statistics from them, and the tensor that follows."""

from __future__ import annotations

import triton
import triton.language as tl

from evenkeel.kernels.triton.channels_shared_kernels import (
    INFINITY,
    activate,
    affine_tile,
    end_of_tiles,
    group_values,
    in_range,
    normalized_tile,
    open_tile,
    program_place,
    read_tile,
    save_statistic,
    statistic_parts,
    tile_at,
    valid_at,
)
from evenkeel.kernels.triton.shared_kernels import inverse_power, power_below

SMALLEST_VARIANCE = tl.constexpr(2.0**-96)  # beyond these its float32 sums have lost bits, or overflowed
LARGEST_VARIANCE = tl.constexpr(2.0**96)
# no variants by what varies from call to call: a sample's bits must not differ, and a new size must not take seconds
UNSPECIALIZED = ("extent", "period", "factor", "shift", "samples", "chunks", "tiles", "count", "entries")


@triton.jit
def read_valid(
    x, mask, outer, first, start, lengths, C: tl.constexpr, ALIGNED: tl.constexpr,
    LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A tile, which of its elements are valid, and which of its positions a mask keeps."""
    base, offsets, inside = tile_at(outer, first, start, lengths, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE)
    kept, valid = inside, inside
    if mask is not None:
        valid = valid_at(mask, outer, start, lengths, ALIGNED, SPANS, BLOCK)
        kept = inside & valid
    return read_tile(x, base, offsets, inside, mask, kept), kept, valid


@triton.jit
def mean_of_tile(
    x, mask, outer, first, start, lengths, scale, C: tl.constexpr, ALIGNED: tl.constexpr,
    LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The mean of each channel's part of a tile, exact where that is constant: the shift of its differences."""
    v, kept, _valid = read_valid(x, mask, outer, first, start, lengths, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE)
    v = v * scale[:, None]
    highest = tl.max(tl.where(kept, v, -INFINITY), 1)
    highest = tl.where(highest > -INFINITY, highest, 0.0)
    count = tl.sum(kept.to(tl.float32), 1)
    differences = tl.sum(tl.where(kept, v - highest[:, None], 0.0), 1)
    return highest + tl.div_rn(differences, tl.where(count > 0, count, 1.0))


@triton.jit
def sum_tiles(
    x, mask, outer, first, start, lengths, tiles, scale, shift, C: tl.constexpr, ALIGNED: tl.constexpr,
    LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums of a chunk's differences from a shift, of their squares, and how many there are."""
    differences = tl.zeros([CHANNELS, BLOCK], tl.float32)
    squares = tl.zeros([CHANNELS, BLOCK], tl.float32)
    counts = tl.zeros([1, BLOCK if mask is not None else 1], tl.float32)  # the same in all channels
    # one or two are on their way while one is added: places of 64 bits leave few registers
    for tile in tl.range(0, tiles, num_stages=2 if WIDE else 3):
        v, kept, valid = read_valid(
            x, mask, outer, first, start + tile * BLOCK, lengths, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE
        )
        d = tl.where(kept, v * scale[:, None] - shift[:, None], 0.0)
        differences += d
        squares = tl.fma(d, d, squares)
        if mask is not None:
            counts += valid.to(tl.float32)
    if mask is None:
        # known without a sum, which takes 16 registers
        counts += tl.maximum(tl.minimum(lengths[0].to(tl.int64) - start, tiles * BLOCK), 0).to(tl.float32)
    return tl.sum(differences, 1), tl.sum(squares, 1), tl.broadcast_to(tl.sum(counts, 1), [CHANNELS])


@triton.jit
def largest_of_tiles(
    x, mask, outer, first, start, lengths, tiles, C: tl.constexpr, ALIGNED: tl.constexpr,
    LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The largest size of a chunk's values in each channel."""
    largest = tl.zeros([CHANNELS, BLOCK], tl.float32)
    for tile in range(tiles):
        v, _kept, _valid = read_valid(
            x, mask, outer, first, start + tile * BLOCK, lengths, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE
        )
        largest = tl.maximum(largest, tl.abs(v))
    return tl.max(largest, 1)


@triton.jit
def measure_chunk(
    x, mask, outer, first, start, lengths, tiles, floor, C: tl.constexpr, ALIGNED: tl.constexpr,
    LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Mean, squared differences from it and count of each channel in a chunk of positions, in float64.

    ``floor`` is the deviation below which eps decides.
    """
    scale = tl.full([CHANNELS], 1.0, tl.float32)
    shift = mean_of_tile(x, mask, outer, first, start, lengths, scale, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE)
    total, square, number = sum_tiles(
        x, mask, outer, first, start, lengths, tiles, scale, shift, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE
    )
    n = tl.where(number > 0, number, 1.0)
    offset, variance = tl.div_rn(total, n), tl.div_rn(square, n)
    outside = ((variance + floor * floor > SMALLEST_VARIANCE) & (variance < LARGEST_VARIANCE)) == 0
    # also where the first tile's mean is so far from the chunk's that the sums lost bits
    rare = outside | ((4.0 * offset * offset <= variance) == 0)
    if tl.max(rare.to(tl.int32), 0) > 0:
        largest = largest_of_tiles(
            x, mask, outer, first, start, lengths, tiles, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE
        )
        scale = tl.where(outside, inverse_power(power_below(tl.maximum(largest, floor))), scale)
        nearer = mean_of_tile(
            x, mask, outer, first, start, lengths, scale, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE
        )
        again, _, _ = sum_tiles(
            x, mask, outer, first, start, lengths, tiles, scale, nearer, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK,
            WIDE,
        )  # fmt: skip
        nearer += tl.div_rn(again, n)
        again, squares, _ = sum_tiles(
            x, mask, outer, first, start, lengths, tiles, scale, nearer, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK,
            WIDE,
        )  # fmt: skip
        shift = tl.where(rare, nearer, shift)
        total = tl.where(rare, again, total)
        square = tl.where(rare, squares, square)
    unit = inverse_power(scale).to(tl.float64)
    wide = number.to(tl.float64)
    correction = total.to(tl.float64) / tl.where(wide > 0, wide, 1.0)
    mean = (shift.to(tl.float64) + correction) * unit
    return mean, (square.to(tl.float64) - total.to(tl.float64) * correction) * unit * unit, wide


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_measure_kernel(
    x, mask, partial, extent, period, factor, shift, chunks, tiles, count, floor, C: tl.constexpr,
    ALIGNED: tl.constexpr, LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Mean, squared differences and count of a chunk; ``count`` are the parts in ``partial``, of each number."""
    lengths = (extent, period, factor, shift)
    outer, first, chunk = program_place(chunks, C, CHANNELS, LAST)
    start = chunk * tiles * BLOCK
    mean, square, number = measure_chunk(
        x, mask, outer, first, start, lengths, tiles, floor, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE
    )
    channel = first + tl.arange(0, CHANNELS)
    own = partial + (outer * C + channel) * chunks + chunk
    planes = tl.cast(count, tl.int64)
    tl.store(own, mean, mask=channel < C)
    tl.store(own + planes, square, mask=channel < C)
    tl.store(own + 2 * planes, number, mask=channel < C)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_group_forward_kernel(
    x, weight, bias, statistics, variances, y, extent, floor, weight_offset, C: tl.constexpr, ALIGNED: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SINGLE: tl.constexpr, WHOLE: tl.constexpr, FLAT: tl.constexpr,
    FLAT_ALIGNED: tl.constexpr, SHARE: tl.constexpr, GROUPS: tl.constexpr, EPS: tl.constexpr, EPS_MODE: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """A group of a sample: once through it, FLAT elements at a time, for its statistics, and once back to write y."""
    outer, group = (tl.program_id(0) // GROUPS).to(tl.int64), (tl.program_id(0) % GROUPS).to(tl.int64)
    number = SHARE * extent
    mean, square, _number = measure_chunk(
        x, None, outer, group, 0, (number, number, 0, 0), tl.cdiv(number, FLAT), floor, GROUPS, FLAT_ALIGNED, False,
        False, 1, FLAT, False,
    )  # fmt: skip
    variance = square / number.to(tl.float64)
    variance = tl.where(variance < 0, 0.0, variance)
    parts = statistic_parts(mean, variance, EPS, EPS_MODE)
    index = tl.zeros([1], tl.int64) + tl.program_id(0)
    save_statistic(statistics, index, index >= 0, parts, EPS_MODE)
    tl.store(variances + index, variance.to(tl.float32))
    high, low, saved, _rest, bend = parts
    scale, mean, rest, reciprocal, _bend = in_range(high, low, saved, bend)
    end = end_of_tiles(extent, BLOCK, SINGLE)
    for part in range(0, SHARE, CHANNELS):
        for start in range(0, end, BLOCK):
            v, base, offsets, kept, w, b = group_values(
                x, weight, bias, outer, group, (SHARE - 1) // CHANNELS * CHANNELS - part,
                end - BLOCK - start, (extent, extent, 0, 0), weight_offset, C, ALIGNED, CHANNELS, BLOCK, WHOLE,
                SHARE,
            )  # fmt: skip
            normalized = normalized_tile(v, scale, mean, rest, reciprocal)
            result = activate(affine_tile(v, normalized, None, None, None, w, b, EPS_MODE, False), ACTIVATION)
            tl.store(y + base + offsets, result.to(y.dtype.element_ty), mask=kept)


@triton.jit
def move_running(running_mean, running_var, share, momentum, momentum_rest, channel, kept, mean, variance, number):
    """Move running statistics towards those of a batch of ``number`` values a channel, rounded once.

    A channel without values stays where it is. The momentum is in memory (``share``), or in two parts.
    """
    if share is not None:
        part = tl.load(share).to(tl.float64)
    else:
        part = tl.cast(momentum, tl.float64) + tl.cast(momentum_rest, tl.float64)
    kept = kept & (number > 0)
    unbiased = variance.to(tl.float64) * (number / tl.maximum(number - 1.0, 1.0))
    before = tl.load(running_mean + channel, mask=kept, other=0.0).to(tl.float64)
    spread = tl.load(running_var + channel, mask=kept, other=0.0).to(tl.float64)
    moved = (1.0 - part) * before + part * mean.to(tl.float64)
    tl.store(running_mean + channel, moved.to(running_mean.dtype.element_ty), mask=kept)
    moved = (1.0 - part) * spread + part * unbiased
    tl.store(running_var + channel, moved.to(running_var.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_merge_kernel(
    partial, statistics, variances, running_mean, running_var, share, count, entries, momentum, momentum_rest,
    EPS: tl.constexpr, EPS_MODE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The statistics, ``count`` of them, from the ``entries`` parts of each, in float64 and a fixed tree.

    Running statistics, where there are any, move towards them.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    planes = tl.cast(count, tl.int64) * entries
    numbers = tl.zeros([ROWS, BLOCK], tl.float64)
    highest = tl.full([ROWS, BLOCK], -INFINITY, tl.float64)
    for start in range(0, entries, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        kept = there[:, None] & (entry < entries)[None, :]
        own = partial + row[:, None] * entries + entry[None, :]
        number = tl.load(own + 2 * planes, mask=kept, other=0.0)
        numbers += number
        highest = tl.maximum(highest, tl.where(number > 0, tl.load(own, mask=kept, other=0.0), -INFINITY))
    shift = tl.max(highest, 1)  # any mean will do that makes constants exact
    shift = tl.where(shift > -INFINITY, shift, 0.0)
    differences = tl.zeros([ROWS, BLOCK], tl.float64)
    squares = tl.zeros([ROWS, BLOCK], tl.float64)
    for start in range(0, entries, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        kept = there[:, None] & (entry < entries)[None, :]
        own = partial + row[:, None] * entries + entry[None, :]
        number = tl.load(own + 2 * planes, mask=kept, other=0.0)
        d = tl.where(number > 0, tl.load(own, mask=kept, other=0.0) - shift[:, None], 0.0)
        differences += number * d
        squares += tl.load(own + planes, mask=kept, other=0.0) + number * d * d
    number = tl.sum(numbers, 1)
    n = tl.where(number > 0, number, 1.0)
    offset = tl.sum(differences, 1) / n
    variance = tl.sum(squares, 1) / n - offset * offset
    variance = tl.where(variance < 0, 0.0, variance)
    variance = tl.where(number > 0, variance, 1.0)  # nothing valid: any statistics will do that are finite
    mean = shift + offset
    save_statistic(statistics, row, there, statistic_parts(mean, variance, EPS, EPS_MODE), EPS_MODE)
    rounded = variance.to(tl.float32)
    tl.store(variances + row, rounded, mask=there)
    if running_mean is not None:
        rounded_mean = mean.to(tl.float32)
        move_running(
            running_mean, running_var, share, momentum, momentum_rest, row, there, rounded_mean, rounded, number
        )


@triton.jit
def channels_remember_kernel(
    mean, variance, statistics, variances, C: tl.constexpr, EPS: tl.constexpr, EPS_MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The statistics that are given, as those that are measured are saved."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = channel < C
    spread = tl.load(variance + channel, mask=there, other=1.0).to(tl.float64)
    centre = tl.load(mean + channel, mask=there, other=0.0).to(tl.float64)
    save_statistic(statistics, channel, there, statistic_parts(centre, spread, EPS, EPS_MODE), EPS_MODE)
    tl.store(variances + channel, spread.to(tl.float32), mask=there)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_write_kernel(
    x, weight, bias, mask, statistics, y, extent, period, factor, shift, chunks, weight_offset, C: tl.constexpr,
    ALIGNED: tl.constexpr,
    LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, SHARE: tl.constexpr, GROUPS: tl.constexpr, EPS_MODE: tl.constexpr, ACTIVATION: tl.constexpr,
    REMEMBERED: tl.constexpr,
):  # fmt: skip
    """A tile of y: read once, written once, rounded once."""
    lengths = (extent, period, factor, shift)
    v, base, offsets, inside, kept, index, there, restored, w, b = open_tile(
        x, weight, bias, mask, statistics, lengths, chunks, weight_offset, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK,
        WIDE, SHARE, GROUPS, EPS_MODE,
    )  # fmt: skip
    scale, mean, rest, reciprocal, _ = restored
    normalized = normalized_tile(v, scale, mean, rest, reciprocal)
    result = activate(
        affine_tile(v, normalized, statistics, index, there, w, b, EPS_MODE, REMEMBERED), ACTIVATION
    )  # fmt: skip
    if mask is not None:
        result = tl.where(kept, result, 0.0)
    tl.store(y + base + offsets, result.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_update_kernel(
    running_mean, running_var, statistics, variances, count, momentum, momentum_rest, C: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Move running statistics towards those that a batch of ``count`` values a channel has given."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = channel < C
    mean = tl.load(statistics + channel * WIDTH, mask=there, other=0.0)
    variance = tl.load(variances + channel, mask=there, other=0.0)
    number = tl.full([BLOCK], 0.0, tl.float64) + tl.cast(count, tl.float64)
    move_running(
        running_mean, running_var, None, momentum, momentum_rest, channel, there, mean, variance, number
    )  # fmt: skip
