"""The Triton kernels of channel norms, interpreted on the CPU: errors in ulps, and bits that must not change."""

import pytest
import triton_channels_worker as worker
import triton_places_worker
from triton_worker import check

from evenkeel.functional._specs import channel_spec
from evenkeel.kernels import _triton
from evenkeel.kernels.triton._launch import channel_launch, merge_launch


def limit_of(case, name):
    """The contract: 3 ulps in float32, 0.51 where 16 bits are rounded once; the other numbers count differences."""
    if case.startswith("half") or name.startswith("half"):
        return 0.51
    if case.startswith("like the CPU") and name.endswith("ulps"):
        return 6.0  # each may be 3 off
    return 3.0 if name.endswith("ulps") or name.split()[-1] in ("y", "dx", "dweight", "dbias") else 0.0


def test_kernels():
    check(worker, worker.FAST, limit_of)


def test_places_in_tensors_that_fit_no_memory_here():
    check(triton_places_worker, triton_places_worker.CASES, limit_of)


@pytest.mark.slow
def test_kernels_at_length():
    check(worker, worker.SLOW, limit_of)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("spans", [False, True])
def test_tiles_are_powers_of_two_and_chunks_whole_tiles(last, spans):
    for channels in (1, 3, 64, 100, 2048):
        for positions in (1, 2, 49, 196, 3136, 50176):
            launch = channel_launch(channels, positions, last, spans)
            assert launch.block & (launch.block - 1) == launch.rows & (launch.rows - 1) == 0
            assert launch.block * launch.rows <= 512 * launch.warps
            assert launch.chunk % launch.block == 0


def test_merges_have_places_for_few_parts():
    assert [merge_launch(entries).block for entries in (1, 4, 5, 256, 10**6)] == [4, 4, 8, 256, 256]


def test_early_rounding_is_refused():
    spec = channel_spec("batch_norm", "channel", 1e-5, cast="early")
    assert _triton.refusal("channels", spec, ()) == "it has no kernel for cast='early' of a channel norm"
