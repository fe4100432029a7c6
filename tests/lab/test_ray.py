"""Studies and experiments on a Ray cluster: the records of the serial run, whatever happens to workers and nodes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from lab.experiments.tiny import TINY as TINY_EXPERIMENTS
from study_runs import TINY, Names, folder, measured, records

import evenkeel as ek
from evenkeel.lab import StudySettings, Workers, run_study
from evenkeel.lab.experiments import EXPERIMENTS, ExperimentObserver, run_experiments
from evenkeel.lab.runner import _ray

pytestmark = [pytest.mark.slow, pytest.mark.alone]

ON_RAY = Workers(count=2, engine="ray")
ARMS = ("none", "pre-batch", "llama", "post-layer")


@pytest.fixture(autouse=True)
def same_modules(monkeypatch):
    """The nodes that a test starts import what it imports."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def descendants(process):
    """The processes below a process, by number, with what they are called."""
    found = {}
    try:
        below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        for number in map(int, below):
            found[number] = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
            found |= descendants(number)
    except OSError:
        pass
    return found


class At(Names):
    """Does something once, when a run has made this many steps."""

    def __init__(self, step, action):
        super().__init__()
        self.step, self.action = step, action

    def step_done(self, run, step, loss, tokens_per_second):
        if step >= self.step and self.action is not None:
            action, self.action = self.action, None
            action()


def test_twelve_trainings_have_equal_records_serial_in_processes_and_on_ray(tmp_path, text):
    settings = StudySettings(**TINY | {"arms": ARMS, "lr": (0.002, 0.02, 30.0), "steps": 40, "depth": 2})
    summaries = {
        name: run_study(settings, tmp_path / name, text=text, workers=workers)
        for name, workers in (("serial", 1), ("processes", 3), ("ray", ON_RAY))
    }
    assert len(measured(tmp_path / "serial")) == 12
    assert {run["status"] for run in summaries["serial"]["arms"]} == {"finished", "diverged"}
    for name in ("processes", "ray"):
        assert measured(tmp_path / name) == measured(tmp_path / "serial")
        assert summaries[name]["arms"] == summaries["serial"]["arms"]
        assert list(summaries[name]["costs"]) == list(ARMS)
        assert summaries[name]["spent"]["bytes"] > 2**20
    assert [summary.get("ray") for summary in summaries.values()] == [None, None, ray.__version__]
    assert f"ray {ray.__version__}" in (tmp_path / "ray" / "report.html").read_text()


def test_a_killed_worker_of_the_cluster_is_told_and_its_run_goes_on(tmp_path, text):
    settings = StudySettings(**TINY | {"arms": ARMS[:2], "steps": 600})

    def kill_worker():
        number = next(n for n, called in descendants(os.getpid()).items() if called.startswith("ray::follow_job"))
        os.kill(number, signal.SIGKILL)

    observer = At(100, kill_worker)
    run_study(settings, tmp_path / "killed", text=text, workers=ON_RAY, observer=observer, checkpoint_seconds=0.05)
    run_study(settings, tmp_path / "whole", text=text)
    assert [reason for _, reason in observer.lost] == ["was killed"]
    assert sorted(observer.ended) == sorted(ARMS[:2])
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")


def test_a_node_that_goes_costs_what_was_done_since_the_last_checkpoint(tmp_path, text):
    from ray.cluster_utils import Cluster

    settings = StudySettings(**TINY | {"arms": ARMS[:3], "steps": 600})
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        observer = At(50, lambda: cluster.remove_node(nodes[1], allow_graceful=False))
        workers = Workers(engine="ray", address=cluster.address)
        run_study(settings, tmp_path / "ray", text=text, workers=workers, observer=observer, checkpoint_seconds=0.05)
    finally:
        cluster.shutdown()
    run_study(settings, tmp_path / "whole", text=text)
    assert measured(tmp_path / "ray") == measured(tmp_path / "whole")
    assert sorted(observer.ended) == sorted(ARMS[:3])


STARTED = """
import sys
from pathlib import Path
from evenkeel.lab import StudySettings, Workers, run_study
settings = StudySettings.from_options(dict(arms=["none"], depth=1, width=8, heads=2, context=8, batch=2,
                                           steps=1200, threads=1, lr=0.002, seeds=1))
run_study(settings, Path(sys.argv[1]), text=Path(sys.argv[2]), workers=Workers(count=1, engine="ray"),
          checkpoint_seconds=0.05)
"""


def test_a_killed_first_process_loses_nothing_that_it_was_told(tmp_path, text):
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", STARTED, out, text], stderr=subprocess.DEVNULL)
    while not (folder(out, "none") / "checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert records(out, "none", "train")
    assert not records(out, "none", "end")
    settings = StudySettings(**TINY | {"arms": ("none",), "steps": 1200})
    run_study(settings, out, text=text, resume=True)
    run_study(settings, tmp_path / "whole", text=text)
    assert measured(out) == measured(tmp_path / "whole")


def test_an_interrupted_study_on_ray_says_how_to_resume(tmp_path, text):
    out = tmp_path / "out"
    options = "--arms none --depth 1 --width 8 --heads 2 --context 8 --batch 2 --steps 100000 --lr 0.002 --seeds 1"
    command = [sys.executable, "-m", "evenkeel", "study", "--text", text, "--out", out, *options.split()]
    command += ["--engine", "ray", "--workers", "1", "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not (folder(out, "none").exists() and descendants_named(process.pid, "ray::follow_job")):
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert error.splitlines()[-1] == f"interrupted; continue with: evenkeel study --out {out} --resume"
    assert "Traceback" not in error


def descendants_named(process, name):
    return [called for called in descendants(process).values() if called.startswith(name)]


class Counting(ExperimentObserver):
    def __init__(self):
        self.done = []

    def trial_done(self, trial, done, total):
        self.done.append(done)


def test_an_experiment_measures_on_ray_what_it_measures_here(tmp_path):
    experiment = EXPERIMENTS["padding"]
    options = {"padding": TINY_EXPERIMENTS["padding"]}
    observer = Counting()
    (there,) = run_experiments([experiment], tmp_path / "ray", options=options, workers=ON_RAY, observer=observer)
    (here,) = run_experiments([experiment], tmp_path / "here", options=options)
    assert there["claims"] == here["claims"]
    assert (there["ray"], here.get("ray")) == (ray.__version__, None)
    assert observer.done == list(range(1, here["trials"] + 1))


def test_a_worker_with_other_kernels_is_refused(tmp_path, text, monkeypatch):
    mine = _ray.versions()
    monkeypatch.setattr(_ray, "versions", lambda: mine | {"kernels": "reference, abacus"})
    settings = StudySettings(**TINY | {"arms": ("none",)})
    with pytest.raises(ek.StudyError, match=r"has kernels .*, but the study began with reference, abacus; install"):
        run_study(settings, tmp_path / "out", text=text, workers=ON_RAY)
    monkeypatch.undo()
    assert run_study(settings, tmp_path / "out", text=text, resume=True)["arms"][0]["status"] == "finished"


def test_a_cluster_of_another_version_is_named_in_one_line(tmp_path, text, monkeypatch):
    from ray._private import utils
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        with monkeypatch.context() as patch:
            patch.setattr(utils, "compute_version_info", lambda: ("1.0.0", "3.6.0"))
            with pytest.raises(ek.EvenkeelError, match=r"runs other versions .*Ray: 1\.0\.0 Python: 3\.6\.0; install"):
                run_study(
                    StudySettings(**TINY | {"arms": ("none",)}),
                    tmp_path / "out",
                    text=text,
                    workers=Workers(engine="ray", address=cluster.address),
                )
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert not (tmp_path / "out").exists()


def test_too_many_threads_for_every_node_are_refused(tmp_path, text):
    settings = StudySettings(**TINY | {"arms": ("none",), "threads": 1000})
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        with pytest.raises(ek.StudyError, match="needs 1000 processors, but the largest node of the Ray cluster has 2"):
            run_study(settings, tmp_path / "out", text=text, workers=Workers(engine="ray", address=cluster.address))
        assert not (tmp_path / "out").exists()
    finally:
        cluster.shutdown()
