"""The forward of the row norms: whole rows in registers, or row by row in blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from evenkeel.kernels.triton.shared_kernels import (
    CENTRED,
    centre,
    conclude,
    exists,
    measure,
    out_of_range,
    place_of,
    read_parameter,
    read_sum,
    reciprocal_of,
    save,
    scale_of,
)

# no variants by what varies with the batch and the layout: a row's bits must not
UNSPECIALIZED = (
    "rows", "features", "inner", "x_outer", "x_inner", "residual_outer", "residual_inner", "y_outer", "y_inner",
)  # fmt: skip


@triton.jit
def write(y, place, columns, kept, normalized, x, weight, bias, weight_offset, N: tl.constexpr, EARLY: tl.constexpr):
    """Apply the parameters and store: one rounding at the end, or one before the weight as well (EARLY > 0).

    EARLY is 2 where the product with the weight is rounded too, because both have x's dtype.
    """
    if EARLY > 0:
        normalized = normalized.to(x.dtype.element_ty).to(tl.float32)
    in_row = columns < N
    if weight is not None:
        w = tl.broadcast_to(read_parameter(weight, columns, in_row, weight_offset), normalized.shape)
        if bias is not None and EARLY == 0:
            b = tl.broadcast_to(read_parameter(bias, columns, in_row, 0.0), normalized.shape)
            normalized = tl.fma(normalized, w, b)
        else:
            normalized *= w
            if EARLY == 2:
                normalized = normalized.to(x.dtype.element_ty).to(tl.float32)
    if bias is not None and (EARLY > 0 or weight is None):
        normalized += read_parameter(bias, columns, in_row, 0.0)
    tl.store(y + place[:, None] + columns[None, :], normalized.to(y.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def rows_forward_kernel(
    x, residual, weight, bias, y, total, statistics, rows, features, inner,
    x_outer, x_inner, residual_outer, residual_inner, y_outer, y_inner, eps, floor, weight_offset,
    N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STATISTIC: tl.constexpr, EPS_MODE: tl.constexpr,
    EARLY: tl.constexpr, ROUNDED: tl.constexpr, NESTED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A tile of whole rows: read once, written once."""
    row = tl.cast(tl.program_id(0), rows.dtype) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    there = exists(row, rows)
    kept = there[:, None] & (columns < N)[None, :]
    place = place_of(row, inner, x_outer, x_inner, NESTED, ALIGNED)
    residual_place = place_of(row, inner, residual_outer, residual_inner, NESTED, ALIGNED)
    v = read_sum(x, residual, place, residual_place, columns, kept, ROUNDED)
    first = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    if residual is not None:
        first += tl.load(residual + residual_place, mask=there, other=0.0).to(tl.float32)
        if ROUNDED:
            first = first.to(residual.dtype.element_ty).to(tl.float32)
        own = place_of(row, 1, N, 0, False, ALIGNED)
        tl.store(total + own[:, None] + columns[None, :], v.to(total.dtype.element_ty), mask=kept)
    mean, rest, square = measure(v, first, columns, N, STATISTIC)
    reciprocal, bend = reciprocal_of(square, eps, EPS_MODE)
    scale = tl.full([ROWS], 1.0, tl.float32)
    rare = out_of_range(reciprocal) & there
    if tl.max(rare.to(tl.int32), 0) > 0:
        own_scale, own_eps = scale_of(tl.max(tl.abs(v), 1), eps, floor, EPS_MODE)
        scale = tl.where(rare, own_scale, scale)
        mean, rest, square = measure(v * scale[:, None], first * scale, columns, N, STATISTIC)
        reciprocal, bend = reciprocal_of(square, tl.where(rare, own_eps, eps), EPS_MODE)
    if statistics is not None:
        save(statistics, row, there, mean, rest, reciprocal, bend, scale, STATISTIC, EPS_MODE)
    normalized = centre(v, scale, mean, rest, STATISTIC) * reciprocal[:, None]
    y_place = place_of(row, inner, y_outer, y_inner, NESTED, ALIGNED)
    write(y, y_place, columns, kept, normalized, x, weight, bias, weight_offset, N, EARLY)


@triton.jit
def sum_blocks(
    features, x, residual, place, residual_place, scale, shift,
    N: tl.constexpr, BLOCK: tl.constexpr, STATISTIC: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    """The mean difference of a scaled row from a shift, and its mean square; the largest size of the row unscaled."""
    count: tl.constexpr = 1.0 if STATISTIC == 2 else N * 1.0
    differences = tl.zeros([1, BLOCK], tl.float32)
    squares = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, features, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        kept = (columns < N)[None, :]
        v = read_sum(x, residual, place, residual_place, columns, kept, ROUNDED) * scale[:, None]
        if STATISTIC == CENTRED:
            v = tl.where(kept, v - shift[:, None], 0.0)
            differences += v
        squares = tl.fma(v, v, squares)
    return tl.div_rn(tl.sum(differences, 1), count), tl.div_rn(tl.sum(squares, 1), count)


@triton.jit
def largest_of(
    features, x, residual, place, residual_place, N: tl.constexpr, BLOCK: tl.constexpr, ROUNDED: tl.constexpr
):
    """The largest size of a row."""
    largest = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, features, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        v = read_sum(x, residual, place, residual_place, columns, (columns < N)[None, :], ROUNDED)
        largest = tl.maximum(largest, tl.abs(v))
    return tl.max(largest, 1)


@triton.jit
def block_mean(x, residual, place, residual_place, BLOCK: tl.constexpr, STATISTIC: tl.constexpr, ROUNDED: tl.constexpr):
    """The mean of a row's first block: where the row is of one kind, close enough to its mean to be its shift."""
    if STATISTIC != CENTRED:
        return tl.zeros([1], tl.float32)
    columns = tl.arange(0, BLOCK)
    v = read_sum(x, residual, place, residual_place, columns, (columns < BLOCK)[None, :], ROUNDED)
    first = tl.sum(tl.where((columns == 0)[None, :], v, 0.0), 1)
    mean, _, _ = measure(v, first, columns, BLOCK, CENTRED)
    return mean


@triton.jit(do_not_specialize=UNSPECIALIZED)
def long_rows_forward_kernel(
    x, residual, weight, bias, y, total, statistics, rows, features, inner,
    x_outer, x_inner, residual_outer, residual_inner, y_outer, y_inner, eps, floor, weight_offset,
    N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STATISTIC: tl.constexpr, EPS_MODE: tl.constexpr,
    EARLY: tl.constexpr, ROUNDED: tl.constexpr, NESTED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A row in blocks: one pass for its statistics, and one back to its start that writes it while caches have it."""
    row = tl.program_id(0) + tl.arange(0, ROWS)
    there = row < rows
    place = place_of(row, inner, x_outer, x_inner, NESTED, ALIGNED)
    residual_place = place_of(row, inner, residual_outer, residual_inner, NESTED, ALIGNED)
    scale = tl.full([ROWS], 1.0, tl.float32)
    shift = block_mean(x, residual, place, residual_place, BLOCK, STATISTIC, ROUNDED)
    offset, square = sum_blocks(
        features, x, residual, place, residual_place, scale, shift, N, BLOCK, STATISTIC, ROUNDED
    )
    mean, rest, variance = conclude(shift, offset, square)
    reciprocal, bend = reciprocal_of(variance, eps, EPS_MODE)
    # also where the first block's mean is so far from the row's that the sums lost bits
    rare = out_of_range(reciprocal) | ((4.0 * offset * offset <= variance) == 0)
    if tl.max(rare.to(tl.int32), 0) > 0:
        largest = largest_of(features, x, residual, place, residual_place, N, BLOCK, ROUNDED)
        own_scale, own_eps = scale_of(largest, eps, floor, EPS_MODE)
        outside = out_of_range(reciprocal)
        scale = tl.where(outside, own_scale, scale)
        if STATISTIC == CENTRED:
            shift = block_mean(x, residual, place, residual_place, BLOCK, STATISTIC, ROUNDED) * scale
            shift = tl.where(tl.abs(shift) <= 4.0 * largest * scale, shift, 0.0)
            offset, square = sum_blocks(
                features, x, residual, place, residual_place, scale, shift, N, BLOCK, STATISTIC, ROUNDED
            )
            shift += offset
        offset, square = sum_blocks(
            features, x, residual, place, residual_place, scale, shift, N, BLOCK, STATISTIC, ROUNDED
        )
        mean, rest, variance = conclude(shift, offset, square)
        reciprocal, bend = reciprocal_of(variance, tl.where(outside, own_eps, eps), EPS_MODE)
    if statistics is not None:
        save(statistics, row, there, mean, rest, reciprocal, bend, scale, STATISTIC, EPS_MODE)
    own = place_of(row, 1, N, 0, False, ALIGNED)
    y_place = place_of(row, inner, y_outer, y_inner, NESTED, ALIGNED)
    for start in range(0, features, BLOCK):
        columns = (N - 1) // BLOCK * BLOCK - start + tl.arange(0, BLOCK)
        kept = (columns < N)[None, :]
        v = read_sum(x, residual, place, residual_place, columns, kept, ROUNDED)
        if residual is not None:
            tl.store(total + own[:, None] + columns[None, :], v.to(total.dtype.element_ty), mask=kept)
        normalized = centre(v, scale, mean, rest, STATISTIC) * reciprocal[:, None]
        write(y, y_place, columns, kept, normalized, x, weight, bias, weight_offset, N, EARLY)


@triton.jit(do_not_specialize=("features",))
def recomputable_kernel(
    weight, bias, enough, features, weight_offset, SMALLEST: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr
):
    """Whether the output determines the normalized values: every weight at least SMALLEST, no bias MOST times it."""
    failing = tl.zeros([BLOCK], tl.int32)
    for start in range(0, features, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        kept = columns < features
        w = tl.abs(tl.load(weight + columns, mask=kept, other=1.0).to(tl.float32) + weight_offset)
        good = w >= SMALLEST
        if bias is not None:
            b = tl.abs(tl.load(bias + columns, mask=kept, other=0.0).to(tl.float32))
            good = good & (b <= MOST * w)
        failing += tl.where(kept & (good == 0), 1, 0)
    tl.store(enough, tl.sum(failing, 0) == 0)
