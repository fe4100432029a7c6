"""A Ray cluster: the one that runs, the one at an address, or one started in this machine while it is needed."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from evenkeel._errors import EvenkeelError
from evenkeel._packages import require_package

STORE_BYTES = 256 << 20
ANSWER_SECONDS = 5.0
FOUND_BY_RAY = ("auto", "local")
# A client of HTTP/2 begins so, with an empty frame of settings; a server's answer begins with one, too (RFC 9113, 3.4).
HELLO, SETTINGS, SETTINGS_AT = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", b"\4", 3
CLIENT = b"gcs_client.cc"  # in the lines of Ray's log that come while it connects


@contextmanager
def ray_cluster(address: str | None, processors: int) -> Iterator[Any]:
    """Give Ray, connected to a cluster; what is started here is shut down at the end.

    Args:
        address: of the cluster, host:port or ``auto``; None means RAY_ADDRESS, or else a new one in this machine.
        processors: of a new one.

    Raises:
        EvenkeelError: Ray is not installed; nobody answers at the address; the cluster's Ray or Python has another
            version; it wants a token.
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
        how["address"] = "local"  # a new one, even where another one runs in this machine
        how["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
    said: list[str] = []
    try:
        with warnings.catch_warnings(), core_lines(said) if address else nullcontext():
            warnings.simplefilter("ignore")  # Ray's about its own settings: nothing the caller could act on
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **how)
    except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()  # what it has connected so far would count as running
        raise EvenkeelError(connection_problem(address, " ".join([*str(error).split(), *said]))) from error
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
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as connection:
            check_protocol(connection, address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise EvenkeelError(
            f"no Ray cluster answers at {address} ({reason}); `ray status` on its head node tells its address"
        ) from error
    return address


def check_protocol(connection: socket.socket, address: str) -> None:
    """Raise `EvenkeelError` unless the other side speaks HTTP/2, as Ray does; a dashboard's port speaks another one."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return  # then Ray itself finds out
    connection.sendall(HELLO)
    heard = b""
    while len(heard) <= SETTINGS_AT and (more := connection.recv(64)):
        heard += more
    if heard[SETTINGS_AT : SETTINGS_AT + 1] != SETTINGS:
        raise EvenkeelError(
            f"what answers at {address} is no Ray cluster; `ray status` on its head node tells its address, whose port "
            "is 6379 unless it was given another (8265 is the dashboard's)"
        )


@contextmanager
def core_lines(said: list[str]) -> Iterator[None]:
    """Keep what Ray's client of a cluster says on stderr, once a second, to itself; other lines appear at the end."""
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file:
                if CLIENT in line:
                    said[:] = [line.partition(CLIENT)[2].decode(errors="replace").strip()]
                else:
                    os.write(2, line)


def starts_here(address: str | None) -> bool:
    """Whether `ray_cluster` would start a cluster in this machine."""
    return not (address or os.environ.get("RAY_ADDRESS") or require_package("ray").is_initialized())


def connection_problem(address: str | None, reason: str) -> str:
    """Return what keeps Ray from running, in one line."""
    if "ersion mismatch" in reason:
        return f"the Ray cluster runs other versions than this program: {reason}; install the same on both sides"
    if "InvalidAuthToken" in reason or "oken authentication" in reason:
        return (
            f"the Ray cluster {address} wants a token, and this program has none or another one; set "
            "RAY_AUTH_MODE=token, and the cluster's token in RAY_AUTH_TOKEN, in a file that RAY_AUTH_TOKEN_PATH names, "
            "or in ~/.ray/auth_token"
        )
    if "Could not find any running Ray instance" in reason:
        return f"no Ray cluster runs in this machine (address {address}); start one, or give host:port"
    where = f"connect to the Ray cluster {address}" if address else "start Ray in this machine"
    return f"cannot {where}: {reason}"
