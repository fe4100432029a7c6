"""The backward of the row norms: dx, and the sums over rows that dγ and dβ are made of."""

from __future__ import annotations

import triton
import triton.language as tl

from evenkeel.kernels.triton.shared_kernels import (
    CENTRED,
    centre,
    exists,
    place_of,
    read,
    read_parameter,
    read_sum,
    restore,
)

UNSPECIALIZED = (
    "rows", "features", "inner", "dy_outer", "dy_inner", "dsum_outer", "dsum_inner", "x_outer", "x_inner",
    "residual_outer", "residual_inner", "chunks",
)  # fmt: skip


@triton.jit
def normalized_of(
    x, residual, place, residual_place, columns, kept, scale, mean, rest, reciprocal,
    weight, bias, weight_offset, N: tl.constexpr, STATISTIC: tl.constexpr, ROUNDED: tl.constexpr,
    FROM_OUTPUT: tl.constexpr,
):  # fmt: skip
    """The normalized values of a tile: from what was normalized and its statistics, or from the output."""
    v = read_sum(x, residual, place, residual_place, columns, kept, ROUNDED)
    if FROM_OUTPUT:
        in_row = columns < N
        if bias is not None:
            v = tl.where(in_row[None, :], v - read_parameter(bias, columns, in_row, 0.0), 0.0)
        if weight is not None:
            w = read_parameter(weight, columns, in_row, weight_offset)
            v = tl.div_rn(v, tl.broadcast_to(tl.where(in_row[None, :], w, 1.0), v.shape))
        return v
    return centre(v, scale, mean, rest, STATISTIC) * reciprocal[:, None]


@triton.jit
def weighted(upstream, weight, columns, weight_offset, N: tl.constexpr):
    """The gradient of the normalized values."""
    if weight is not None:
        upstream *= read_parameter(weight, columns, columns < N, weight_offset)
    return upstream


@triton.jit
def slopes_of(gradient_sum, product_sum, bend, N: tl.constexpr, STATISTIC: tl.constexpr):
    """What is subtracted from a row's gradient: a constant, and the normalized values times a slope."""
    count: tl.constexpr = 1.0 if STATISTIC == 2 else N * 1.0
    slope = tl.div_rn(product_sum, count) * bend
    if STATISTIC != CENTRED:
        return tl.zeros_like(slope), slope
    return tl.div_rn(gradient_sum, count), slope


@triton.jit
def write_gradient(
    dx, dresidual, dsum, dsum_place, row, columns, kept, upstream, weight, weight_offset,
    normalized, shift, slope, reciprocal, scale, N: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """dx = (dy * weight - shift - x_hat * slope) / scale + dsum, in dx's dtype and in the residual's."""
    if weight is not None:
        w = tl.broadcast_to(read_parameter(weight, columns, columns < N, weight_offset), upstream.shape)
        value = tl.fma(upstream, w, tl.broadcast_to(-shift[:, None], upstream.shape))
    else:
        value = upstream - shift[:, None]
    value = tl.fma(normalized, tl.broadcast_to(-slope[:, None], upstream.shape), value)
    value = value * reciprocal[:, None] * scale[:, None]
    if dsum is not None:
        value += read(dsum, dsum_place, columns, kept)
    own = place_of(row, 1, N, 0, False, ALIGNED)
    if dx is not None:
        tl.store(dx + own[:, None] + columns[None, :], value.to(dx.dtype.element_ty), mask=kept)
    if dresidual is not None:
        tl.store(dresidual + own[:, None] + columns[None, :], value.to(dresidual.dtype.element_ty), mask=kept)


@triton.jit
def sum_rows(sums):
    """The sum of a tile's rows: of many, in float64, or the error would grow with how few features a row has."""
    if sums.shape[0] > 4:
        return tl.sum(sums.to(tl.float64), 0).to(tl.float32)
    return tl.sum(sums, 0)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def rows_backward_kernel(
    dy, dsum, x, residual, weight, bias, statistics, dx, dresidual, dweight, dbias, rows, features, inner,
    dy_outer, dy_inner, dsum_outer, dsum_inner, x_outer, x_inner, residual_outer, residual_inner, weight_offset,
    N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, STATISTIC: tl.constexpr,
    EPS_MODE: tl.constexpr, ROUNDED: tl.constexpr, FROM_OUTPUT: tl.constexpr, NESTED: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """A chunk of whole rows, tile by tile, and its sums for dγ and dβ (in dweight and dbias, a row a chunk)."""
    chunk = tl.cast(tl.program_id(0), rows.dtype)
    columns = tl.arange(0, BLOCK)
    dweight_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    dbias_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(0, CHUNK, ROWS, num_stages=2):
        row = chunk * CHUNK + start + tl.arange(0, ROWS)
        there = exists(row, rows)
        kept = there[:, None] & (columns < N)[None, :]
        place = place_of(row, inner, x_outer, x_inner, NESTED, ALIGNED)
        residual_place = place_of(row, inner, residual_outer, residual_inner, NESTED, ALIGNED)
        upstream = read(dy, place_of(row, inner, dy_outer, dy_inner, NESTED, ALIGNED), columns, kept)
        scale, mean, rest, reciprocal, bend = restore(statistics, row, there, STATISTIC, EPS_MODE)
        normalized = normalized_of(
            x, residual, place, residual_place, columns, kept, scale, mean, rest, reciprocal,
            weight, bias, weight_offset, N, STATISTIC, ROUNDED, FROM_OUTPUT,
        )  # fmt: skip
        if dweight is not None:
            dweight_sums += tl.where(kept, upstream * normalized, 0.0)
        if dbias is not None:
            dbias_sums += upstream
        if dx is not None or dresidual is not None:
            g = weighted(upstream, weight, columns, weight_offset, N)
            product = tl.where(kept, g * normalized, 0.0)
            shift, slope = slopes_of(tl.sum(g, 1), tl.sum(product, 1), bend, N, STATISTIC)
            dsum_place = place_of(row, inner, dsum_outer, dsum_inner, NESTED, ALIGNED)
            write_gradient(
                dx, dresidual, dsum, dsum_place, row, columns, kept, upstream, weight, weight_offset,
                normalized, shift, slope, reciprocal, scale, N, ALIGNED,
            )  # fmt: skip
    own = chunk.to(tl.int64) * N + columns
    if dweight is not None:
        tl.store(dweight + own, sum_rows(dweight_sums), mask=columns < N)
    if dbias is not None:
        tl.store(dbias + own, sum_rows(dbias_sums), mask=columns < N)


@triton.jit
def long_row_gradient(
    dy, dsum, x, residual, weight, bias, statistics, dx, dresidual, row, features, inner,
    dy_outer, dy_inner, dsum_outer, dsum_inner, x_outer, x_inner, residual_outer, residual_inner, weight_offset,
    N: tl.constexpr, BLOCK: tl.constexpr, STATISTIC: tl.constexpr, EPS_MODE: tl.constexpr, ROUNDED: tl.constexpr,
    FROM_OUTPUT: tl.constexpr, NESTED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """dx of a row in blocks: one pass for its two sums, and one back to its start, which meets the caches' newest."""
    row = row + tl.arange(0, 1)
    there = row >= 0
    place = place_of(row, inner, x_outer, x_inner, NESTED, ALIGNED)
    residual_place = place_of(row, inner, residual_outer, residual_inner, NESTED, ALIGNED)
    dy_place = place_of(row, inner, dy_outer, dy_inner, NESTED, ALIGNED)
    dsum_place = place_of(row, inner, dsum_outer, dsum_inner, NESTED, ALIGNED)
    scale, mean, rest, reciprocal, bend = restore(statistics, row, there, STATISTIC, EPS_MODE)
    gradients = tl.zeros([1, BLOCK], tl.float32)
    products = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, features, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        kept = (columns < N)[None, :]
        normalized = normalized_of(
            x, residual, place, residual_place, columns, kept, scale, mean, rest, reciprocal,
            weight, bias, weight_offset, N, STATISTIC, ROUNDED, FROM_OUTPUT,
        )  # fmt: skip
        g = weighted(read(dy, dy_place, columns, kept), weight, columns, weight_offset, N)
        gradients += g
        product = g * normalized
        if N % BLOCK != 0:  # the mask takes registers
            product = tl.where(kept, product, 0.0)
        products += product
    shift, slope = slopes_of(tl.sum(gradients, 1), tl.sum(products, 1), bend, N, STATISTIC)
    for start in range(0, features, BLOCK):
        columns = (N - 1) // BLOCK * BLOCK - start + tl.arange(0, BLOCK)
        kept = (columns < N)[None, :]
        normalized = normalized_of(
            x, residual, place, residual_place, columns, kept, scale, mean, rest, reciprocal,
            weight, bias, weight_offset, N, STATISTIC, ROUNDED, FROM_OUTPUT,
        )  # fmt: skip
        write_gradient(
            dx, dresidual, dsum, dsum_place, row, columns, kept, read(dy, dy_place, columns, kept), weight,
            weight_offset, normalized, shift, slope, reciprocal, scale, N, ALIGNED,
        )  # fmt: skip


@triton.jit
def sum_columns(
    dy, x, residual, weight, bias, statistics, dweight, dbias, chunk, block, rows, inner,
    dy_outer, dy_inner, x_outer, x_inner, residual_outer, residual_inner, weight_offset,
    N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, STATISTIC: tl.constexpr,
    EPS_MODE: tl.constexpr, ROUNDED: tl.constexpr, FROM_OUTPUT: tl.constexpr, NESTED: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """What a chunk of rows in a block of columns adds to dγ and dβ."""
    columns = block * BLOCK + tl.arange(0, BLOCK)
    dweight_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    dbias_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(0, CHUNK, ROWS, num_stages=2):
        row = chunk * CHUNK + start + tl.arange(0, ROWS)
        there = exists(row, rows)
        kept = there[:, None] & (columns < N)[None, :]
        upstream = read(dy, place_of(row, inner, dy_outer, dy_inner, NESTED, ALIGNED), columns, kept)
        if dweight is not None:
            scale, mean, rest, reciprocal, _ = restore(statistics, row, there, STATISTIC, EPS_MODE)
            place = place_of(row, inner, x_outer, x_inner, NESTED, ALIGNED)
            residual_place = place_of(row, inner, residual_outer, residual_inner, NESTED, ALIGNED)
            normalized = normalized_of(
                x, residual, place, residual_place, columns, kept, scale, mean, rest, reciprocal,
                weight, bias, weight_offset, N, STATISTIC, ROUNDED, FROM_OUTPUT,
            )  # fmt: skip
            dweight_sums += tl.where(kept, upstream * normalized, 0.0)
        if dbias is not None:
            dbias_sums += upstream
    own = tl.cast(chunk, tl.int64) * N + columns
    if dweight is not None:
        tl.store(dweight + own, sum_rows(dweight_sums), mask=columns < N)
    if dbias is not None:
        tl.store(dbias + own, sum_rows(dbias_sums), mask=columns < N)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def long_rows_backward_kernel(
    dy, dsum, x, residual, weight, bias, statistics, dx, dresidual, dweight, dbias, rows, features, inner,
    dy_outer, dy_inner, dsum_outer, dsum_inner, x_outer, x_inner, residual_outer, residual_inner, weight_offset,
    N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    LINES: tl.constexpr, BLOCKS: tl.constexpr, STATISTIC: tl.constexpr, EPS_MODE: tl.constexpr,
    ROUNDED: tl.constexpr, FROM_OUTPUT: tl.constexpr, NESTED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Chunks of long rows: LINES programs have a row each, for dx, and BLOCKS a block of its columns, for dγ and dβ.

    Programs start in the order of memory, so that a chunk is read from there once, and then from the second-level
    cache. None waits for another.
    """
    chunk = tl.program_id(0) // (LINES + BLOCKS)
    part = tl.program_id(0) % (LINES + BLOCKS)
    row = chunk * CHUNK + part
    if (part < LINES) & (row < rows):
        long_row_gradient(
            dy, dsum, x, residual, weight, bias, statistics, dx, dresidual, row, features, inner, dy_outer, dy_inner,
            dsum_outer, dsum_inner, x_outer, x_inner, residual_outer, residual_inner, weight_offset, N, BLOCK,
            STATISTIC, EPS_MODE, ROUNDED, FROM_OUTPUT, NESTED, ALIGNED,
        )  # fmt: skip
    if part >= LINES:
        sum_columns(
            dy, x, residual, weight, bias, statistics, dweight, dbias, chunk, part - LINES, rows, inner, dy_outer,
            dy_inner, x_outer, x_inner, residual_outer, residual_inner, weight_offset, N, COLUMNS, ROWS, CHUNK,
            STATISTIC, EPS_MODE, ROUNDED, FROM_OUTPUT, NESTED, ALIGNED,
        )  # fmt: skip


@triton.jit
def add_chunks(partial, out, chunks, N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """The sum over the chunks: every ROWS-th one after the other, then a tree, in float64."""
    if out is not None:
        columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        sums = tl.zeros([ROWS, BLOCK], tl.float64)
        for start in range(0, chunks, ROWS):
            chunk = start + tl.arange(0, ROWS)
            kept = (chunk < chunks)[:, None] & (columns < N)[None, :]
            places = chunk.to(tl.int64)[:, None] * N + columns[None, :]
            sums += tl.load(partial + places, mask=kept, other=0.0).to(tl.float64)
        tl.store(out + columns, tl.sum(sums, 0).to(out.dtype.element_ty), mask=columns < N)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def tree_kernel(
    dweight_partial, dbias_partial, dweight, dbias, chunks, N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """dγ and dβ from what the chunks add to them."""
    if tl.program_id(1) == 0:
        add_chunks(dweight_partial, dweight, chunks, N, BLOCK, ROWS)
    else:
        add_chunks(dbias_partial, dbias, chunks, N, BLOCK, ROWS)
