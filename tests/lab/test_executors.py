"""Who does the jobs of experiments, what is asked of a Ray cluster, and what is told where there is none."""

import contextlib
import errno
import functools
import os
import signal
import socket
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab.experiments.tiny import TINY as TINY_EXPERIMENTS
from study_runs import TINY

import evenkeel as ek
from evenkeel import _cluster
from evenkeel.lab import StudySettings, Workers, run_study
from evenkeel.lab.experiments import EXPERIMENTS, ExperimentObserver, run_experiments
from evenkeel.lab.runner import Task, _ray, executor_of, read_records
from evenkeel.lab.runner._executors import Serial
from evenkeel.lab.runner._ray import RayTasks, follow_job, hand_on, read_files

PADDING = EXPERIMENTS["padding"]


def trials(out):
    return [(record["trial"], record["measured"]) for record in read_records(out / "padding" / "records.jsonl")]


class Counts(ExperimentObserver):
    """Counts what is done, and kills the first process that has measured something."""

    def __init__(self, kill=False):
        self.done, self.lost, self.kill = [], [], kill

    def trial_done(self, trial, done, total):
        self.done.append(done)
        if self.kill:
            self.kill = False
            path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
            for number in map(int, path.read_text().split()):
                if b"serve()" in Path(f"/proc/{number}/cmdline").read_bytes():
                    os.kill(number, signal.SIGKILL)

    def worker_lost(self, trial, reason):
        self.lost.append(reason)


def test_an_experiment_in_processes_keeps_the_records_of_one_in_their_order(tmp_path):
    options = {"padding": TINY_EXPERIMENTS["padding"] | {"seeds": 3}}
    (here,) = run_experiments([PADDING], tmp_path / "here", options=options)
    observer = Counts()
    (there,) = run_experiments([PADDING], tmp_path / "there", options=options, workers=2, observer=observer)
    assert trials(tmp_path / "there") == trials(tmp_path / "here")
    assert there["claims"] == here["claims"]
    assert observer.done == list(range(1, here["trials"] + 1))


def test_a_killed_process_of_an_experiment_loses_no_trial(tmp_path):
    options = {"padding": TINY_EXPERIMENTS["padding"] | {"seeds": 20}}
    observer = Counts(kill=True)
    run_experiments([PADDING], tmp_path / "killed", options=options, workers=2, observer=observer)
    run_experiments([PADDING], tmp_path / "whole", options=options)
    assert set(observer.lost) <= {"ended by signal 9"}
    assert trials(tmp_path / "killed") == trials(tmp_path / "whole")


class Repeating(Serial):
    """Does each job twice, as when a process is lost between what a job tells last and its end."""

    def run(self, task, jobs, *, told, lost, keep=None):
        for index, job in enumerate(jobs):
            task.work(job, functools.partial(told, index))
            lost(index, "ended by signal 9")
            task.work(job, functools.partial(told, index))


def test_a_trial_that_is_told_twice_is_kept_once(tmp_path, monkeypatch):
    options = {"padding": TINY_EXPERIMENTS["padding"] | {"seeds": 3}}
    (once,) = run_experiments([PADDING], tmp_path / "once", options=options)
    monkeypatch.setattr("evenkeel.lab.experiments._run.executor_of", lambda *_, **__: Repeating())
    observer = Counts()
    (twice,) = run_experiments([PADDING], tmp_path / "twice", options=options, observer=observer)
    assert observer.lost == ["ended by signal 9"] * once["trials"]
    assert observer.done == list(range(1, once["trials"] + 1))
    assert trials(tmp_path / "twice") == trials(tmp_path / "once")
    assert twice["claims"] == once["claims"]


def test_what_is_timed_is_measured_here(tmp_path, monkeypatch):
    timed = next(experiment for experiment in EXPERIMENTS.values() if experiment.timed)
    monkeypatch.setattr("evenkeel.lab.runner._processes.Process", None)
    (summary,) = run_experiments([timed], tmp_path, options={timed.name: TINY_EXPERIMENTS[timed.name]}, workers=4)
    assert summary["complete"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "workers must be a whole number from 1 to 1024, but is 0"),
        ({"engine": "rai"}, "there is no engine 'rai'; did you mean ray"),
        ({"address": "auto"}, "an address is that of a Ray cluster; give the engine ray with it"),
    ],
)
def test_impossible_workers(options, message):
    with pytest.raises(ek.StudyError, match=message):
        Workers(**options)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "is an address of Ray Client.*give host:port or auto"),
        ("head", "is host:port or auto, but got 'head'"),
        ("127.0.0.1:99999", "no Ray cluster answers at 127.0.0.1:99999"),
        ("no-such-host.invalid:6379", "no Ray cluster answers at no-such-host.invalid:6379"),
    ],
)
def test_an_address_where_nobody_answers_is_one_line(address, message):
    with pytest.raises(ek.EvenkeelError, match=message) as caught:
        _cluster.check_reachable(address)
    assert "\n" not in str(caught.value)


@contextlib.contextmanager
def answering(answer):
    """Give the address of a server that answers the first request so, or not at all."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)
                connection.recv(1000)  # until the other side hangs up

        pool.submit(serve)
        yield "127.0.0.1:{}".format(*server.getsockname()[1:])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"is no Ray cluster; .* 6379 .*\(8265 is the dashboard's\)$"),
        (b"", r"no Ray cluster answers at .* \(timed out\)"),
    ],
)
def test_a_port_of_something_else_is_told(answer, message, monkeypatch):
    if not answer:
        monkeypatch.setattr(_cluster, "ANSWER_SECONDS", 0.2)
    with answering(answer) as address, pytest.raises(ek.EvenkeelError, match=message):
        _cluster.check_reachable(address)


def test_a_closed_port_is_told_with_its_reason():
    with answering(b"\0\0\6\4\0\0\0\0\0\0\5\0\0\x40\0") as address:
        assert _cluster.check_reachable(address) == address
    with pytest.raises(
        ek.EvenkeelError, match=r"Connection refused\); `ray status` on its head node tells its address"
    ):
        _cluster.check_reachable(address)


def test_other_versions_are_told_in_one_line():
    seen = "Version mismatch: The cluster was started with: Ray: 2.9.0 Python: 3.10.1"
    line = _cluster.connection_problem("head:6379", seen)
    assert "Ray: 2.9.0 Python: 3.10.1; install the same on both sides" in line


class Unwilling:
    """A Ray that says something on stderr, as its C++ part does, and does not connect."""

    exceptions = types.SimpleNamespace(RayError=KeyError)

    def __init__(self, *said, error):
        self.said, self.error = said, error

    def is_initialized(self):
        return False

    def init(self, **how):
        for line in self.said:
            os.write(2, f"{line}\n".encode())
        raise self.error

    def shutdown(self):
        pass


REFUSED = "[W 1] gcs_client.cc:210: Failed to get cluster ID: Unauthenticated: InvalidAuthToken: token is missing"


@pytest.mark.parametrize(
    ("address", "ray", "message"),
    [
        (
            "auto",
            Unwilling(REFUSED, REFUSED, error=RuntimeError("no")),
            "the Ray cluster auto wants a token, and .* none",
        ),
        (
            "auto",
            Unwilling(error=KeyError("Token authentication is enabled")),
            "set RAY_AUTH_MODE=token, and the clust",
        ),
        ("auto", Unwilling("a line", error=OSError("no\nway")), "cannot connect to the Ray cluster auto: no way$"),
        ("auto", Unwilling(error=OSError("Could not find any running Ray instance. Please")), "no Ray cluster runs in"),
        (None, Unwilling("a line", error=OSError("no")), "cannot start Ray in this machine: no$"),
    ],
)
def test_a_cluster_that_refuses_is_one_line_without_those_of_ray(address, ray, message, monkeypatch, capfd):
    monkeypatch.setattr(_cluster, "require_package", lambda name: ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ek.EvenkeelError, match=message) as caught, _cluster.ray_cluster(address, 1):
        pass
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == "".join(f"{line}\n" for line in ray.said if line != REFUSED)


def test_a_cluster_of_this_machine_is_a_new_one(monkeypatch):
    """Ray would take one that it finds, and then refuse the number of processors."""
    asked = {}
    ray = Unwilling(error=None)
    ray.init = lambda **how: asked.update(how)
    monkeypatch.setattr(_cluster, "require_package", lambda name: ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with _cluster.ray_cluster(None, 3):
        pass
    assert (asked["address"], asked["num_cpus"]) == ("local", 3)


@pytest.mark.parametrize(
    ("address", "named", "expected"), [(None, None, True), (None, "auto", False), ("head:1", None, False)]
)
def test_where_a_cluster_starts(address, named, expected, monkeypatch):
    monkeypatch.setattr(_cluster, "require_package", lambda name: Unwilling(error=None))
    monkeypatch.setenv("RAY_ADDRESS", named or "")
    assert _cluster.starts_here(address) is expected


def test_a_cluster_without_gpus_is_refused_before_anything_is_written(monkeypatch, text, tmp_path):
    ray = FakeRay([4])
    monkeypatch.setattr(_ray, "ray_cluster", lambda *asked: contextlib.nullcontext(ray))
    workers = Workers(engine="ray", address="head:1")
    for options, message in (
        ({"device": "cuda"}, "the Ray cluster has no GPU"),
        ({"threads": 5}, "needs 5 processors"),
    ):
        with pytest.raises(ek.StudyError, match=message):
            run_study(StudySettings(**TINY | options), tmp_path / "out", text=text, workers=workers)
    assert not (tmp_path / "out").exists()


def test_a_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with (
        pytest.raises(ek.EvenkeelError, match=r"pip install 'evenkeel\[ray\]'"),
        executor_of(Workers(engine="ray"), threads=1),
    ):
        pass


class FakeRay:
    """The questions that are asked of a cluster."""

    def __init__(self, cpus, gpus=0):
        self.cpus, self.gpus = cpus, gpus

    def cluster_resources(self):
        return {"CPU": sum(self.cpus), **({"GPU": self.gpus} if self.gpus else {})}

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": number}} for number in self.cpus] + [{"Alive": False}]


@pytest.mark.parametrize(
    ("count", "threads", "cpus", "gpus", "expected"),
    [
        (None, 1, [4, 4], None, (8, {"num_cpus": 1.0})),
        (None, 3, [4, 4], None, (2, {"num_cpus": 3.0})),
        (5, 1, [4], None, (5, {"num_cpus": 1.0})),
        (None, 1, [8], 2, (2, {"num_cpus": 1.0, "num_gpus": 1.0})),
        (4, 1, [8], 2, (4, {"num_cpus": 1.0, "num_gpus": 0.5})),
        (5, 1, [8], 2, (5, {"num_cpus": 1.0, "num_gpus": 1 / 3})),
        (1, 1, [8], 4, (1, {"num_cpus": 1.0, "num_gpus": 1.0})),
    ],
)
def test_each_job_gets_its_share_of_the_cluster(count, threads, cpus, gpus, expected):
    tasks = RayTasks(Workers(count=count, engine="ray"), threads=threads, gpu=gpus is not None)
    tasks.ray = FakeRay(cpus, gpus or 0)
    assert tasks.share(12) == expected


def test_a_cluster_without_room_is_refused():
    tasks = RayTasks(Workers(engine="ray"), threads=4, gpu=False)
    tasks.ray = FakeRay([2, 2])
    with pytest.raises(ek.StudyError, match=r"each worker needs 4 processors, but the largest node .* has 2; choose"):
        tasks.share(1)
    tasks = RayTasks(Workers(engine="ray"), threads=1, gpu=True)
    tasks.ray = FakeRay([2])
    with pytest.raises(ek.StudyError, match="the Ray cluster has no GPU; choose --device cpu"):
        tasks.share(1)


def writes(setup):
    """Return what goes on with the files of a job, as a training does."""

    def work(job, tell):
        folder = Path(setup["out"]) / job["folder"]
        before = (folder / "records.jsonl").read_text() if (folder / "records.jsonl").exists() else ""
        (folder / "records.jsonl").write_text(before + "line\n")
        (folder / "checkpoint").write_text("state")
        tell({"began_with": before})

    return work


def fails(setup):
    """Return what has no space left."""

    def work(job, tell):
        raise ek.StudyError(f"cannot write to {setup['out']}: {os.strerror(errno.ENOSPC)}")

    return work


def breaks(setup):
    """Return what has a fault."""

    def work(job, tell):
        raise ZeroDivisionError("no such number")

    return work


def test_the_files_of_a_job_travel_to_its_node_and_back(tmp_path):
    job, said = {"folder": "arms/a"}, []
    here = tmp_path / "arms" / "a"
    here.mkdir(parents=True)
    task = Task(writes, {"out": str(tmp_path)}, work=None)
    for _ in range(2):
        sent = (task.prepare, dict(task.setup), job, read_files(here), _ray.versions())
        for message in (message for bundle in follow_job(*sent) for message in bundle):
            hand_on(message, 0, here, lambda index, message: said.append(message))
    assert (here / "records.jsonl").read_text() == "line\nline\n"
    assert said == [{"began_with": ""}, {"began_with": "line\n"}]
    assert sorted(path.name for path in here.iterdir()) == ["checkpoint", "records.jsonl"]


def test_an_error_on_a_node_is_one_line_and_a_fault_is_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(_ray, "node_name", lambda: "10.0.0.7")
    (message,) = (m for bundle in follow_job(fails, {"out": ""}, {}, None, _ray.versions()) for m in bundle)
    with pytest.raises(ek.StudyError, match=r"No space left on device \(on the node 10\.0\.0\.7\)"):
        hand_on(message, 0, None, None)
    with pytest.raises(ZeroDivisionError):
        list(follow_job(breaks, {"out": ""}, {}, None, _ray.versions()))
    (message,) = (m for bundle in follow_job(writes, {"out": ""}, {}, None, {"torch": "1.0"}) for m in bundle)
    assert message["failed"].startswith("a worker of the Ray cluster has torch ")


def test_reasons_follow_its_process():
    class WorkerCrashedError(Exception):
        pass

    fault = ValueError("first\nlast line ")
    fault.cause = ModuleNotFoundError("No module named 'evenkeel'")
    assert _ray.reason_of(WorkerCrashedError("…")) == "was killed"
    assert _ray.reason_of(fault) == "failed (No module named 'evenkeel')"
    assert _ray.reason_of(ValueError("first\nlast  line ")) == "failed (last line)"
