"""What every test starts from: the same random numbers in each run and on each machine, and a browser if it asks."""

import shutil
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No deadline: a shared machine makes any example slow once. No database: a run depends on the code alone.
settings.register_profile("evenkeel", derandomize=True, deadline=None, database=None)
settings.load_profile("evenkeel")

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.fail("this test needs Chromium; install it with: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def served():
    from object_store import AmazonStore

    store = AmazonStore()
    yield store
    store.stop()


@pytest.fixture
def short_pauses(monkeypatch):
    """Pauses between attempts are short."""
    monkeypatch.setattr("evenkeel.data.sources._transfers.PAUSE", 0.01)


@pytest.fixture
def store(served, short_pauses):
    """An S3 server with an empty bucket, behind a proxy."""
    yield served
    served.clear()
