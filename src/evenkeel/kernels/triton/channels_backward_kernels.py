"""The backward of the channel norms: sums over positions, what follows from them, and dx."""

from __future__ import annotations

import triton
import triton.language as tl

from evenkeel.kernels.triton.channels_forward_kernels import UNSPECIALIZED
from evenkeel.kernels.triton.channels_shared_kernels import (
    backward_tile,
    exact_reciprocal,
    open_tile,
    per_channel,
    program_place,
    read_tile,
    restore_statistic,
    statistic_of,
    tile_at,
    valid_at,
)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def channels_sums_kernel(
    dy, x, weight, bias, mask, statistics, partial, samples, chunks, tiles, count, weight_offset, C: tl.constexpr,
    P: tl.constexpr, PERIOD: tl.constexpr, LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr, SHARE: tl.constexpr, GROUPS: tl.constexpr,
    EPS_MODE: tl.constexpr, ACTIVATION: tl.constexpr, REMEMBERED: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Each channel's sums in a chunk of positions: of the gradient before the affine, of its product with x_hat.

    With a mask also how many are valid. ``count`` are the parts in ``partial``, of each sum.
    """
    outer, first, chunk = program_place(chunks, C, CHANNELS, LAST)
    start = chunk * CHUNK
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
        base, offsets, kept = tile_at(outer, first, begin, samples, C, P, LAST, SPANS, CHANNELS, BLOCK, WIDE)
        if mask is not None:
            kept = kept & valid_at(mask, outer, begin, samples, P, PERIOD, SPANS, BLOCK)
            counts += kept.to(tl.float32)
        v = read_tile(x, base, offsets, kept)
        upstream, normalized = backward_tile(
            v, read_tile(dy, base, offsets, kept), statistics, index, there, scale, mean, rest, reciprocal, w, b,
            EPS_MODE, ACTIVATION, REMEMBERED, FEW,
        )  # fmt: skip
        gradients += tl.where(kept, upstream, 0.0)
        products += tl.where(kept, upstream * normalized, 0.0)
    own = partial + (outer * C + channel) * chunks + chunk
    planes = tl.cast(count, tl.int64)
    tl.store(own, tl.sum(gradients.to(tl.float64), 1), mask=there)
    tl.store(own + planes, tl.sum(products.to(tl.float64), 1), mask=there)
    if mask is not None:
        tl.store(own + 2 * planes, tl.sum(counts, 1).to(tl.float64), mask=there)


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
    dy, x, weight, bias, mask, statistics, means, dx, samples, chunks, weight_offset, C: tl.constexpr,
    P: tl.constexpr, PERIOD: tl.constexpr, LAST: tl.constexpr, SPANS: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr, SHARE: tl.constexpr, GROUPS: tl.constexpr, EPS_MODE: tl.constexpr,
    ACTIVATION: tl.constexpr, REMEMBERED: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """A tile of dx = (g - mean(g) - x_hat * mean(g * x_hat)) / scale; remembered statistics have no such means."""
    v, base, offsets, inside, kept, index, there, restored, w, b = open_tile(
        x, weight, bias, mask, statistics, samples, chunks, weight_offset, C, P, PERIOD, LAST, SPANS, CHANNELS, BLOCK,
        WIDE, SHARE, GROUPS, EPS_MODE,
    )  # fmt: skip
    scale, mean, rest, reciprocal, bend = restored
    upstream, normalized = backward_tile(
        v, read_tile(dy, base, offsets, kept), statistics, index, there, scale, mean, rest, reciprocal, w, b,
        EPS_MODE, ACTIVATION, REMEMBERED, FEW,
    )  # fmt: skip
    w = tl.broadcast_to(w[:, None], v.shape)
    if REMEMBERED:
        value = upstream * w * reciprocal[:, None] * scale[:, None]
    else:
        shift = tl.load(means + index * 2, mask=there, other=0.0)
        slope = tl.load(means + index * 2 + 1, mask=there, other=0.0) * bend.to(tl.float64)
        if FEW:
            value = upstream * w.to(tl.float64) - shift[:, None] - normalized * slope[:, None]
            value = value * exact_reciprocal(statistics, index, there, EPS_MODE)[:, None]
        else:
            value = tl.fma(upstream, w, tl.broadcast_to(-shift.to(tl.float32)[:, None], v.shape))
            value = tl.fma(normalized, tl.broadcast_to(-slope.to(tl.float32)[:, None], v.shape), value)
            value = value * reciprocal[:, None] * scale[:, None]
    value = value.to(tl.float32)
    if mask is not None:
        value = tl.where(kept, value, 0.0)
    tl.store(dx + base + offsets, value.to(dx.dtype.element_ty), mask=inside)
