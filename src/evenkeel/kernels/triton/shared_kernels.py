"""What the kernels of row norms share: where rows lie, their statistics, what a program reads.

Operations are written so that the compiler has nothing to choose: divisions and roots are rounded correctly, products
and sums are fused where `fma` says so and nowhere else. So every GPU of a maker gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Scales between which float squares neither overflow nor lose bits to underflow, as on the CPU.
SMALLEST_IN_RANGE = tl.constexpr(2.0**-60)
LARGEST_IN_RANGE = tl.constexpr(2.0**48)
LARGEST_POWER = tl.constexpr(2.0**126)
SMALLEST_POWER = tl.constexpr(2.0**-126)
TINY = tl.constexpr(2.0**-100)  # reciprocals of scaled rows that are saved times LIFT, and negative to say so
LIFT = tl.constexpr(2.0**64)
LOWER = tl.constexpr(2.0**-64)
CENTRED = tl.constexpr(1)  # the statistic that subtracts a mean


@triton.jit
def place_of(row, inner, outer_stride, inner_stride, NESTED: tl.constexpr, ALIGNED: tl.constexpr):
    """Where rows start, in elements: along one axis, or along two of which the inner one has a given size.

    ALIGNED is a power of two that divides every place.
    """
    if NESTED:
        outer = row // inner  # before it is made wide: a division of 64 bits takes twenty registers
        place = outer.to(tl.int64) * outer_stride + (row - outer * inner).to(tl.int64) * inner_stride
    else:
        place = row.to(tl.int64) * outer_stride
    return tl.multiple_of(place, [ALIGNED])


@triton.jit
def quotient_of(n, divisor, factor, shift):
    """n // divisor for numbers below 2^31, by the divisor's `dividing`; with 64 bits, by a division.

    A multiplication takes three steps, a division by what no program knows before it runs twenty.
    """
    if n.dtype == tl.int64:
        quotient = n // divisor
    else:
        doubled = n.to(tl.uint32, bitcast=True) << 1
        high = tl.umulhi(doubled, tl.zeros_like(doubled) + factor.to(tl.uint32, bitcast=True))
        quotient = (high >> shift.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)
    return quotient


@triton.jit
def steps_inside(start, extent, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Which steps from a start on are below an extent that ALIGNED divides, as it divides BLOCK and the start."""
    left = tl.minimum(tl.cast(extent, tl.int64) - start, BLOCK).to(tl.int32)
    return tl.arange(0, BLOCK) < tl.multiple_of(left, ALIGNED)


@triton.jit
def read(source, place, columns, kept):
    """A tile of rows in float32, 0 where it reaches beyond them."""
    return tl.load(source + place[:, None] + columns[None, :], mask=kept, other=0.0).to(tl.float32)


@triton.jit
def read_sum(x, residual, place, residual_place, columns, kept, ROUNDED: tl.constexpr):
    """A tile of what is normalized: x, or x + residual as the stream holds it or before that rounding."""
    v = read(x, place, columns, kept)
    if residual is not None:
        v += read(residual, residual_place, columns, kept)
        if ROUNDED:
            v = v.to(residual.dtype.element_ty).to(tl.float32)
    return v


@triton.jit
def read_parameter(parameter, columns, kept, offset):
    """A parameter's values in float32 with an offset, 1 beyond its end."""
    return tl.load(parameter + columns, mask=kept, other=1.0).to(tl.float32)[None, :] + offset


@triton.jit
def power_below(size):
    """The largest power of two that is not above a size, within those whose reciprocal is normal too."""
    size = tl.minimum(tl.maximum(size, SMALLEST_POWER), LARGEST_POWER)
    return (size.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def inverse_power(power):
    """1 / a power of two, exact."""
    return (0x7F000000 - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def out_of_range(reciprocal):
    """Whether a row's squares have lost bits, or overflowed to infinity or NaN."""
    return ((reciprocal > SMALLEST_IN_RANGE) & (reciprocal < LARGEST_IN_RANGE)) == 0


@triton.jit
def scale_of(largest, eps, floor, EPS_MODE: tl.constexpr):
    """The power of two that brings a row's values near 1, and eps scaled along.

    Where eps decides, values smaller than it need no bits: they are scaled as if they were as large (``floor``).
    """
    scale = inverse_power(power_below(tl.maximum(largest, floor)))
    scaled = eps * scale  # in this order: the square may overflow
    if EPS_MODE == 0:
        scaled *= scale
    # far below every variance that is not 0, but no 0: a constant row is 0, not 0/0
    return scale, tl.where(eps > 0, tl.maximum(scaled, SMALLEST_POWER), scaled)


@triton.jit
def add_exactly(a, b):
    """The rounded sum, and what the rounding lost."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@triton.jit
def root_of(square, lost):
    """The root, and what its rounding and that of the square have lost."""
    root = tl.sqrt_rn(square)
    rest = tl.fma(-root, root, square) + lost
    return root, tl.where(root > TINY, tl.div_rn(rest, root + root), 0.0)


@triton.jit
def reciprocal_of(square, eps, EPS_MODE: tl.constexpr):
    """1/scale of a variance or mean square, and the slope of the scale where eps bends it.

    The scale has two parts, so that the reciprocal is rounded once: it is in every element's error.
    """
    bend = tl.full(square.shape, 1.0, tl.float32)
    eps = eps + tl.zeros_like(square)
    if EPS_MODE == 0:
        total, lost = add_exactly(square, eps)
        scale, rest = root_of(total, lost)
    else:
        root, root_rest = root_of(square, 0.0)
        if EPS_MODE == 1:
            scale, lost = add_exactly(root, eps)
            rest = root_rest + lost
            bend = tl.where(root == 0, 0.0, tl.div_rn(scale, tl.where(root == 0, 1.0, root)))
        else:
            low = root < eps
            scale, rest = tl.where(low, eps, root), tl.where(low, 0.0, root_rest)
            bend = tl.where(low, 0.0, 1.0)
    rough = tl.div_rn(1.0, scale)
    fine = tl.fma(rough, tl.fma(-scale, rough, 1.0) - rest * rough, rough)
    return tl.where((scale > SMALLEST_IN_RANGE) & (scale < LIFT), fine, rough), bend


@triton.jit
def conclude(shift, offset, square):
    """Mean in two parts and variance, from the mean difference from a shift and its mean square."""
    mean = shift + offset
    rest = (shift - mean) + offset
    variance = square - offset * offset
    return mean, rest, tl.where(variance < 0, 0.0, variance)


@triton.jit
def measure(v, first, columns, N: tl.constexpr, STATISTIC: tl.constexpr):
    """Mean in two parts and variance of whole rows, or their mean square, or their squared length.

    The first value is a shift that makes constant rows exact; the mean that it leads to is corrected by the mean of
    the differences from it, so that a mean of 1e4 with a spread of 0.01 costs no accuracy.
    """
    count: tl.constexpr = 1.0 if STATISTIC == 2 else N * 1.0
    zero = tl.zeros_like(first)
    if STATISTIC != CENTRED:
        return zero, zero, tl.div_rn(tl.sum(v * v, 1), count)
    kept = (columns < N)[None, :]
    shift = first + tl.div_rn(tl.sum(tl.where(kept, v - first[:, None], 0.0), 1), count)
    d = tl.where(kept, v - shift[:, None], 0.0)
    return conclude(shift, tl.div_rn(tl.sum(d, 1), count), tl.div_rn(tl.sum(d * d, 1), count))


@triton.jit
def centre(v, scale, mean, rest, STATISTIC: tl.constexpr):
    """Rows times their power of two, less their mean in both its parts."""
    if STATISTIC != CENTRED:
        return v * scale[:, None]
    shift = tl.broadcast_to(-mean[:, None], v.shape)
    return tl.fma(v, tl.broadcast_to(scale[:, None], v.shape), shift) - rest[:, None]


@triton.jit
def save(statistics, row, kept, mean, rest, reciprocal, bend, scale, STATISTIC: tl.constexpr, EPS_MODE: tl.constexpr):
    """Write the statistics of scaled rows as those of the rows themselves."""
    width: tl.constexpr = (2 if STATISTIC == 1 else 0) + 1 + (0 if EPS_MODE == 0 else 1)
    own = statistics + row.to(tl.int64) * width
    if STATISTIC == CENTRED:
        inverse = inverse_power(scale)
        tl.store(own, mean * inverse, mask=kept)
        tl.store(own + 1, rest * inverse, mask=kept)
        own += 2
    # the reciprocal of the largest lengths is below the normal numbers
    saved = tl.where(scale < TINY, -(reciprocal * (scale * LIFT)), reciprocal * scale)
    tl.store(own, saved, mask=kept)
    if EPS_MODE != 0:
        tl.store(own + 1, bend, mask=kept)


@triton.jit
def restore(statistics, row, kept, STATISTIC: tl.constexpr, EPS_MODE: tl.constexpr):
    """Scale, mean in two parts, reciprocal and slope of rows: scaled where float32 could not hold the products."""
    width: tl.constexpr = (2 if STATISTIC == 1 else 0) + 1 + (0 if EPS_MODE == 0 else 1)
    own = statistics + row.to(tl.int64) * width
    mean = tl.zeros(row.shape, tl.float32)
    rest = tl.zeros(row.shape, tl.float32)
    if STATISTIC == CENTRED:
        mean = tl.load(own, mask=kept, other=0.0)
        rest = tl.load(own + 1, mask=kept, other=0.0)
        own += 2
    saved = tl.load(own, mask=kept, other=1.0)
    bend = tl.full(row.shape, 1.0, tl.float32)
    if EPS_MODE != 0:
        bend = tl.load(own + 1, mask=kept, other=0.0)
    lower = tl.where(saved < 0, LOWER, 1.0)
    scale = tl.maximum(power_below(tl.abs(saved)) * lower, SMALLEST_POWER)
    scale = tl.where(out_of_range(saved), scale, 1.0)
    return scale, mean * scale, rest * scale, tl.abs(saved) * inverse_power(scale) * lower, bend


@triton.jit
def exists(row, rows):
    """Whether there is such a row: what goes beyond 2^31 has wrapped, and is larger than every number of rows."""
    if rows.dtype == tl.int64:
        there = row < rows
    else:
        there = row.to(tl.uint32, bitcast=True) < tl.cast(rows, tl.uint32, bitcast=True)
    return there
