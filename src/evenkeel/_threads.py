"""Threads that wait for disks and stores, so that Ctrl-C need not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# How long threads may finish what they do after an error or Ctrl-C; a store that is silent holds one for a minute.
GRACE = 1.0


@contextmanager
def threads(
    count: int, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ThreadPoolExecutor]:
    """Give threads that are done at the end; after an error they have a moment for it, and are then left behind.

    Args:
        count: how many at most.
        initializer: what each of them calls first.
        initargs: with what.
    """
    members: list[threading.Thread] = []

    def begin() -> None:
        members.append(threading.current_thread())
        if initializer is not None:
            initializer(*initargs)

    pool = ThreadPoolExecutor(count, initializer=begin)
    try:
        yield pool
    except BaseException:  # at the interpreter's end too, when no thread can be started any more
        pool.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + GRACE
        for member in members:
            if member is not threading.current_thread():
                member.join(max(0.0, end - time.monotonic()))
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
