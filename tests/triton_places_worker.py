"""Where the tiles of channel kernels lie in tensors too large for memory: their places alone, in Triton's interpreter.

Usage: TRITON_INTERPRET=1 python tests/triton_places_worker.py CASE...   (JSON: case -> name of a number -> number)
"""

import sys

import torch
import triton
import triton.language as tl
from triton_worker import main

from evenkeel._spec import ChannelOptions
from evenkeel.kernels.triton._channel_calls import Call
from evenkeel.kernels.triton.channels_forward_kernels import UNSPECIALIZED
from evenkeel.kernels.triton.channels_shared_kernels import tile_at

SHAPES = {
    "a sample of 2^31 elements": (2, 64, 5800 * 5800 + 4),
    "one of 2^31 in 3-d": (2, 32, 420**3),
    "places of 2^30": (4, 2, 2**30 + 4),
    "just below 2^31 positions": (3, 2, 715827882),
    "many small maps": (2**20, 2, 2047),
    "maps of two": (2**30 - 1, 2, 2),
    "odd": (5, 3, 2**20 + 8),
}


@triton.jit(do_not_specialize=(*UNSPECIALIZED, "tile"))
def places_kernel(
    places, existing, extent, period, factor, shift, tile, C: tl.constexpr, ALIGNED: tl.constexpr, LAST: tl.constexpr,
    SPANS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The places of a tile of the first channels, and which of them exist."""
    zero = tl.cast(0, tl.int64)
    base, offsets, inside = tile_at(
        zero, zero, tl.cast(tile, tl.int64) * BLOCK, (extent, period, factor, shift), C, ALIGNED, LAST, SPANS, CHANNELS,
        BLOCK, WIDE,
    )  # fmt: skip
    own = (tl.arange(0, CHANNELS) * BLOCK)[:, None] + tl.arange(0, BLOCK)[None, :]
    tl.store(places + own, (base + offsets).to(tl.int64))
    tl.store(existing + own, inside.to(tl.int8))


def places(samples, channels, positions):
    """How many places of the first, the last and the tiles where a sample ends are not where they should be."""
    call = Call((samples, channels, positions), None, ChannelOptions(0, 1e-5, 0, 0.0, 0), False, False)
    walk = call.walk(summed=True)
    launch, (extent, *_) = walk.launch(), walk.lengths()
    found = {}
    for tile in (0, positions // launch.block, extent // launch.block - 1, extent // launch.block):
        own = torch.zeros(launch.rows, launch.block, dtype=torch.int64)
        existing = torch.zeros(launch.rows, launch.block, dtype=torch.int8)
        places_kernel[(1,)](own, existing, *walk.lengths(), tile, **walk.constants(launch))
        position, channel = tile * launch.block + torch.arange(launch.block), torch.arange(launch.rows)[:, None]
        wanted = position // positions * channels * positions + position % positions + channel * positions
        there = (position < extent) & (channel < channels)
        found[f"tile {tile}"] = float(((own != wanted) & there).sum() + (existing.bool() != there).sum())
    return found


CASES = {name: (places, shape) for name, shape in SHAPES.items()}

if __name__ == "__main__":
    main(CASES, sys.argv[1:])
