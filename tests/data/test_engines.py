"""Ray and torch.distributed find what one process finds, to the last bit."""

import multiprocessing
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import distributed

from evenkeel import InvalidInputError, SourceError
from evenkeel.data import Statistics, all_merge, fit, fit_statistics

RANKS = 2


def rank_table(rank):
    return np.random.default_rng(rank).normal(1e6, 1, (100 + 900 * rank, 3))


def merge_on(rank, address, queue):
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    try:
        mine = Statistics(quantiles=True).update(rank_table(rank))
        before = mine.to_bytes()
        merged = all_merge(mine)
        empty = Statistics(3) if rank == 0 else Statistics(3).update(rank_table(1))
        error = ""
        try:
            all_merge(Statistics(names=["ab"[rank]]).update(np.ones((2, 1))))
        except InvalidInputError as caught:
            error = str(caught)
        queue.put((rank, merged.to_bytes(), mine.to_bytes() == before, all_merge(empty).to_bytes(), error))
    finally:
        distributed.destroy_process_group()


def test_ranks_with_unequal_batches_get_the_same_bits(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    address = f"file://{tmp_path}/store"
    processes = [context.Process(target=merge_on, args=(rank, address, queue)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    results = sorted(queue.get(timeout=120) for _ in range(RANKS))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    (_, first, kept, one_empty, error), (_, second, *_) = results
    assert first == second
    assert kept
    found = Statistics.from_bytes(first)
    x = np.concatenate([rank_table(rank) for rank in range(RANKS)])
    assert found.rows == len(x)
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-14)
    np.testing.assert_allclose(found.variance(), x.var(0), rtol=1e-9)  # NumPy's own error at mean 1e6
    ranks = (x <= found.quantile(0.5)).mean(0)
    np.testing.assert_allclose(ranks, 0.5, atol=found.quantile_error + 1e-3)
    assert one_empty == Statistics(3).update(rank_table(1)).to_bytes()
    assert "names" in error


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    for number in range(6):
        rows = np.random.default_rng(number).normal(1e4, 1, (1000 * number + 1, 2)).astype(np.float32)
        pq.write_table(pa.table({"a": rows[:, 0], "b": rows[:, 1]}), path / f"part-{number}.parquet")
    return path


@pytest.fixture
def ray():
    """A small Ray of the test's own, as a program would have started it: the cases share its start."""
    import ray

    ray.init(num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_finds_the_same_bits(ray, folder, tmp_path):
    expected = fit_statistics(folder)
    assert fit_statistics(folder, engine="ray").to_bytes() == expected.to_bytes()
    assert ray.is_initialized()  # it was not ours to shut down

    table = np.random.default_rng(0).normal(size=(3000, 4))
    assert fit_statistics(table, engine="ray").to_bytes() == fit_statistics(table).to_bytes()

    sketched = fit_statistics(folder, engine="ray", quantiles=True)
    x = np.concatenate([pq.read_table(path)["a"].to_numpy() for path in sorted(folder.iterdir())])
    assert abs((x <= sketched.quantile(0.5)[0]).mean() - 0.5) <= sketched.quantile_error

    states = tmp_path / "states"
    fit_statistics(folder, resume=states)
    whole = states.read_bytes()
    states.write_bytes(whole[: len(whole) // 2])  # what local fragments kept, Ray continues
    assert fit_statistics(folder, engine="ray", resume=states).to_bytes() == expected.to_bytes()

    broken = folder / "part-3.parquet"
    broken.write_bytes(b"PAR1" * 9)
    with pytest.raises(SourceError, match=f"{re.escape(str(broken))}: cannot be read"):
        fit_statistics(folder, engine="ray")
    skipped = fit(folder, engine="ray", on_error="skip")
    assert [skip["file"] for skip in skipped.contract_.source["skipped"]] == [str(broken)]
    assert skipped.statistics_.to_bytes() == fit(folder, on_error="skip").statistics_.to_bytes()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_that_was_started_is_shut_down(folder, capfd):
    import ray

    threads = torch.get_num_threads()
    assert fit_statistics(folder, engine="ray", workers=1).to_bytes() == fit_statistics(folder).to_bytes()
    assert not ray.is_initialized()
    assert torch.get_num_threads() == threads
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "INFO" not in shown.err
    assert "WARNING" not in shown.err
