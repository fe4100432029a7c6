"""The kernels of tables: sums over their columns, the moments from them, and the affine map of columns, in float64.

Rows are walked in lanes, which are neighbours in memory: FOLD rows make one where there are few columns, so that lane l
belongs to column l % COLUMNS. What is left of the rows is walked apart, so that all others move in whole vectors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from evenkeel.kernels.triton.shared_kernels import place_of

INFINITY, NAN = tl.constexpr(float("inf")), tl.constexpr(float("nan"))
BEYOND_BYTES = tl.constexpr(256)
WORST = tl.constexpr(64.0)  # times the squares about the mean: more of them about a shift cost digits
# no variants by what varies with the table's place and length: a column's bits must not
UNSPECIALIZED = (
    "rows", "chunks", "tiles", "tables", "inner", "x_outer", "x_inner", "x_row", "y_outer", "y_row", "entries", "count",
)  # fmt: skip


@triton.jit
def widened(v):
    """Numbers in float64."""
    if v.dtype == tl.float16 or v.dtype == tl.bfloat16:
        v = v.to(tl.float32)
    return v.to(tl.float64)


@triton.jit
def exact_numbers(v, WIDE: tl.constexpr, BYTES: tl.constexpr):
    """Numbers in float32 where that holds them all, else in float64, whose comparisons take long; bytes in int32."""
    if BYTES:
        numbers = v.to(tl.int32)
    elif WIDE:
        numbers = widened(v)
    else:
        numbers = v.to(tl.float32)
    return numbers


@triton.jit
def whole_rows(first, rows, ROWS: tl.constexpr, FOLD: tl.constexpr):
    """Which of a tile's folded rows are whole."""
    return (first + tl.arange(0, ROWS) < rows // FOLD)[:, None]


@triton.jit
def rest_of_rows(first, rows, lane, ROWS: tl.constexpr, FOLD: tl.constexpr, COLUMNS: tl.constexpr):
    """The lanes of a tile's last folded row, where that is not whole."""
    row = first + tl.arange(0, ROWS)
    return (row == rows // FOLD)[:, None] & (lane < rows % FOLD * COLUMNS)[None, :]


@triton.jit
def lanes_left(first, count, rows, FOLD: tl.constexpr, COLUMNS: tl.constexpr):
    """How many lanes the last folded row has if that is not whole, and one of ``count`` rows from one on; else 0."""
    row = rows // FOLD
    return tl.where((row >= first) & (row < first + count), rows % FOLD * COLUMNS, 0)


@triton.jit
def offsets_of(lane, row_stride, ROWS: tl.constexpr, ALIGNED: tl.constexpr):
    """The elements of a tile from its first row on."""
    starts = tl.multiple_of(tl.arange(0, ROWS).to(tl.int64) * row_stride, [ALIGNED])
    return starts[:, None] + lane[None, :]


@triton.jit
def weights_of(weight, first, lane, kept, ROWS: tl.constexpr, FOLD: tl.constexpr, COLUMNS: tl.constexpr):
    """The weight of each element of a tile."""
    origin = ((first + tl.arange(0, ROWS)) * FOLD)[:, None] + (lane // COLUMNS)[None, :]
    return tl.load(weight + origin, mask=kept, other=0.0)


@triton.jit
def mean_of_lanes(v, kept, ROUNDED: tl.constexpr, BYTES: tl.constexpr):
    """A value near those of each lane: their mean, whole for integers, whose sums stay exact."""
    if BYTES:
        mean = tl.sum(tl.where(kept, v, 0), 0) // tl.maximum(tl.sum(kept.to(tl.int32), 0), 1)
    else:
        finite = kept & (tl.abs(v) < INFINITY)
        number = tl.sum(finite.to(tl.int32), 0).to(tl.float64)
        mean = tl.sum(tl.where(finite, v, 0.0).to(tl.float64), 0) / tl.where(number > 0, number, 1.0)
        if ROUNDED:
            mean = tl.floor(mean)
        mean = tl.where(tl.abs(mean) < INFINITY, mean, 0.0)
    return mean


@triton.jit
def add_tile(v, kept, w, shift, sums, WEIGHTED: tl.constexpr, BYTES: tl.constexpr):
    """The sums of a chunk's lanes with those of a tile: of differences, squares and weights, the range, what is odd.

    ``odd`` counts in one number what is missing and, in steps of 65536, what is infinite. Of bytes the squares of the
    differences fit 32 bits for 33025 tiles, twice as many as a chunk has, and nothing is odd.
    """
    first, second, weights, low, high, odd = sums
    if BYTES:
        d = tl.where(kept, v - shift[None, :], 0)
        first += d
        second += d * d
        low = tl.minimum(low, tl.where(kept, v, BEYOND_BYTES))
        high = tl.maximum(high, tl.where(kept, v, -BEYOND_BYTES))
    else:
        if WEIGHTED:
            kept = kept & (w != 0)
        valid = kept & (v == v)
        finite = valid & (tl.abs(v) < INFINITY)
        d = tl.where(finite, v.to(tl.float64) - shift[None, :], 0.0)
        if WEIGHTED:
            w = tl.where(valid, w, 0.0)
            weights += w
            first += w * d
            second += w * d * d
        else:
            first += d
            second += d * d
        low = tl.minimum(low, tl.where(valid, v, INFINITY))
        high = tl.maximum(high, tl.where(valid, v, -INFINITY))
        odd += tl.where(kept & (valid == 0), 1, 0) + tl.where(valid & (finite == 0), 65536, 0)
    return first, second, weights, low, high, odd


@triton.jit
def sum_tiles(
    x, weight, place, first, rows, row_stride, tiles, lane, shift, COLUMNS: tl.constexpr, FOLD: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr, WIDE: tl.constexpr,
    BYTES: tl.constexpr,
):  # fmt: skip
    """The sums of each lane over the tiles of a chunk, which begins with a folded row."""
    weighted: tl.constexpr = weight is not None
    ahead: tl.constexpr = max(1, 32 // x.dtype.element_ty.primitive_bitwidth)  # tiles on their way: 4 KB and more
    if BYTES:
        zeros = tl.zeros([ROWS, BLOCK], tl.int32)
        edge = tl.full([ROWS, BLOCK], BEYOND_BYTES, tl.int32)
    else:
        zeros = tl.zeros([ROWS, BLOCK], tl.float64)
        edge = tl.full([ROWS, BLOCK], INFINITY, tl.float64 if WIDE else tl.float32)
    sums = (zeros, zeros, zeros, edge, -edge, tl.zeros([ROWS, BLOCK], tl.int32))
    offsets = offsets_of(lane, row_stride, ROWS, ALIGNED)
    for tile in tl.range(0, tiles, num_stages=1 + ahead):
        row = first + tile * ROWS
        own = x + place + tl.multiple_of(row * row_stride, ALIGNED) + offsets
        kept = whole_rows(row, rows, ROWS, FOLD) & (lane < WIDTH)[None, :]
        w = weights_of(weight, row, lane, kept, ROWS, FOLD, COLUMNS) if weighted else 0.0
        v = exact_numbers(tl.load(own, mask=kept, other=0), WIDE, BYTES)
        sums = add_tile(v, kept, w, shift, sums, weighted, BYTES)
    if FOLD > 1:
        # one more tile, from the whole rows' end on where that is in this chunk
        row = tl.cast(rows, tl.int64) // FOLD
        left = lanes_left(first, tiles * ROWS, rows, FOLD, COLUMNS)
        kept = (tl.arange(0, ROWS) == 0)[:, None] & (lane < left)[None, :]
        w = weights_of(weight, row, lane, kept, ROWS, FOLD, COLUMNS) if weighted else 0.0
        v = exact_numbers(tl.load(x + place + row * row_stride + offsets, mask=kept, other=0), WIDE, BYTES)
        sums = add_tile(v, kept, w, shift, sums, weighted, BYTES)
    return sums


@triton.jit
def shift_of(
    origin, first, rows, x_row, lane, COLUMNS: tl.constexpr, FOLD: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, ALIGNED: tl.constexpr, WIDE: tl.constexpr, ROUNDED: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """The shift of each lane in a chunk, from its first tile."""
    there = whole_rows(first, rows, ROWS, FOLD) | rest_of_rows(first, rows, lane, ROWS, FOLD, COLUMNS)
    kept = there & (lane < WIDTH)[None, :]
    v = tl.load(origin + offsets_of(lane, x_row, ROWS, ALIGNED), mask=kept, other=0)
    return mean_of_lanes(exact_numbers(v, WIDE, BYTES), kept, ROUNDED, BYTES)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def columns_sum_kernel(
    x, weight, partial, rows, chunks, tiles, tables, inner, x_outer, x_inner, x_row, COLUMNS: tl.constexpr,
    FOLD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    NESTED: tl.constexpr, WIDE: tl.constexpr, ROUNDED: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """Each lane's sums in a chunk of rows about a shift of its own; ``partial`` is [8, tables, chunks, WIDTH]."""
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    lane = program % blocks * BLOCK + tl.arange(0, BLOCK)
    chunk = (program // blocks % chunks).to(tl.int64)
    table = program // blocks // chunks
    place = place_of(table, inner, x_outer, x_inner, NESTED, ALIGNED)
    first = chunk * tiles * ROWS
    origin = x + place + tl.multiple_of(first * x_row, ALIGNED)
    shift = shift_of(origin, first, rows, x_row, lane, COLUMNS, FOLD, WIDTH, ROWS, ALIGNED, WIDE, ROUNDED, BYTES)
    sums = sum_tiles(
        x, weight, place, first, rows, x_row, tiles, lane, shift, COLUMNS, FOLD, WIDTH, ROWS, BLOCK, ALIGNED, WIDE,
        BYTES,
    )  # fmt: skip
    # the rows of this lane in the chunk, all of them
    whole = tl.minimum(tl.maximum(rows // FOLD - first, 0), tiles * ROWS)
    number = whole + tl.where(lane < lanes_left(first, tiles * ROWS, rows, FOLD, COLUMNS), 1, 0)
    total, square, weights, missing, infinite = folded(sums, number, weight is not None, BYTES)
    nearer = total / tl.where(weights > 0, weights, 1.0)
    if BYTES:
        # whole numbers below 2^53: the sums about the mean follow exactly
        nearer = tl.floor(nearer)
        square += nearer * (nearer * weights - 2.0 * total)
        total -= nearer * weights
        shift += nearer.to(tl.int32)
    else:
        bad = (square > WORST * (square - total * nearer)) & (square < INFINITY)
        if tl.max(bad.to(tl.int32), 0) > 0:
            shift += tl.where(bad, tl.floor(nearer) if ROUNDED else nearer, 0.0)
            sums = sum_tiles(
                x, weight, place, first, rows, x_row, tiles, lane, shift, COLUMNS, FOLD, WIDTH, ROWS, BLOCK, ALIGNED,
                WIDE, BYTES,
            )  # fmt: skip
            total, square, weights, missing, infinite = folded(sums, number, weight is not None, BYTES)
    low, high = tl.min(sums[3], 0).to(tl.float64), tl.max(sums[4], 0).to(tl.float64)
    if BYTES:
        low, high = tl.where(weights > 0, low, INFINITY), tl.where(weights > 0, high, -INFINITY)
    own = partial + (table.to(tl.int64) * chunks + chunk) * WIDTH + lane
    planes = tl.cast(tables, tl.int64) * chunks * WIDTH
    store_sums(own, planes, lane < WIDTH, shift, total, square, weights, low, high, missing, infinite)


@triton.jit
def store_sums(own, planes, there, shift, total, square, weights, low, high, missing, infinite):
    """Write the eight sums of each lane."""
    tl.store(own, shift.to(tl.float64), mask=there)
    tl.store(own + planes, total, mask=there)
    tl.store(own + 2 * planes, square, mask=there)
    tl.store(own + 3 * planes, weights, mask=there)
    tl.store(own + 4 * planes, low, mask=there)
    tl.store(own + 5 * planes, high, mask=there)
    tl.store(own + 6 * planes, missing, mask=there)
    tl.store(own + 7 * planes, infinite, mask=there)


@triton.jit
def folded(sums, number, WEIGHTED: tl.constexpr, BYTES: tl.constexpr):
    """Of each lane: the sums of differences and squares, the weight of what is not missing, missing and infinite."""
    first, second, weights, _, _, odd = sums
    if BYTES:
        # from here on they may be too many for 32 bits
        first, second = first.to(tl.int64), second.to(tl.int64)
        missing, infinite = 0.0, 0.0
        counted = number.to(tl.float64)
    else:
        missing = tl.sum(odd & 65535, 0).to(tl.float64)
        infinite = tl.sum(odd >> 16, 0).to(tl.float64)
        counted = tl.sum(weights, 0) if WEIGHTED else number.to(tl.float64) - missing
    return tl.sum(first, 0).to(tl.float64), tl.sum(second, 0).to(tl.float64), counted, missing, infinite


@triton.jit
def entries_at(partial, table, column, start, chunks, entries, WIDTH: tl.constexpr, FOLD: tl.constexpr,
               COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Where some of the lanes' sums of each column lie, and which there are."""
    entry = start + tl.arange(0, BLOCK)
    places = (table * chunks)[:, None] + (entry // FOLD)[None, :]
    lane = column[:, None] + (entry % FOLD * COLUMNS)[None, :]
    return partial + places * WIDTH + lane, (entry < entries)[None, :]


@triton.jit
def sums_about(
    partial, table, column, there, chunks, entries, planes, centre, WIDTH: tl.constexpr, FOLD: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of a column's differences from a centre, and of their squares."""
    firsts = tl.zeros([ROWS, BLOCK], tl.float64)
    seconds = tl.zeros([ROWS, BLOCK], tl.float64)
    for start in range(0, entries, BLOCK):
        own, kept = entries_at(partial, table, column, start, chunks, entries, WIDTH, FOLD, COLUMNS, BLOCK)
        kept = kept & there[:, None]
        number = tl.load(own + 3 * planes, mask=kept, other=0.0)
        d = tl.where(number > 0, tl.load(own, mask=kept, other=0.0) - centre[:, None], 0.0)
        first = tl.load(own + planes, mask=kept, other=0.0)
        firsts += first + number * d
        seconds += tl.load(own + 2 * planes, mask=kept, other=0.0) + d * (2.0 * first + number * d)
    return tl.sum(firsts, 1), tl.sum(seconds, 1)


@triton.jit
def counts_of(
    partial, table, column, there, chunks, entries, planes, WIDTH: tl.constexpr, FOLD: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A column's weight, range, missing and infinite values, and one of its shifts, or 0."""
    numbers = tl.zeros([ROWS, BLOCK], tl.float64)
    absent = tl.zeros([ROWS, BLOCK], tl.float64)
    beyond = tl.zeros([ROWS, BLOCK], tl.float64)
    low = tl.full([ROWS, BLOCK], INFINITY, tl.float64)
    high = tl.full([ROWS, BLOCK], -INFINITY, tl.float64)
    highest = tl.full([ROWS, BLOCK], -INFINITY, tl.float64)
    for start in range(0, entries, BLOCK):
        own, kept = entries_at(partial, table, column, start, chunks, entries, WIDTH, FOLD, COLUMNS, BLOCK)
        kept = kept & there[:, None]
        number = tl.load(own + 3 * planes, mask=kept, other=0.0)
        numbers += number
        shift = tl.load(own, mask=kept, other=0.0)
        highest = tl.maximum(highest, tl.where(number > 0, shift, -INFINITY))
        low = tl.minimum(low, tl.load(own + 4 * planes, mask=kept, other=INFINITY))
        high = tl.maximum(high, tl.load(own + 5 * planes, mask=kept, other=-INFINITY))
        absent += tl.load(own + 6 * planes, mask=kept, other=0.0)
        beyond += tl.load(own + 7 * planes, mask=kept, other=0.0)
    shift = tl.max(highest, 1)
    shift = tl.where(shift > -INFINITY, shift, 0.0)
    return tl.sum(numbers, 1), tl.min(low, 1), tl.max(high, 1), tl.sum(absent, 1), tl.sum(beyond, 1), shift


@triton.jit
def mean_and_spread(number, low, high, infinite, about, first, second):
    """The mean in two parts and the squared differences from it, from the sums about a number near the mean.

    A constant column is exact; infinities decide the mean, and leave no squares.
    """
    offset = first / tl.where(number > 0, number, 1.0)
    mean = about + offset
    rest = tl.where(tl.abs(about) > tl.abs(offset), (about - mean) + offset, (offset - mean) + about)
    spread = tl.where(second < INFINITY, tl.maximum(second - first * offset, 0.0), INFINITY)
    limit = tl.where(low == -INFINITY, tl.where(high == INFINITY, NAN, low), high)
    exact = (infinite > 0) | (low == high) | (number == 0)
    mean = tl.where(exact, tl.where(number == 0, 0.0, limit), mean)
    rest = tl.where(exact | (tl.abs(mean) == INFINITY), 0.0, rest)
    spread = tl.where(exact, tl.where(infinite > 0, NAN, 0.0), spread)
    return mean, rest, spread


@triton.jit(do_not_specialize=UNSPECIALIZED)
def columns_merge_kernel(
    partial, counts, mean, m2, minimum, maximum, missing, infinite, mean_low, tables, chunks, entries,
    COLUMNS: tl.constexpr, FOLD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The moments of each column of each table from its ``entries``, the sums of its lanes, in a fixed tree."""
    statistic = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    table = statistic // COLUMNS
    column = statistic % COLUMNS
    there = table < tables
    planes = tl.cast(tables, tl.int64) * chunks * WIDTH
    number, low, high, absent, beyond, about = counts_of(
        partial, table, column, there, chunks, entries, planes, WIDTH, FOLD, COLUMNS, ROWS, BLOCK
    )
    # about one of the shifts, then about the mean, where the squares are fewest
    first, _ = sums_about(
        partial, table, column, there, chunks, entries, planes, about, WIDTH, FOLD, COLUMNS, ROWS, BLOCK
    )
    about += first / tl.where(number > 0, number, 1.0)
    first, second = sums_about(
        partial, table, column, there, chunks, entries, planes, about, WIDTH, FOLD, COLUMNS, ROWS, BLOCK
    )
    middle, rest, spread = mean_and_spread(number, low, high, beyond, about, first, second)
    tl.store(counts + statistic, number.to(counts.dtype.element_ty), mask=there)
    tl.store(mean + statistic, middle, mask=there)
    tl.store(m2 + statistic, spread, mask=there)
    tl.store(minimum + statistic, low + 0.0, mask=there)  # no -0: which of two zeros is smaller depends on their order
    tl.store(maximum + statistic, high + 0.0, mask=there)
    tl.store(missing + statistic, absent.to(tl.int64), mask=there)
    tl.store(infinite + statistic, beyond.to(tl.int64), mask=there)
    tl.store(mean_low + statistic, rest, mask=there)


@triton.jit
def map_tile(
    x, y, shift, scale, offset, infinite, kept, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOW: tl.constexpr,
    HIGH: tl.constexpr,
):  # fmt: skip
    """A tile of (x - shift) * scale + offset, clipped, rounded once; 16 bits by way of float32, as torch does."""
    v = widened(tl.load(x, mask=kept, other=0))
    if infinite is not None:
        some = tl.max(tl.max((kept & (tl.abs(v) == INFINITY)).to(tl.int32), 1), 0)
        if some > 0:
            tl.store(infinite, 1)  # whoever stores it stores the same
    v = (v - shift[None, :]) * scale[None, :]
    if offset is not None:
        v += offset[None, :]
    if LOW is not None:
        v = tl.where(v < tl.full([ROWS, BLOCK], LOW, tl.float64), tl.full([ROWS, BLOCK], LOW, tl.float64), v)
    if HIGH is not None:
        v = tl.where(v > tl.full([ROWS, BLOCK], HIGH, tl.float64), tl.full([ROWS, BLOCK], HIGH, tl.float64), v)
    if y.dtype.element_ty != tl.float64:
        v = v.to(tl.float32)
    tl.store(y, v.to(y.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def columns_map_kernel(
    x, shift, scale, offset, infinite, y, rows, chunks, x_outer, x_row, y_outer, y_row, COLUMNS: tl.constexpr,
    FOLD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """A tile of a table, or of one of many columns that are tables of their own."""
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    lane = program % blocks * BLOCK + tl.arange(0, BLOCK)
    first = (program // blocks % chunks).to(tl.int64) * ROWS
    table = (program // blocks // chunks).to(tl.int64)
    there = lane < WIDTH
    column = table * COLUMNS + lane % COLUMNS
    own_shift = tl.load(shift + column, mask=there, other=0.0)
    own_scale = tl.load(scale + column, mask=there, other=0.0)
    own_offset = None
    if offset is not None:
        own_offset = tl.load(offset + column, mask=there, other=0.0)
    x += tl.multiple_of(table * x_outer, ALIGNED) + tl.multiple_of(first * x_row, ALIGNED)
    y += tl.multiple_of(table * y_outer, ALIGNED) + tl.multiple_of(first * y_row, ALIGNED)
    sources, targets = x + offsets_of(lane, x_row, ROWS, ALIGNED), y + offsets_of(lane, y_row, ROWS, ALIGNED)
    kept = whole_rows(first, rows, ROWS, FOLD) & there[None, :]
    map_tile(sources, targets, own_shift, own_scale, own_offset, infinite, kept, ROWS, BLOCK, LOW, HIGH)
    if FOLD > 1 and first + ROWS > rows // FOLD:
        kept = rest_of_rows(first, rows, lane, ROWS, FOLD, COLUMNS)
        map_tile(sources, targets, own_shift, own_scale, own_offset, infinite, kept, ROWS, BLOCK, LOW, HIGH)
