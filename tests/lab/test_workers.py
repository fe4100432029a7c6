"""Runs side by side in processes: the records of the serial study, whatever happens to the processes."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from study_runs import TINY, Names, folder, measured

import evenkeel as ek
from evenkeel.lab import StudySettings, run_study
from evenkeel.lab.runner import Task, executor_of

ARMS = ("none", "pre-batch", "llama")


def children(process):
    """The processes that a process has started and that are still there."""
    return {int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()}


@pytest.fixture
def others():
    """The processes of other tests, such as multiprocessing's tracker, which lasts as long as this one."""
    return children(os.getpid())


class KillWorkers(Names):
    """Kills the process of every run at its tenth step, until it has done so often enough."""

    def __init__(self, times):
        super().__init__()
        self.left = times
        self.others = children(os.getpid())

    def step_done(self, run, step, loss, tokens_per_second):
        if step == 10 and self.left:
            self.left -= 1
            for number in children(os.getpid()) - self.others:
                os.kill(number, signal.SIGKILL)


def test_records_are_those_of_the_serial_study_byte_for_byte(tmp_path, text, others):
    settings = StudySettings(**TINY | {"arms": ARMS, "lr": (0.002, 30.0), "seeds": 2, "steps": 30, "depth": 2})
    serial = run_study(settings, tmp_path / "serial", text=text)
    names = Names()
    parallel = run_study(settings, tmp_path / "parallel", text=text, workers=3, observer=names)
    assert measured(tmp_path / "parallel") == measured(tmp_path / "serial")
    assert len(measured(tmp_path / "serial")) == 12
    assert {run["status"] for run in serial["arms"]} == {"finished", "diverged"}
    assert parallel["arms"] == serial["arms"]
    assert (sorted(names.ended), names.lost) == (sorted(ARMS * 4), [])
    assert children(os.getpid()) == others


def test_no_workers_are_refused(tmp_path, text):
    with pytest.raises(ek.StudyError, match="workers must be a whole number from 1 to 1024, but is 0"):
        run_study(StudySettings(**TINY), tmp_path / "out", text=text, workers=0)


def test_a_killed_worker_is_told_and_its_run_goes_on(tmp_path, text):
    settings = StudySettings(**TINY | {"arms": ARMS[:2], "steps": 400})
    observer = KillWorkers(times=1)
    run_study(settings, tmp_path / "killed", text=text, workers=2, observer=observer, checkpoint_seconds=0)
    run_study(settings, tmp_path / "whole", text=text)
    assert observer.lost
    assert {reason for _, reason in observer.lost} == {"ended by signal 9"}
    assert sorted(observer.ended) == sorted(ARMS[:2])
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")


def test_a_run_that_loses_every_process_is_given_up_in_one_line(tmp_path, text, monkeypatch, others):
    monkeypatch.setattr("evenkeel.lab.runner._executors.MOST_LOSSES", 1)
    settings = StudySettings(**TINY | {"arms": ARMS[:2], "steps": 4000})
    with pytest.raises(ek.StudyError, match="1 processes of one run were lost, the last one ended by signal 9"):
        run_study(settings, tmp_path / "out", text=text, workers=2, observer=KillWorkers(times=99))
    assert children(os.getpid()) == others


def test_an_error_in_a_process_is_the_study_s(tmp_path, text):
    settings = StudySettings(**TINY | {"arms": ARMS[:2]})
    run = folder(tmp_path / "out", "none")
    run_study(settings, tmp_path / "out", text=text)
    (run / "checkpoint.safetensors").write_bytes(b"damaged")
    for name in ARMS[:2]:
        (folder(tmp_path / "out", name) / "records.jsonl").write_bytes(b"")
    with pytest.raises(ek.StudyError, match=r"delete the directory .*-lr0\.002-seed0 to run this arm again"):
        run_study(settings, tmp_path / "out", text=text, workers=2, resume=True)


STARTED = """
import sys
from pathlib import Path
from evenkeel.lab import StudySettings, run_study
settings = StudySettings.from_options(dict(arms=["none", "pre-batch"], depth=1, width=8, heads=2, context=8, batch=2,
                                           steps=100_000, threads=1, lr=0.002, seeds=1))
run_study(settings, Path(sys.argv[1]), text=Path(sys.argv[2]), workers=2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_processes_end_with_the_first_one(tmp_path, text, number):
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", STARTED, out, text], stderr=subprocess.DEVNULL)
    records = [folder(out, name) / "records.jsonl" for name in ARMS[:2]]
    while not all(path.exists() and b'"train"' in path.read_bytes() for path in records):
        assert process.poll() is None
        time.sleep(0.05)
    workers = children(process.pid)
    assert len(workers) == 2
    process.send_signal(number)
    process.wait()
    while any(Path(f"/proc/{worker}/stat").exists() and alive(worker) for worker in workers):
        time.sleep(0.05)


def alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_jobs_go_to_the_next_free_process(tmp_path, monkeypatch):
    module = tmp_path / "squares.py"
    module.write_text(
        "def prepare(setup):\n"
        "    def work(job, tell):\n"
        "        print('not a message')\n"
        "        tell({'square': setup['factor'] * job['x'] ** 2})\n"
        "    return work\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    squares = {}
    told = lambda index, message: squares.update({index: message["square"]})  # noqa: E731
    task = Task(importlib.import_module("squares").prepare, {"factor": 2}, work=None)
    with executor_of(2, threads=1) as executor:
        executor.run(task, [{"x": x} for x in range(7)], told=told, lost=lambda index, reason: pytest.fail(reason))
    assert squares == {x: 2 * x**2 for x in range(7)}
