"""Ray and stores: workers that read the store themselves, a cluster that loses a node, and what can be wrong."""

import os
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenkeel import EvenkeelError, InvalidArgumentError
from evenkeel.cli import main
from evenkeel.data import fit, fit_statistics
from evenkeel.data.fitting import _engines

# the warnings are Ray's own
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.filterwarnings("ignore")]


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.fixture
def ray():
    import ray

    ray.init(num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_workers_read_the_store_and_find_the_same_bits(ray, store, folder, tmp_path):
    url, expected = store.upload(folder, "data"), fit_statistics(folder).to_bytes()
    options = {"storage_options": store.options}
    with store.watched() as requests:
        assert fit_statistics(url, engine="ray", **options).to_bytes() == expected
    assert any(request.method == "GET" and request.path.endswith(".parquet") for request in requests)

    def stop(progress):
        if progress.done == 3:
            raise Killed

    for first, second in (("ray", "local"), ("local", "ray"), ("ray", "ray")):
        states = tmp_path / f"{first}-{second}"
        with pytest.raises(Killed):
            fit_statistics(url, engine=first, resume=states, progress=stop, **options)
        assert states.read_bytes().count(b'"version": "') == 3
        assert fit_statistics(url, engine=second, resume=states, **options).to_bytes() == expected


def test_a_worker_without_the_kernels_is_told(ray, folder, monkeypatch):
    said = "missing" if _engines.has_kernels() else "available"
    monkeypatch.setattr(_engines, "kernels_available", lambda: {"cpu": said})  # in this process, not in the workers
    with pytest.warns(UserWarning, match="have the compiled kernels and some do not"):
        fit_statistics(folder, engine="ray")


@pytest.fixture
def cluster():
    """Three nodes on this machine: that of the driver, which reads nothing, and two that read."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 100 << 20})
    readers = [cluster.add_node(num_cpus=1, object_store_memory=100 << 20) for _ in range(2)]
    yield cluster, readers
    cluster.shutdown()


def test_a_node_that_is_lost_changes_no_bit(cluster, store, tmp_path):
    cluster, readers = cluster
    for number in range(40):
        rows = np.random.default_rng(number).normal(1e4, 1, 1000)
        pq.write_table(pa.table({"a": rows}), tmp_path / f"{number:02}.parquet")
    url, removed = store.upload(tmp_path, "data"), []

    def lose(progress):
        if progress.done == 5 and not removed:
            removed.append(threading.Thread(target=cluster.remove_node, args=(readers[0], False)))
            removed[0].start()

    with store.faults(lambda request: time.sleep(0.1)):
        found = fit_statistics(url, engine="ray", address=cluster.address, progress=lose, storage_options=store.options)
    removed[0].join()
    assert found.to_bytes() == fit_statistics(tmp_path).to_bytes()


def test_the_command_takes_an_address(cluster, folder, tmp_path, monkeypatch):
    out = tmp_path / "s.json"
    arguments = ["data", "fit", str(folder), "--out", str(out), "--engine", "ray", "--quiet"]
    assert main([*arguments, "--address", cluster[0].address]) == 0
    monkeypatch.chdir(folder.parent)  # not the workers' directory
    found = fit_statistics(folder.name, engine="ray", address=cluster[0].address)
    assert found.to_bytes() == fit_statistics(folder).to_bytes()
    assert out.exists()


def test_what_is_wrong_with_a_cluster_is_one_line(folder, monkeypatch):
    import ray

    with pytest.raises(InvalidArgumentError, match="pass engine='ray'"):
        fit(folder, address="127.0.0.1:1")
    with pytest.raises(EvenkeelError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 \(Connection refused\)"):
        fit(folder, engine="ray", address="127.0.0.1:1")
    with pytest.raises(EvenkeelError, match="is an address of Ray Client"):
        fit(folder, engine="ray", address="ray://127.0.0.1:1")

    def unlike(**_):
        raise RuntimeError("Version mismatch: The cluster was started with:\n Ray: 2.1\n This process: Ray: 2.2")

    monkeypatch.setattr(ray, "init", unlike)
    with pytest.raises(EvenkeelError, match=r"cluster runs other versions than this program: .*Ray: 2\.1"):
        fit(folder, engine="ray", address="auto")

    def missing(**_):
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr(ray, "init", missing)
    with pytest.raises(EvenkeelError, match=r"no Ray cluster runs in this machine \(address auto\); start one"):
        fit(folder, engine="ray", address="auto")
    assert os.environ.get("RAY_ADDRESS") is None
