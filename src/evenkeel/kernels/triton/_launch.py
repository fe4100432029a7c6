"""How the kernels are launched: by the shape of what is normalized alone, never by the number of rows or the device.

So a row's bits depend on neither batch nor GPU model, and those of dγ and dβ on the rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_FORWARD = 16384  # features of a row that stays in registers
LONGEST_BACKWARD = 8192  # beside the sums of dγ and dβ
ALIGNMENT = 16  # bytes of a vector
WIDEST_VECTOR = 8  # elements of 16 bits in one


@dataclass(frozen=True)
class Launch:
    """What one program does.

    Attributes:
        block: columns of its tile, a power of two; positions for channel norms.
        rows: rows of its tile, a power of two; channels for channel norms.
        warps: how many of them, of 32 threads, share the tile: 16 elements a thread, so that several programs fit a
            multiprocessor.
        chunk: rows whose parameter gradients it adds up one after the other, before the fixed tree over the chunks;
            positions for channel norms.
        looped: whether a row is more than one tile.
    """

    block: int
    rows: int = 1
    warps: int = 4
    chunk: int = 1
    looped: bool = False


def warps_of(warps: int, threads: int) -> int:
    """How many warps of so many threads stand for these: as many threads in all, of which a GPU has 1024 at most."""
    return max(1, warps * 32 // threads)


def power_of_two(count: int) -> int:
    """The next power of two from a positive number on."""
    return 1 << (count - 1).bit_length()


def in_vectors(features: int) -> bool:
    """Whether rows of so many features can be read in the widest vectors."""
    return features % WIDEST_VECTOR == 0


def resident(features: int) -> tuple[int, int, int]:
    """Block, rows and warps of tiles that hold whole rows: a thread has 16 elements, or 8 where vectors are short."""
    block = max(16, power_of_two(features))
    rows = max(1, 2048 // block)
    each = 16 if in_vectors(features) else 8
    return block, rows, min(32, max(4, block * rows // (32 * each)))


def forward_launch(features: int) -> Launch:
    """The launch of the forward."""
    if features > LONGEST_FORWARD:
        # one program a multiprocessor where the second-level cache could not hold the rows of more
        warps = 32 if features > 65536 and in_vectors(features) else 16
        return Launch(block=512 * warps, warps=warps, looped=True)
    block, rows, warps = resident(features)
    return Launch(block=block, rows=rows, warps=warps)


def backward_launch(features: int, size: int = 2) -> Launch:
    """The launch of the backward of elements of so many bytes; its sums over the rows are 8 to 16 long.

    That costs no bits in float32.
    """
    whole = in_vectors(features)
    if features > (LONGEST_BACKWARD if whole else LONGEST_BACKWARD // 2):
        # so many rows at a time that the second-level cache keeps them for whoever reads them again
        chunk = 32 if features * size <= 2**16 else 16
        block, warps = (4096, 8) if whole else (2048, 16)
        return Launch(block=block, warps=warps, chunk=chunk, looped=True)
    block, rows, warps = resident(features)
    warps = min(warps, 16)  # with 32 there are 64 registers a thread
    if block <= 2048:
        # a vector a thread, of 16 bytes if it can be: beside the sums, more would spill
        warps = 8 if size == 2 and whole else 16
    return Launch(block=block, rows=rows, warps=warps, chunk=16 if block > 2048 else max(32, 4 * rows))


PARAMETER_BLOCK = 1024  # features that are looked at at once, where the parameters alone are
SUMS_LAUNCH = Launch(block=1024, rows=2, warps=8)  # tiles of dγ and dβ of rows in blocks
TREE_LAUNCH = Launch(block=8, rows=512, warps=8)  # the tree over the chunks: whole sectors of memory, many programs

TABLE_TILE = 1024  # elements whose sums are kept in float64, of bytes in 32 bits; twice as many are mapped at once
FEWEST_TILES, MOST_TILES, MOST_CHUNKS = 32, 16384, 1024  # of a chunk of a table; of a column, before chunks grow

IMAGE_BLOCK = 2048  # pixels of a program

CHANNEL_BLOCK = 256  # channels of a program that has nothing but statistics
TILE = 2048  # elements of a tile of channels and positions
GROUP_WARPS = 8  # of a program that goes through a group twice
FEW_WARPS = 8  # of a program with a whole tile whose sums are in float64, two registers a number


def channel_launch(channels: int, positions: int, last: bool, spans: bool) -> Launch:
    """The launch of the channel kernels, whose tiles have channels for rows.

    Positions of many samples, or few of one: a tile has the neighbours that make up whole lines of memory. A chunk is
    so long that its sums are few beside the data.
    """
    # what moves element by element takes a register for the place of each
    tile = TILE if last or positions % 8 == 0 else TILE // 2
    tiles = 8 if last else 4
    if last or spans:
        lines = 64 if last else max(1, 32 // positions)
        rows = min(power_of_two(lines), power_of_two(channels))
        block = tile // rows
    else:
        block = min(tile, power_of_two(positions))
        rows = min(tile // block, power_of_two(channels))
    if not spans:
        tiles = min(tiles, power_of_two(-(-positions // block)))
    return Launch(block=block, rows=rows, chunk=block * tiles)


def merge_launch(entries: int) -> Launch:
    """The launch of what merges the parts of each statistic."""
    block = min(256, power_of_two(max(4, entries)))
    return Launch(block=block, rows=256 // block)


def table_launch(width: int, tile: int) -> Launch:
    """The launch of the kernels that walk rows of some lanes."""
    block = min(64, power_of_two(width))
    return Launch(block=block, rows=tile // block)


def table_tiles(tiles: int) -> int:
    """The tiles of a chunk of a table that has so many: few sums to merge beside the data, of many rows and of few."""
    return min(max(FEWEST_TILES, -(-tiles // MOST_CHUNKS)), MOST_TILES, tiles)


def table_merge_launch(entries: int) -> Launch:
    """The launch of what merges the sums of a table's lanes."""
    block = min(1024, power_of_two(max(4, entries)))
    return Launch(block=block, rows=1024 // block)
