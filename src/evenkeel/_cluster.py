"""A Ray cluster: the one that runs, the one at an address, or one started in this machine while it is needed."""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evenkeel._errors import EvenkeelError
from evenkeel._packages import require_package

STORE_BYTES = 256 << 20
ANSWER_SECONDS = 5.0
FOUND_BY_RAY = ("auto", "local")


@contextmanager
def ray_cluster(address: str | None, processors: int) -> Iterator[Any]:
    """Give Ray, connected to a cluster; what is started here is shut down at the end.

    Args:
        address: of the cluster, host:port or ``auto``; None means RAY_ADDRESS, or else a new one in this machine.
        processors: of a new one.

    Raises:
        EvenkeelError: Ray is not installed; nobody answers at the address; the cluster's Ray or Python has another
            version.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = require_package("ray")
    if ray.is_initialized():
        yield ray
        return
    address = check_reachable(address)
    if address:
        how: dict[str, Any] = {"address": address}
    else:
        path = os.pathsep.join(filter(None, sys.path))  # what this program imports, its workers can
        how = {"num_cpus": processors, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        how["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's about its own settings: nothing the caller could act on
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **how)
        except (RuntimeError, OSError, ValueError) as error:
            ray.shutdown()  # what it has connected so far would count as running
            raise EvenkeelError(connection_problem(address, error)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_reachable(address: str | None) -> str | None:
    """Return the address of the cluster that is meant, where somebody answers; Ray itself would wait for minutes.

    Raises:
        EvenkeelError: nobody does, or it is none.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if not address or address in FOUND_BY_RAY:
        return address
    if address.startswith("ray://"):
        raise EvenkeelError(
            f"{address} is an address of Ray Client, which has no streaming results, by which work is followed; start "
            "the command on a node of the cluster, for example with `ray job submit`, and give host:port or auto"
        )
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise EvenkeelError(f"the address of a Ray cluster is host:port or auto, but got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise EvenkeelError(
            f"no Ray cluster answers at {address} ({reason}); `ray status` on its head node tells its address"
        ) from error
    return address


def connection_problem(address: str | None, error: Exception) -> str:
    """Return what keeps Ray from running, in one line."""
    reason = " ".join(str(error).split())
    if "ersion mismatch" in reason:
        return f"the Ray cluster runs other versions than this program: {reason}; install the same on both sides"
    where = f"connect to the Ray cluster {address}" if address else "start Ray in this machine"
    return f"cannot {where}: {reason}"
