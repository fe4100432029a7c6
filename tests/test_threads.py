"""Threads that wait for stores: after an error or Ctrl-C nobody waits for them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import evenkeel
from evenkeel._threads import beside, side_by_side, threads
from evenkeel.data.sources._transfers import retried


@pytest.fixture
def silent(monkeypatch):
    """An event that nothing answers until the test is over."""
    monkeypatch.setattr("evenkeel._threads.GRACE", 0.01)
    event = threading.Event()
    yield event
    event.set()


def test_threads_are_done_at_the_end_and_left_behind_after_an_error(silent):
    with threads(2) as pool:
        futures = [pool.submit(pow, 2, number) for number in range(5)]
    assert [future.result() for future in futures] == [1, 2, 4, 8, 16]
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda number: silent.wait() if number else 1 / number, [0, 1, 1], 2)
    assert not silent.is_set()


@pytest.mark.parametrize("wait", [beside, lambda action: retried(action, "s3://bucket/x.npy")])
def test_ctrl_c_does_not_wait_for_a_store(wait, silent):
    def request():
        # a signal, as Ctrl-C is: `interrupt_main` would not wake a thread that waits already
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        silent.wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait(request)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not silent.is_set()


def test_the_command_ends_while_threads_wait():
    code = "import sys, threading, concurrent.futures as futures; import evenkeel.cli as cli, evenkeel.cli.app as app; \
futures.ThreadPoolExecutor().submit(threading.Event().wait); app.run = lambda arguments: 130; sys.exit(cli.main())"
    environment = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=60).returncode == 130
