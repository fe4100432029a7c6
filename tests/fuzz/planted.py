"""A fuzzer of faults that are there, so that the tests see the driver find them."""

import os
import signal
import time

from fuzz.checks import Fault
from hypothesis import strategies as st

MEMORY = 1 << 30


def wrong(number):
    if number >= 17:
        raise Fault(f"{number} is too large", {"x.txt": b"seventeen"})


def crashes(number):
    if number >= 5:
        os.kill(os.getpid(), signal.SIGSEGV)


PROPERTIES = {
    "right": (st.integers(), lambda number: None),
    "wrong": (st.integers(0, 1000), wrong),
    "crashes": (st.integers(0, 1000), crashes),
    "slow": (st.integers(), lambda number: time.sleep(0.01)),
}
