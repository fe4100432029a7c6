"""The Triton kernels of tables and images, interpreted: errors of sums, and bits that must be the definition's."""

import pytest
import triton_tables_worker as worker
from triton_worker import check

from evenkeel.kernels.triton._launch import table_launch, table_merge_launch, table_tiles


def limit_of(case, name):
    """1e-13 for sums in float64, as on the CPU; the other numbers count differences."""
    return 1e-13 if name.endswith("error") else 0.0


def test_kernels():
    check(worker, worker.FAST, limit_of)


@pytest.mark.slow
def test_kernels_at_length():
    check(worker, worker.SLOW, limit_of)


def test_tiles_are_powers_of_two_that_fit_their_threads():
    for width in (1, 16, 48, 65, 4096):
        launch = table_launch(width, 1024)
        assert launch.block & (launch.block - 1) == launch.rows & (launch.rows - 1) == 0
        assert launch.block * launch.rows == 1024 <= 8 * 32 * launch.warps


def test_chunks_grow_only_where_there_would_be_many():
    assert [table_tiles(tiles) for tiles in (1, 5, 32, 32768, 65536, 2**30)] == [1, 5, 32, 32, 64, 16384]
    assert [table_merge_launch(entries).block for entries in (0, 4, 1000, 10**6)] == [4, 4, 1024, 1024]


def test_the_check_passes_what_is_right_and_finds_what_is_not(monkeypatch):
    from benchmarks import gpu_tables

    few = {"DTYPES": gpu_tables.DTYPES[::2], "FEW_TABLES": ((301, 5),), "PICTURES": (None, (3, 9, 7, 3))}
    for name, values in few.items():
        monkeypatch.setattr(gpu_tables, name, values)
    assert gpu_tables.problems("cpu", "cpu", True) == []
    for name, word in (("column_moments", "moments are off"), ("image_normalize", "other bits in torch.float32")):
        right = getattr(gpu_tables.F, name)

        def wrong(x, *arguments, right=right, backend, **options):
            return right(x * 2 if backend == "cpu" else x, *arguments, backend=backend, **options)

        monkeypatch.setattr(gpu_tables.F, name, wrong)
        assert any(word in problem for problem in gpu_tables.problems("cpu", "cpu", True))
