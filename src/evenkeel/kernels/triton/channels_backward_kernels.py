"""The backward of the channel norms: sums over positions, what follows from them, and dx."""

from __future__ import annotations

import triton
import triton.language as tl

from evenkeel.kernels.triton.channels_forward_kernels import UNSPECIALIZED
from evenkeel.kernels.triton.channels_shared_kernels import (
    SILU,
    backward_tile,
    end_of_tiles,
    exact_reciprocal,
    group_values,
    open_tile,
    per_channel,
    program_place,
    read_tile,
    restore_statistic,
    statistic_of,
    tile_at,
    valid_at,
)


@triton.jit
def sums_of_channels(v, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, NEAR: tl.constexpr):
    """The sums of a tile's channels in float64 of NEAR neighbours each: as many as take the fewest registers."""
    if NEAR > 1 and BLOCK >= NEAR:
        v = tl.sum(tl.reshape(v, [CHANNELS, BLOCK // NEAR, NEAR]), 2)
    return tl.sum(v.to(tl.float64), 1)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_sums_kernel(
    dy, x, weight, bias, mask, statistics, partial, extent, period, factor, shift, chunks, tiles, count, weight_offset,
    C: tl.constexpr, ALIGNED: tl.constexpr, LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr, SHARE: tl.constexpr, GROUPS: tl.constexpr, EPS_MODE: tl.constexpr,
    ACTIVATION: tl.constexpr, REMEMBERED: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Each channel's sums in a chunk of positions: of the gradient before the affine, of its product with x_hat.

    With a mask also how many are valid. ``count`` are the parts in ``partial``, of each sum.
    """
    lengths = (extent, period, factor, shift)
    outer, first, chunk = program_place(chunks, C, CHANNELS, LAST)
    start = chunk * tiles * BLOCK
    channel = first + tl.arange(0, CHANNELS)
    there = channel < C
    index = statistic_of(outer, channel, SHARE, GROUPS)
    scale, mean, rest, reciprocal, _ = restore_statistic(statistics, index, there, EPS_MODE)
    w = per_channel(weight, channel, there, 1.0, weight_offset, CHANNELS)
    b = per_channel(bias, channel, there, 0.0, 0.0, CHANNELS)
    gradients = tl.zeros([CHANNELS, BLOCK], tl.float64 if FEW else tl.float32)
    products = tl.zeros([CHANNELS, BLOCK], tl.float64 if FEW else tl.float32)
    counts = tl.zeros([CHANNELS, BLOCK], tl.float32)
    for tile in range(tiles):
        begin = start + tile * BLOCK
        base, offsets, inside = tile_at(outer, first, begin, lengths, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK, WIDE)
        kept = inside
        if mask is not None:
            kept = kept & valid_at(mask, outer, begin, lengths, ALIGNED, SPANS, BLOCK)
            counts += kept.to(tl.float32)
        v = read_tile(x, base, offsets, inside, mask, kept)
        upstream = read_tile(dy, base, offsets, inside, mask, kept)
        upstream, normalized = backward_tile(
            v, upstream, statistics, index, there, scale, mean, rest, reciprocal, w, b, EPS_MODE, ACTIVATION,
            REMEMBERED, FEW,
        )  # fmt: skip
        gradients += tl.where(kept, upstream, 0.0)
        products += tl.where(kept, upstream * normalized, 0.0)
    NEAR: tl.constexpr = 8 if ACTIVATION == SILU and not LAST else 1
    own = partial + (outer * C + channel) * chunks + chunk
    planes = tl.cast(count, tl.int64)
    tl.store(own, sums_of_channels(gradients, CHANNELS, BLOCK, NEAR), mask=there)
    tl.store(own + planes, sums_of_channels(products, CHANNELS, BLOCK, NEAR), mask=there)
    if mask is not None:
        tl.store(own + 2 * planes, tl.sum(counts, 1).to(tl.float64), mask=there)


@triton.jit
def group_tile(
    dy, x, weight, bias, statistics, outer, group, part, start, extent, restored, weight_offset, C: tl.constexpr,
    ALIGNED: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, SHARE: tl.constexpr,
    EPS_MODE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """A tile of some channels of a group: base and offsets, which elements exist, gradient, x_hat and weights."""
    v, base, offsets, kept, w, b = group_values(
        x, weight, bias, outer, group, part, start, (extent, extent, 0, 0), weight_offset, C, ALIGNED, CHANNELS, BLOCK,
        WHOLE, SHARE,
    )  # fmt: skip
    scale, mean, rest, reciprocal, _ = restored
    upstream = read_tile(dy, base, offsets, kept, None, kept)
    upstream, normalized = backward_tile(
        v, upstream, statistics, None, None, scale, mean, rest, reciprocal, w, b, EPS_MODE, ACTIVATION, False, False
    )
    return base, offsets, kept, upstream, normalized, w


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_group_gradient_kernel(
    dy, x, weight, bias, statistics, dx, partial, extent, count, weight_offset, C: tl.constexpr,
    ALIGNED: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SINGLE: tl.constexpr, WHOLE: tl.constexpr,
    SHARE: tl.constexpr, GROUPS: tl.constexpr, EPS_MODE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """dx of a group of a sample: once through it from its end for its sums, and back, which meets the caches' newest.

    ``partial`` takes each channel's sums in the sample, ``count`` of each. WHOLE says that no tile reaches beyond.
    """
    outer, group = (tl.program_id(0) // GROUPS).to(tl.int64), (tl.program_id(0) % GROUPS).to(tl.int64)
    index = tl.zeros([CHANNELS], tl.int64) + tl.program_id(0)
    restored = restore_statistic(statistics, index, index >= 0, EPS_MODE)
    gradient_sums = tl.zeros([CHANNELS], tl.float64)
    product_sums = tl.zeros([CHANNELS], tl.float64)
    NEAR: tl.constexpr = 4
    end = end_of_tiles(extent, BLOCK, SINGLE)
    for back in range(0, SHARE, CHANNELS):
        part = (SHARE - 1) // CHANNELS * CHANNELS - back
        gradients = tl.zeros([CHANNELS, BLOCK], tl.float32)
        products = tl.zeros([CHANNELS, BLOCK], tl.float32)
        for start in range(0, end, BLOCK):
            _base, _offsets, kept, upstream, normalized, _w = group_tile(
                dy, x, weight, bias, statistics, outer, group, part, end - BLOCK - start, extent, restored,
                weight_offset, C, ALIGNED, CHANNELS, BLOCK, WHOLE, SHARE, EPS_MODE, ACTIVATION,
            )  # fmt: skip
            product = upstream * normalized
            if not WHOLE:  # the mask takes registers
                upstream, product = tl.where(kept, upstream, 0.0), tl.where(kept, product, 0.0)
            gradients += upstream
            products += product
        there = part + tl.arange(0, CHANNELS) < SHARE
        channel = group * SHARE + part + tl.arange(0, CHANNELS)
        gradient = sums_of_channels(gradients, CHANNELS, BLOCK, NEAR)
        product = sums_of_channels(products, CHANNELS, BLOCK, NEAR)
        if partial is not None:
            own = partial + outer * C + channel
            tl.store(own, gradient, mask=there)
            tl.store(own + tl.cast(count, tl.int64), product, mask=there)
        w = per_channel(weight, channel, there, 1.0, weight_offset, CHANNELS).to(tl.float64)
        gradient_sums += tl.where(there, gradient * w, 0.0)
        product_sums += tl.where(there, product * w, 0.0)
    if dx is not None:
        number = (SHARE * extent).to(tl.float64)
        write_group_gradient(
            dy, x, weight, bias, statistics, dx, outer, group, extent, end, restored, tl.sum(gradient_sums, 0) / number,
            tl.sum(product_sums, 0) / number, weight_offset, C, ALIGNED, CHANNELS, BLOCK, WHOLE, SHARE, EPS_MODE,
            ACTIVATION,
        )  # fmt: skip


@triton.jit
def write_group_gradient(
    dy, x, weight, bias, statistics, dx, outer, group, extent, end, restored, gradient_mean, product_mean,
    weight_offset, C: tl.constexpr, ALIGNED: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr, SHARE: tl.constexpr, EPS_MODE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """dx = (g - mean(g) - x_hat * mean(g * x_hat)) / scale of a group, from its start to its end."""
    scale, _mean, _rest, reciprocal, bend = restored
    shift, slope = gradient_mean.to(tl.float32), (product_mean * bend.to(tl.float64)).to(tl.float32)
    for part in range(0, SHARE, CHANNELS):
        for start in range(0, end, BLOCK):
            base, offsets, kept, upstream, normalized, w = group_tile(
                dy, x, weight, bias, statistics, outer, group, part, start, extent, restored, weight_offset, C, ALIGNED,
                CHANNELS, BLOCK, WHOLE, SHARE, EPS_MODE, ACTIVATION,
            )  # fmt: skip
            below = tl.full(upstream.shape, 0.0, tl.float32) - shift
            value = tl.fma(upstream, tl.broadcast_to(w[:, None], upstream.shape), below)
            value = tl.fma(normalized, tl.broadcast_to(-slope[:, None], upstream.shape), value)
            value = value * reciprocal[:, None] * scale[:, None]
            tl.store(dx + base + offsets, value.to(dx.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=(*UNSPECIALIZED, "elements"))
def channels_means_kernel(
    partial, weight, means, count, chunks, elements, weight_offset, SHARE: tl.constexpr, PARAMETERS: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The means of g and of g * x_hat over the ``elements`` of each of ``count`` statistics; g has the weight in it.

    A statistic has ``chunks`` sums for each of its SHARE channels; there are PARAMETERS weights of channels or groups.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    entries = chunks * SHARE
    planes = tl.cast(count, tl.int64) * entries
    gradients = tl.zeros([ROWS, BLOCK], tl.float64)
    products = tl.zeros([ROWS, BLOCK], tl.float64)
    numbers = tl.zeros([ROWS, BLOCK], tl.float64)
    for start in range(0, entries, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        kept = there[:, None] & (entry < entries)[None, :]
        own = partial + row[:, None] * entries + entry[None, :]
        gradient = tl.load(own, mask=kept, other=0.0)
        product = tl.load(own + planes, mask=kept, other=0.0)
        if weight is not None:
            channel = (row % PARAMETERS * SHARE)[:, None] + (entry // chunks)[None, :]
            w = (tl.load(weight + channel, mask=kept, other=0.0).to(tl.float32) + weight_offset).to(tl.float64)
            gradient *= w
            product *= w
        gradients += gradient
        products += product
        if MASKED:
            numbers += tl.load(own + 2 * planes, mask=kept, other=0.0)
    n = tl.full([ROWS], 0.0, tl.float64) + tl.cast(elements, tl.float64)
    if MASKED:
        n = tl.sum(numbers, 1)
    n = tl.where(n > 0, n, 1.0)
    tl.store(means + row * 2, tl.sum(gradients, 1) / n, mask=there)
    tl.store(means + row * 2 + 1, tl.sum(products, 1) / n, mask=there)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_parameters_kernel(
    partial, dweight, dbias, samples, chunks, count, C: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    """dγ and dβ: the sums of each channel over samples and chunks, in float64 and a fixed tree."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    gradients = tl.zeros([CHANNELS, BLOCK], tl.float64)
    products = tl.zeros([CHANNELS, BLOCK], tl.float64)
    planes = tl.cast(count, tl.int64)
    for start in range(0, samples * chunks, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        kept = (channel < C)[:, None] & (entry < samples * chunks)[None, :]
        sample = (entry // chunks).to(tl.int64)
        own = partial + (sample[None, :] * C + channel[:, None]) * chunks + (entry % chunks)[None, :]
        gradients += tl.load(own, mask=kept, other=0.0)
        products += tl.load(own + planes, mask=kept, other=0.0)
    if dweight is not None:
        tl.store(dweight + channel, tl.sum(products, 1).to(dweight.dtype.element_ty), mask=channel < C)
    if dbias is not None:
        tl.store(dbias + channel, tl.sum(gradients, 1).to(dbias.dtype.element_ty), mask=channel < C)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_gradient_kernel(
    dy, x, weight, bias, mask, statistics, means, dx, extent, period, factor, shift, chunks, weight_offset,
    C: tl.constexpr, ALIGNED: tl.constexpr, LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr, SHARE: tl.constexpr, GROUPS: tl.constexpr, EPS_MODE: tl.constexpr,
    ACTIVATION: tl.constexpr, REMEMBERED: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """A tile of dx = (g - mean(g) - x_hat * mean(g * x_hat)) / scale; remembered statistics have no such means."""
    lengths = (extent, period, factor, shift)
    v, base, offsets, inside, kept, index, there, restored, w, b = open_tile(
        x, weight, bias, mask, statistics, lengths, chunks, weight_offset, C, ALIGNED, LAST, SPANS, CHANNELS, BLOCK,
        WIDE, SHARE, GROUPS, EPS_MODE,
    )  # fmt: skip
    scale, mean, rest, reciprocal, bend = restored
    upstream = read_tile(dy, base, offsets, inside, mask, kept)
    upstream, normalized = backward_tile(
        v, upstream, statistics, index, there, scale, mean, rest, reciprocal, w, b, EPS_MODE, ACTIVATION, REMEMBERED,
        FEW,
    )  # fmt: skip
    w = tl.broadcast_to(w[:, None], v.shape)
    if REMEMBERED:
        value = upstream * w * reciprocal[:, None] * scale[:, None]
    else:
        mean_gradient = tl.load(means + index * 2, mask=there, other=0.0)
        slope = tl.load(means + index * 2 + 1, mask=there, other=0.0) * bend.to(tl.float64)
        if FEW:
            value = upstream * w.to(tl.float64) - mean_gradient[:, None] - normalized * slope[:, None]
            value = value * exact_reciprocal(statistics, index, there, EPS_MODE)[:, None]
        else:
            value = tl.fma(upstream, w, tl.broadcast_to(-mean_gradient.to(tl.float32)[:, None], v.shape))
            value = tl.fma(normalized, tl.broadcast_to(-slope.to(tl.float32)[:, None], v.shape), value)
            value = value * reciprocal[:, None] * scale[:, None]
    value = value.to(tl.float32)
    if mask is not None:
        value = tl.where(kept, value, 0.0)
    tl.store(dx + base + offsets, value.to(dx.dtype.element_ty), mask=inside)
