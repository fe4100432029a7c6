"""Threads that wait for disks and stores, so that Ctrl-C need not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# How long threads may finish what they do after an error or Ctrl-C; a store that is silent holds one for a minute.
GRACE = 1.0


@contextmanager
def threads(count: int, **options: Any) -> Iterator[ThreadPoolExecutor]:
    """Give threads that are done at the end; after an error they have a moment for it, and are then left behind.

    Args:
        count: how many at most.
        options: of the executor.
    """
    pool = ThreadPoolExecutor(count, **options)
    try:
        yield pool
    except BaseException:
        closing = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        closing.start()
        closing.join(GRACE)
        raise
    pool.shutdown()


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item], most: int) -> list[Result]:
    """The results of a function for all items in their order, so many at a time."""
    with threads(most) as pool:
        return list(pool.map(function, items))


def beside(action: Callable[[], Result]) -> Result:
    """The result of an action; the main thread, which alone hears Ctrl-C, lets another one wait for it."""
    if threading.current_thread() is not threading.main_thread():
        return action()
    with threads(1) as pool:
        return pool.submit(action).result()
