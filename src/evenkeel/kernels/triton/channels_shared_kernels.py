"""What the kernels of channel norms share: tiles of channels and positions, saved statistics, affine and activation.

A tile is [channels, positions] in either layout; what is innermost in memory moves in vectors. Positions are those of
one sample, or with SPANS those of all of them, which BatchNorm's statistics are over.
"""

from __future__ import annotations

import triton
import triton.language as tl

from evenkeel.kernels.triton.shared_kernels import (
    CENTRED,
    LIFT,
    LOWER,
    SMALLEST_POWER,
    TINY,
    add_exactly,
    centre,
    inverse_power,
    out_of_range,
    power_below,
    quotient_of,
    steps_inside,
)

INFINITY = tl.constexpr(float("inf"))
LARGEST = tl.constexpr(3.4028234663852886e38)
LOG2_E = tl.constexpr(1.4426950408889634)
LN2, LN2_REST = tl.constexpr(0.693359375), tl.constexpr(-2.12194440e-4)  # the first so short that n times it is exact
ROUND = tl.constexpr(12583039.0)  # 1.5 * 2^23 + 127: what it is added to ends in the bits of the power of two
RELU, SILU = tl.constexpr(1), tl.constexpr(2)


@triton.jit
def program_place(chunks, C: tl.constexpr, CHANNELS: tl.constexpr, LAST: tl.constexpr):
    """A program's sample, its first channel and its chunk of positions, in the order of memory."""
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    program = tl.program_id(0)
    if LAST:
        block = program % blocks
        chunk = program // blocks % chunks
    else:
        chunk = program % chunks
        block = program // chunks % blocks
    return (program // chunks // blocks).to(tl.int64), block.to(tl.int64) * CHANNELS, chunk.to(tl.int64)


@triton.jit
def narrowed(n, lengths):
    """A position in as many bits as the walk takes: with 64, divisions take a hundred steps.

    ``lengths`` are the positions that a walk goes on to, the period after which they begin again, and the period's
    factor and shift for `quotient_of`.
    """
    if lengths[0].dtype == tl.int32:
        n = tl.cast(n, tl.int32)
    return n


@triton.jit
def tile_at(
    outer, first, start, lengths, C: tl.constexpr, ALIGNED: tl.constexpr, LAST: tl.constexpr, SPANS: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Where a tile begins, its elements from there on, and which of them exist.

    ALIGNED is a power of two that divides the period and BLOCK.
    """
    extent, period, factor, shift = lengths
    lanes = tl.arange(0, CHANNELS)
    steps = tl.arange(0, BLOCK)
    if WIDE:
        lanes = lanes.to(tl.int64)
        steps = steps.to(tl.int64)
    if LAST:
        base = (outer * extent + start) * C + first
        offsets = steps[None, :] * C + lanes[:, None]
    elif SPANS:
        begin = narrowed(start, lengths)
        sample = quotient_of(begin, period, factor, shift)
        position = begin - sample * period
        # both, for a product of 32 bits would have wrapped before it meets one of 64
        width: tl.constexpr = tl.int64 if WIDE else tl.int32
        position, period = position.to(width), period.to(width)
        position += steps
        later = quotient_of(position, period, factor, shift)
        place = tl.max_contiguous(tl.multiple_of(position - later * period, ALIGNED), ALIGNED)
        sample_size = tl.max_constancy(tl.multiple_of(later * (C * period), ALIGNED), ALIGNED)
        base = tl.multiple_of((sample.to(tl.int64) * C + first) * period, ALIGNED)
        offsets = (sample_size + place)[None, :] + tl.multiple_of(lanes * period, ALIGNED)[:, None]
    else:
        base = tl.multiple_of((outer * C + first) * extent, ALIGNED) + start
        offsets = tl.multiple_of(lanes * extent, ALIGNED)[:, None] + steps[None, :]
    inside = steps_inside(start, extent, ALIGNED, BLOCK)[None, :]
    return base, offsets, inside & (first + tl.arange(0, CHANNELS) < C)[:, None]


@triton.jit
def valid_at(mask, outer, start, lengths, ALIGNED: tl.constexpr, SPANS: tl.constexpr, BLOCK: tl.constexpr):
    """Which positions of a tile a mask keeps, whose samples' channels have ``period`` of them."""
    position = narrowed(start, lengths) + tl.arange(0, BLOCK)
    place = position
    if not SPANS:
        _extent, period, factor, shift = lengths
        position -= quotient_of(position, period, factor, shift) * period
        place = tl.multiple_of(outer * period, ALIGNED)
        place += tl.max_contiguous(tl.multiple_of(position, ALIGNED), ALIGNED)
    return (tl.load(mask + place, mask=steps_inside(start, lengths[0], ALIGNED, BLOCK), other=0) != 0)[None, :]


@triton.jit
def read_tile(source, base, offsets, inside, mask, kept):
    """A tile in float32, 0 where nothing is kept; with a mask too it is read in whole vectors."""
    v = tl.load(source + base + offsets, mask=inside, other=0.0).to(tl.float32)
    if mask is not None:
        v = tl.where(kept, v, 0.0)
    return v


@triton.jit
def per_channel(parameter, channel, there, absent: tl.constexpr, offset, CHANNELS: tl.constexpr):
    """A parameter of some channels in float32 with an offset, or a constant where there is none."""
    if parameter is None:
        return tl.full([CHANNELS], absent, tl.float32)
    return tl.load(parameter + channel, mask=there, other=0.0).to(tl.float32) + offset


@triton.jit
def statistic_of(outer, channel, SHARE: tl.constexpr, GROUPS: tl.constexpr):
    """Which statistic a channel has: its own, or with GROUPS that of a group of SHARE channels of a sample."""
    return outer * GROUPS + channel // SHARE if GROUPS > 0 else channel


@triton.jit
def reciprocal_of_variance(variance, EPS: tl.constexpr, EPS_MODE: tl.constexpr):
    """1/scale in float64, and the slope of the scale where eps bends it."""
    eps = tl.full(variance.shape, EPS, tl.float64)
    bend = tl.full(variance.shape, 1.0, tl.float64)
    if EPS_MODE == 0:
        return 1.0 / tl.sqrt(variance + eps), bend
    root = tl.sqrt(variance)
    if EPS_MODE == 1:
        # the largest number for what is beyond it: there the bend is of no account
        bend = tl.where(root == 0, 0.0, tl.minimum((root + eps) / tl.where(root == 0, 1.0, root), LARGEST))
        return 1.0 / (root + eps), bend
    low = root < eps
    return 1.0 / tl.where(low, eps, root), tl.where(low, 0.0, bend)


@triton.jit
def saved_at(statistics, index, EPS_MODE: tl.constexpr):
    """Where statistics are saved: mean and 1/scale, each in two parts, and a slope where eps bends the scale."""
    return statistics + index.to(tl.int64) * (4 if EPS_MODE == 0 else 5)


@triton.jit
def statistic_parts(mean, variance, EPS: tl.constexpr, EPS_MODE: tl.constexpr):
    """What is saved of a statistic in float32: mean and 1/scale, each in two parts, and the slope."""
    high = mean.to(tl.float32)
    exact, bend = reciprocal_of_variance(variance, EPS, EPS_MODE)
    # of values near float32's largest it is below the normal numbers: saved times LIFT, and negative to say so
    lifted = exact < TINY
    exact = tl.where(lifted, exact * LIFT, exact)
    reciprocal = exact.to(tl.float32)
    rest = tl.where(reciprocal < INFINITY, (exact - reciprocal.to(tl.float64)).to(tl.float32), 0.0)
    low = (mean - high.to(tl.float64)).to(tl.float32)
    return high, low, tl.where(lifted, -reciprocal, reciprocal), rest, bend.to(tl.float32)


@triton.jit
def save_statistic(statistics, index, kept, parts, EPS_MODE: tl.constexpr):
    """Write the parts of statistics."""
    own = saved_at(statistics, index, EPS_MODE)
    high, low, saved, rest, bend = parts
    tl.store(own, high, mask=kept)
    tl.store(own + 1, low, mask=kept)
    tl.store(own + 2, saved, mask=kept)
    tl.store(own + 3, rest, mask=kept)
    if EPS_MODE != 0:
        tl.store(own + 4, bend, mask=kept)


@triton.jit
def restore_statistic(statistics, index, kept, EPS_MODE: tl.constexpr):
    """Scale, mean in two parts, reciprocal and slope of saved statistics, as `in_range` gives them."""
    own = saved_at(statistics, index, EPS_MODE)
    mean = tl.load(own, mask=kept, other=0.0)
    rest = tl.load(own + 1, mask=kept, other=0.0)
    saved = tl.load(own + 2, mask=kept, other=1.0)
    bend = tl.full(saved.shape, 1.0, tl.float32)
    if EPS_MODE != 0:
        bend = tl.load(own + 4, mask=kept, other=0.0)
    return in_range(mean, rest, saved, bend)


@triton.jit
def in_range(mean, rest, saved, bend):
    """Scale, mean in two parts, reciprocal and slope of statistics: scaled where float32 could not hold the products.

    The scale is a power of two, 1 for all but the rare ones.
    """
    size = tl.abs(saved)
    lower = tl.where(saved < 0, LOWER, 1.0)
    scale = tl.where(out_of_range(saved), tl.maximum(power_below(size) * lower, SMALLEST_POWER), 1.0)
    # a constant channel far from 0 has a large reciprocal and a mean that must stay finite
    scale = tl.where(scale > 1, tl.minimum(scale, tl.maximum(inverse_power(power_below(tl.abs(mean))), 1.0)), scale)
    reciprocal = size * inverse_power(scale) * lower
    reciprocal = tl.where(size < INFINITY, tl.minimum(reciprocal, LARGEST), reciprocal)
    reciprocal = tl.where(size == size, reciprocal, size)
    return scale, mean * scale, rest * scale, reciprocal, bend


@triton.jit
def normalized_tile(v, scale, mean, rest, reciprocal):
    """The normalized values of a tile."""
    return centre(v, scale, mean, rest, CENTRED) * reciprocal[:, None]


@triton.jit
def remembered_affine(v, statistics, index, kept, w, b, EPS_MODE: tl.constexpr):
    """Weight times the normalized values plus bias, by statistics that are not of this input: its terms may cancel.

    So every step carries what it lost.
    """
    own = saved_at(statistics, index, EPS_MODE)
    mean = tl.load(own, mask=kept, other=0.0)
    exact = tl.load(own + 2, mask=kept, other=1.0).to(tl.float64)
    exact = (exact + tl.load(own + 3, mask=kept, other=0.0).to(tl.float64)) * w.to(tl.float64)
    scale = exact.to(tl.float32)
    scale_rest = tl.where(tl.abs(scale) < INFINITY, (exact - scale.to(tl.float64)).to(tl.float32), 0.0)
    centred, lost = add_exactly(v, -mean[:, None])
    scales = tl.broadcast_to(scale[:, None], v.shape)
    product = centred * scales
    rest = tl.fma(centred, scales, -product) + centred * scale_rest[:, None] + lost * scales
    total, lost = add_exactly(product, tl.broadcast_to(b[:, None], v.shape))
    corrected = total + (lost + rest)
    return tl.where(tl.abs(corrected) < INFINITY, corrected, total)  # an infinity has no rest


@triton.jit
def affine_tile(
    v, normalized, statistics, index, kept, w, b, EPS_MODE: tl.constexpr, REMEMBERED: tl.constexpr
):  # fmt: skip
    """What the activation is applied to."""
    if REMEMBERED:
        return remembered_affine(v, statistics, index, kept, w, b, EPS_MODE)
    return tl.fma(normalized, tl.broadcast_to(w[:, None], v.shape), tl.broadcast_to(b[:, None], v.shape))


@triton.jit
def power_of_minus(t):
    """exp(-t) for t from -89, where it is infinite, to 87: a polynomial, so that every GPU has the same bits."""
    rounding = tl.full(t.shape, ROUND, tl.float32)
    shifted = tl.fma(t, tl.full(t.shape, -LOG2_E, tl.float32), rounding)
    n = shifted - rounding
    r = tl.fma(n, tl.full(t.shape, LN2_REST, tl.float32), tl.fma(n, tl.full(t.shape, LN2, tl.float32), t))
    # of least relative error, 0.8 ulps
    series = tl.full(t.shape, -0.008290272206068039, tl.float32)
    series = tl.fma(series, r, tl.full(t.shape, 0.04189816117286682, tl.float32))
    series = tl.fma(series, r, tl.full(t.shape, -0.1666763871908188, tl.float32))
    series = tl.fma(series, r, tl.full(t.shape, 0.4999914765357971, tl.float32))
    series = tl.fma(series, r, tl.full(t.shape, -0.9999997019767761, tl.float32))
    series = tl.fma(series, r, tl.full(t.shape, 1.0, tl.float32))
    return series * (shifted.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)


@triton.jit
def activate(v, ACTIVATION: tl.constexpr):
    """max(v, 0), v / (1 + exp(-v)), or v itself."""
    if ACTIVATION == RELU:
        return tl.where(v < 0, 0.0, v)
    if ACTIVATION == SILU:
        return tl.div_rn(v, 1.0 + power_of_minus(tl.maximum(tl.minimum(v, 87.0), -89.0)))
    return v


@triton.jit
def through_activation(upstream, v, ACTIVATION: tl.constexpr):
    """The upstream gradient times the activation's slope at v."""
    if ACTIVATION == RELU:
        return tl.where(v <= 0, 0.0, upstream)
    if ACTIVATION == SILU:
        # within these bounds no power is infinite; beyond them the slope is 0 and 1
        bounded = tl.maximum(tl.minimum(v, 87.0), -87.0)
        power = power_of_minus(bounded)
        sigmoid = tl.div_rn(tl.full(v.shape, 1.0, tl.float32), 1.0 + power)
        slope = tl.fma(bounded * sigmoid, power * sigmoid, sigmoid)
        slope = tl.where(v < -87.0, 0.0, slope)
        return upstream * tl.where(v == v, slope, v)
    return upstream


@triton.jit
def backward_tile(
    v, upstream, statistics, index, kept, scale, mean, rest, reciprocal, w, b, EPS_MODE: tl.constexpr,
    ACTIVATION: tl.constexpr, REMEMBERED: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """The gradient before the activation, and the normalized values.

    Of FEW elements a gradient may by chance be far smaller than the terms that it is the difference of: in float64.
    """
    if FEW:
        own = saved_at(statistics, index, EPS_MODE)
        middle = tl.load(own, mask=kept, other=0.0).to(tl.float64)
        middle += tl.load(own + 1, mask=kept, other=0.0).to(tl.float64)
        normalized = (v.to(tl.float64) - middle[:, None]) * exact_reciprocal(statistics, index, kept, EPS_MODE)[:, None]
        gradient = upstream.to(tl.float64)
        if ACTIVATION > 0:
            before = normalized * w.to(tl.float64)[:, None] + b.to(tl.float64)[:, None]
            if ACTIVATION == RELU:
                gradient = tl.where(before <= 0, 0.0, gradient)
            else:
                sigmoid = 1.0 / (1.0 + tl.exp(-before))
                gradient = gradient * (sigmoid * (1.0 + before * (1.0 - sigmoid)))
    else:
        normalized = normalized_tile(v, scale, mean, rest, reciprocal)
        gradient = upstream
        if ACTIVATION > 0:
            before = affine_tile(v, normalized, statistics, index, kept, w, b, EPS_MODE, REMEMBERED)
            gradient = through_activation(upstream, before, ACTIVATION)
    return gradient, normalized


@triton.jit
def exact_reciprocal(statistics, index, kept, EPS_MODE: tl.constexpr):
    """1/scale in both its parts, in float64."""
    own = saved_at(statistics, index, EPS_MODE)
    saved = tl.load(own + 2, mask=kept, other=1.0).to(tl.float64)
    rest = tl.load(own + 3, mask=kept, other=0.0).to(tl.float64)
    return (tl.abs(saved) + rest) * tl.where(saved < 0, LOWER, 1.0)


@triton.jit
def open_tile(
    x, weight, bias, mask, statistics, lengths, chunks, weight_offset, C: tl.constexpr, ALIGNED: tl.constexpr,
    LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    SHARE: tl.constexpr, GROUPS: tl.constexpr, EPS_MODE: tl.constexpr,
):  # fmt: skip
    """A program's tile of x, and all that is known of it.

    These are base and offsets, which elements exist and which of them are valid; index and existence of the channels'
    statistics, these as `restore_statistic` gives them, weight and bias.
    """
    outer, first, chunk = program_place(chunks, C, CHANNELS, LAST)
    start = chunk * BLOCK
    base, offsets, inside = tile_at(outer, first, start, lengths, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE)
    kept = inside
    if mask is not None:
        kept = kept & valid_at(mask, outer, start, lengths, ALIGNED, SPANS, BLOCK)
    v = read_tile(x, base, offsets, inside, mask, kept)
    channel = first + tl.arange(0, CHANNELS)
    there = channel < C
    index = statistic_of(outer, channel, SHARE, GROUPS)
    restored = restore_statistic(statistics, index, there, EPS_MODE)
    w = per_channel(weight, channel, there, 1.0, weight_offset, CHANNELS)
    b = per_channel(bias, channel, there, 0.0, 0.0, CHANNELS)
    return v, base, offsets, inside, kept, index, there, restored, w, b


@triton.jit
def end_of_tiles(extent, BLOCK: tl.constexpr, SINGLE: tl.constexpr):
    """Where the last tile of a channel ends; with a SINGLE one the compiler leaves the loop over them out."""
    return tl.full([], BLOCK, tl.int32) if SINGLE else tl.cdiv(extent, BLOCK) * BLOCK


@triton.jit
def group_values(
    x, weight, bias, outer, group, part, start, lengths, weight_offset, C: tl.constexpr, ALIGNED: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """A tile of some channels of a group: values, base and offsets, which elements exist, and their parameters.

    WHOLE says that all do: no tile reaches beyond.
    """
    first = group * SHARE + part
    base, offsets, kept = tile_at(outer, first, start, lengths, C, ALIGNED, False, False, CHANNELS, BLOCK, False)
    there = part + tl.arange(0, CHANNELS) < SHARE
    kept = tl.full([CHANNELS, BLOCK], True, tl.int1) if WHOLE else kept & there[:, None]
    channel = first + tl.arange(0, CHANNELS)
    w = per_channel(weight, channel, there, 1.0, weight_offset, CHANNELS)
    b = per_channel(bias, channel, there, 0.0, 0.0, CHANNELS)
    return read_tile(x, base, offsets, kept, None, kept), base, offsets, kept, w, b
